"""The programs that only read, with the options that each may have."""

from .commands import split_name_set
from .options import OptionSpec, split_names

HARMLESS_PROGRAMS: dict[str, OptionSpec] = {
    "basename": OptionSpec("az", "s", long=split_names("multiple suffix= zero")),
    "cat": OptionSpec(
        "AbeEnstTuv", long=split_names("show-all number-nonblank show-ends number show-tabs")
    ),
    "cksum": OptionSpec(),
    "cmp": OptionSpec("bls", "n", long=split_names("bytes= print-bytes verbose quiet silent")),
    "column": OptionSpec("tx", "sc", long=split_names("table separator=")),
    "comm": OptionSpec(
        "123z", long=split_names("check-order nocheck-order total output-delimiter=")
    ),
    "cut": OptionSpec(
        "snz",
        "bcdf",
        long=split_names(
            "bytes= characters= delimiter= fields= only-delimited complement output-delimiter="
        ),
    ),
    "date": OptionSpec(
        "uR",
        "d",
        optional="I",
        long=split_names("date= utc universal iso-8601? rfc-3339= rfc-email"),
    ),
    "df": OptionSpec(
        "ahHiklPT",
        "tx",
        long=split_names("all human-readable si inodes local portability print-type total"),
    ),
    "diff": OptionSpec(
        "abBcdeinpqstuwyN0123456789",
        "CUFIxW",
        long=split_names(
            "brief unified? context? side-by-side ignore-case ignore-all-space "
            "ignore-blank-lines new-file color? width= report-identical-files "
            "ignore-space-change exclude="
        ),
    ),
    "dirname": OptionSpec("z", long=("zero",)),
    "du": OptionSpec(
        "abchkmsSx0",
        "dt",
        long=split_names(
            "all apparent-size bytes total human-readable summarize max-depth= separate-dirs "
            "one-file-system threshold= exclude="
        ),
    ),
    "echo": OptionSpec("neE"),
    "expr": OptionSpec(),
    "false": OptionSpec(),
    "file": OptionSpec("bhikLNrs0", "F", long=split_names("brief mime mime-type mime-encoding")),
    "fold": OptionSpec("bs", "w", long=split_names("bytes spaces width=")),
    "grep": OptionSpec(
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
    "head": OptionSpec(
        "qvz0123456789",
        "cn",
        long=split_names("bytes= lines= quiet silent verbose zero-terminated"),
    ),
    "hostname": OptionSpec("sfdiI"),
    "id": OptionSpec("agGnruz"),
    "jq": OptionSpec(
        "nrcsSeajMCR",
        "",
        long=split_names(
            "null-input raw-output compact-output slurp sort-keys exit-status ascii-output "
            "join-output tab monochrome-output color-output raw-input"
        ),
    ),
    "ls": OptionSpec(
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
    "md5sum": OptionSpec("bt"),
    "nl": OptionSpec("p", "bdfhilnsvw"),
    "nproc": OptionSpec(long=("all",)),
    "od": OptionSpec("abcdfilosxv", "ANjtw"),
    "paste": OptionSpec("sz", "d", long=split_names("serial delimiters=")),
    "printf": OptionSpec(),
    "pwd": OptionSpec("LP"),
    "readlink": OptionSpec("efmnqsvz", long=split_names("canonicalize canonicalize-existing")),
    "realpath": OptionSpec(
        "emLPqsz",
        long=split_names("canonicalize-existing canonicalize-missing relative-to= relative-base="),
    ),
    "rg": OptionSpec(
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
    "seq": OptionSpec("w", "fs"),
    "sha1sum": OptionSpec("bt"),
    "sha256sum": OptionSpec("bt"),
    "sleep": OptionSpec(),
    "sort": OptionSpec(
        "bcCdfghiMmnrRsuVz",
        "ktS",
        long=split_names(
            "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort "
            "human-numeric-sort month-sort numeric-sort reverse key= field-separator= stable "
            "unique version-sort zero-terminated sort= check?"
        ),
    ),
    "stat": OptionSpec(
        "LftZ", "c", long=split_names("dereference file-system format= printf= terse")
    ),
    "strings": OptionSpec("afw", "net"),
    "tac": OptionSpec("br", "s"),
    "tail": OptionSpec(
        "qvz0123456789",
        "cn",
        long=split_names("bytes= lines= quiet silent verbose zero-terminated"),
    ),
    "test": OptionSpec("abcdefghknoprstuvwxzGLNOSeqntlg"),
    "tr": OptionSpec("cCdst", long=split_names("complement delete squeeze-repeats truncate-set1")),
    "tree": OptionSpec(
        "adfhipstuvrDFgACnqNQJXUxc",
        "LPI",
        long=split_names("noreport dirsfirst prune gitignore du si filelimit= charset="),
    ),
    "true": OptionSpec(),
    "tty": OptionSpec("s"),
    "type": OptionSpec("aptPf"),
    "uname": OptionSpec(
        "asnrvmpio", long=split_names("all kernel-name nodename kernel-release machine")
    ),
    "uniq": OptionSpec(
        "cdDiuz",
        "fsw",
        long=split_names("count repeated ignore-case unique skip-fields= skip-chars= check-chars="),
    ),
    "uptime": OptionSpec("ps"),
    "wc": OptionSpec("cmlLw", long=split_names("bytes chars lines max-line-length words total=")),
    "whereis": OptionSpec("bms"),
    "which": OptionSpec("as"),
    "whoami": OptionSpec(),
    "xxd": OptionSpec("bEeipu", "cglos"),
}
PROGRAMS_WITHOUT_PATHS = split_name_set(
    "basename date dirname echo expr false hostname id nproc printf pwd seq sleep tr "
    "true tty type uname uptime whereis which whoami"
)
# Further arguments would be a file to write, or change the system.
MAX_ARGUMENTS = {"date": 1, "hostname": 0, "uniq": 1, "xxd": 1}
PROGRAMS_WITH_PATTERN = split_name_set("grep jq rg")
RECURSIVE_PROGRAMS = split_name_set("du rg tree")
FIND_TESTS = split_name_set(
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
VERSION_PROGRAMS = split_name_set(
    "bash black bun cargo clang cmake composer curl deno docker dotnet eslint file "
    "find g++ gcc gh git go grep gradle helm java javac jq kubectl less ls lua make "
    "mvn mypy node npm perl php pip pip3 pnpm poetry prettier psql pyright pytest "
    "python python3 rg rsync ruby ruff rustc rustup sed sqlite3 tar terraform tmux "
    "tsc uv vim wget yarn"
)
