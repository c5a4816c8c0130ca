"""The list of programs that only read, with the options each may have."""

from .shell_commands import name_set
from .shell_options import Wrapper, split_names

HARMLESS: dict[str, Wrapper] = {
    "basename": Wrapper("az", "s", long=split_names("multiple suffix= zero")),
    "cat": Wrapper(
        "AbeEnstTuv", long=split_names("show-all number-nonblank show-ends number show-tabs")
    ),
    "cksum": Wrapper(),
    "cmp": Wrapper("bls", "n", long=split_names("bytes= print-bytes verbose quiet silent")),
    "column": Wrapper("tx", "sc", long=split_names("table separator=")),
    "comm": Wrapper("123z", long=split_names("check-order nocheck-order total output-delimiter=")),
    "cut": Wrapper(
        "snz",
        "bcdf",
        long=split_names(
            "bytes= characters= delimiter= fields= only-delimited complement output-delimiter="
        ),
    ),
    "date": Wrapper(
        "uR",
        "d",
        optional="I",
        long=split_names("date= utc universal iso-8601? rfc-3339= rfc-email"),
    ),
    "df": Wrapper(
        "ahHiklPT",
        "tx",
        long=split_names("all human-readable si inodes local portability print-type total"),
    ),
    "diff": Wrapper(
        "abBcdeinpqstuwyN0123456789",
        "CUFIxW",
        long=split_names(
            "brief unified? context? side-by-side ignore-case ignore-all-space "
            "ignore-blank-lines new-file color? width= report-identical-files "
            "ignore-space-change exclude="
        ),
    ),
    "dirname": Wrapper("z", long=("zero",)),
    "du": Wrapper(
        "abchkmsSx0",
        "dt",
        long=split_names(
            "all apparent-size bytes total human-readable summarize max-depth= separate-dirs "
            "one-file-system threshold= exclude="
        ),
    ),
    "echo": Wrapper("neE"),
    "expr": Wrapper(),
    "false": Wrapper(),
    "file": Wrapper("bhikLNrs0", "F", long=split_names("brief mime mime-type mime-encoding")),
    "fold": Wrapper("bs", "w", long=split_names("bytes spaces width=")),
    "grep": Wrapper(
        "abcEFGhHiIlLnoPqrsTUvVwxyzZ0123456789",
        "ABCDdefm",
        long=split_names(
            "extended-regexp fixed-strings basic-regexp perl-regexp regexp= file= ignore-case "
            "no-ignore-case word-regexp line-regexp null-data no-messages invert-match "
            "max-count= byte-offset line-number line-buffered with-filename no-filename "
            "label= only-matching quiet silent binary-files= text directories= devices= "
            "recursive include= exclude= exclude-from= exclude-dir= files-without-match "
            "files-with-matches count initial-tab null before-context= after-context= "
            "context= color? colour?"
        ),
    ),
    "head": Wrapper(
        "qvz0123456789",
        "cn",
        long=split_names("bytes= lines= quiet silent verbose zero-terminated"),
    ),
    "hostname": Wrapper("sfdiI"),
    "id": Wrapper("agGnruz"),
    "jq": Wrapper(
        "nrcsSeajMCR",
        "",
        long=split_names(
            "null-input raw-output compact-output slurp sort-keys exit-status ascii-output "
            "join-output tab monochrome-output color-output raw-input"
        ),
    ),
    "ls": Wrapper(
        "aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1",
        "ITw",
        long=split_names(
            "all almost-all author escape block-size= ignore-backups color? directory "
            "classify? file-type format= full-time group-directories-first no-group "
            "human-readable si hide= indicator-style= inode ignore= kibibytes numeric-uid-gid "
            "literal quote-name reverse recursive size sort= time= time-style= tabsize= "
            "width= context"
        ),
    ),
    "md5sum": Wrapper("bt"),
    "nl": Wrapper("p", "bdfhilnsvw"),
    "nproc": Wrapper(long=("all",)),
    "od": Wrapper("abcdfilosxv", "ANjtw"),
    "paste": Wrapper("sz", "d", long=split_names("serial delimiters=")),
    "printf": Wrapper(),
    "pwd": Wrapper("LP"),
    "readlink": Wrapper("efmnqsvz", long=split_names("canonicalize canonicalize-existing")),
    "realpath": Wrapper(
        "emLPqsz",
        long=split_names("canonicalize-existing canonicalize-missing relative-to= relative-base="),
    ),
    "rg": Wrapper(
        "abcFHhIilNnopPqSsUuvVwx0",
        "ABCdeEfgjmMrtT",
        long=split_names(
            "after-context= before-context= context= count count-matches fixed-strings files "
            "files-with-matches files-without-match glob= iglob= hidden ignore-case "
            "line-number max-count= max-depth= multiline no-filename no-heading heading "
            "no-ignore no-ignore-vcs no-line-number null only-matching pcre2 quiet regexp= "
            "replace= smart-case sort= sortr= stats text trim type= type-list type-not= "
            "vimgrep with-filename word-regexp json line-regexp invert-match color= column "
            "no-messages"
        ),
    ),
    "seq": Wrapper("w", "fs"),
    "sha1sum": Wrapper("bt"),
    "sha256sum": Wrapper("bt"),
    "sleep": Wrapper(),
    "sort": Wrapper(
        "bcCdfghiMmnrRsuVz",
        "ktS",
        long=split_names(
            "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort "
            "human-numeric-sort month-sort numeric-sort reverse key= field-separator= stable "
            "unique version-sort zero-terminated sort= check?"
        ),
    ),
    "stat": Wrapper("LftZ", "c", long=split_names("dereference file-system format= printf= terse")),
    "strings": Wrapper("afw", "net"),
    "tac": Wrapper("br", "s"),
    "tail": Wrapper(
        "qvz0123456789",
        "cn",
        long=split_names("bytes= lines= quiet silent verbose zero-terminated"),
    ),
    "test": Wrapper("abcdefghknoprstuvwxzGLNOSeqntlg"),
    "tr": Wrapper("cCdst", long=split_names("complement delete squeeze-repeats truncate-set1")),
    "tree": Wrapper(
        "adfhipstuvrDFgACnqNQJXUxc",
        "LPI",
        long=split_names("noreport dirsfirst prune gitignore du si filelimit= charset="),
    ),
    "true": Wrapper(),
    "tty": Wrapper("s"),
    "type": Wrapper("aptPf"),
    "uname": Wrapper(
        "asnrvmpio", long=split_names("all kernel-name nodename kernel-release machine")
    ),
    "uniq": Wrapper(
        "cdDiuz",
        "fsw",
        long=split_names("count repeated ignore-case unique skip-fields= skip-chars= check-chars="),
    ),
    "uptime": Wrapper("ps"),
    "wc": Wrapper("cmlLw", long=split_names("bytes chars lines max-line-length words total=")),
    "whereis": Wrapper("bms"),
    "which": Wrapper("as"),
    "whoami": Wrapper(),
    "xxd": Wrapper("bEeipu", "cglos"),
}
NO_PATHS = name_set(
    "basename date dirname echo expr false hostname id nproc printf pwd seq sleep tr "
    "true tty type uname uptime whereis which whoami"
)
# The second of two arguments is a file that is written, or an argument changes the system.
MOST_ARGUMENTS = {"date": 1, "hostname": 0, "uniq": 1, "xxd": 1}
PATTERN_FIRST = name_set("grep jq rg")
RECURSIVE = name_set("du rg tree")
FIND_TESTS = name_set(
    "-P -D -amin -anewer -atime -cmin -cnewer -ctime -daystart -depth -empty "
    "-executable -false -fstype -gid -group -iname -ilname -inum -ipath -iregex "
    "-links -lname -ls -maxdepth -mindepth -mmin -mount -mtime -name -newer -nogroup "
    "-nouser -o -or -a -and -not -path -perm -print -print0 -printf -prune -quit "
    "-readable -regex -regextype -samefile -size -true -type -uid -user -wholename "
    "-writable -xdev -xtype"
)
VERSION_WORDS: dict[str, tuple[str, ...]] = {
    "go": ("version",),
    "java": ("-version", "--version"),
    "node": ("--version", "-v"),
    "npm": ("--version", "-v"),
    "python": ("--version", "-V"),
    "python3": ("--version", "-V"),
}
VERSION_PROGRAMS = name_set(
    "bash black bun cargo clang cmake composer curl deno docker dotnet eslint file "
    "find g++ gcc gh git go grep gradle helm java javac jq kubectl less ls lua make "
    "mvn mypy node npm perl php pip pip3 pnpm poetry prettier psql pyright pytest "
    "python python3 rg rsync ruby ruff rustc rustup sed sqlite3 tar terraform tmux "
    "tsc uv vim wget yarn"
)
