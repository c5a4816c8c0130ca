"""The options of programs that run other programs, and where the inner command begins.

The meaning of options that are not in these tables is not guessed: every word then counts as a
possible start of the command (see wrappers).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .commands import ShellWord, UnreadableCommandError


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """`flags` are single letters without a value, `values` letters with one, `optional` letters
    whose value is attached or missing. In `long` a name ends in = when it takes a value and in ?
    when the value can be missing. `positional` words come before the command."""

    flags: str = ""
    values: str = ""
    optional: str = ""
    long: tuple[str, ...] = ()
    positional: int = 0
    takes_assignments: bool = False
    # With one of these options no command of the line runs.
    without_command: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    values: tuple[tuple[str, ShellWord], ...]
    rest: tuple[ShellWord, ...]
    names: frozenset[str] = field(default_factory=frozenset)

    def get(self, *names: str) -> ShellWord | None:
        return next((value for name, value in reversed(self.values) if name in names), None)


class UnknownOptionError(Exception):
    """An option that the tables do not have."""


def split_names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


HELP_OPTIONS = ("help", "version")
WRAPPER_OPTIONS: dict[str, OptionSpec] = {
    "builtin": OptionSpec(),
    "busybox": OptionSpec(),
    "chroot": OptionSpec(
        long=split_names("groups= userspec= skip-chdir help version"), positional=1
    ),
    "chrt": OptionSpec(
        "abdfioramRhvV",
        "TPD",
        long=split_names(
            "batch deadline ext fifo idle other rr all-tasks max reset-on-fork verbose "
            "sched-runtime= sched-period= sched-deadline= help version pid"
        ),
        positional=1,
        without_command=frozenset({"m", "max", "p", "pid"}),
    ),
    "command": OptionSpec("pvV", without_command=frozenset("vV")),
    "coproc": OptionSpec(),
    "doas": OptionSpec("Lns", "aCu", without_command=frozenset("L")),
    "env": OptionSpec(
        "i0v-",
        "uCSa",
        long=split_names(
            "ignore-environment null unset= chdir= split-string= block-signal? "
            "default-signal? ignore-signal? list-signal-handling debug argv0= help version"
        ),
        takes_assignments=True,
    ),
    "exec": OptionSpec("cl", "a"),
    "flock": OptionSpec(
        "sexnouFvhV",
        "wEc",
        long=split_names(
            "shared exclusive unlock nonblock nb timeout= wait= conflict-exit-code= close "
            "command= no-fork verbose fcntl help version"
        ),
        positional=1,
    ),
    "ionice": OptionSpec(
        "thV",
        "cnpPu",
        long=split_names("class= classdata= pid= pgid= ignore uid= help version"),
        without_command=frozenset({"p", "P", "u", "pid", "pgid", "uid"}),
    ),
    "nice": OptionSpec("0123456789", "n", long=split_names("adjustment= help version")),
    "nohup": OptionSpec(long=HELP_OPTIONS),
    "runuser": OptionSpec(
        "flmpPThV-",
        "ucgGsw",
        long=split_names(
            "user= command= fast group= supp-group= login preserve-environment shell= "
            "session-command= pty no-pty whitelist-environment= help version"
        ),
    ),
    "script": OptionSpec(
        "aefqhV",
        "cEBIOTmLo",
        optional="t",
        long=split_names(
            "append command= echo= flush force quiet return log-in= log-io= log-out= "
            "log-timing= logging-format= output-limit= timing? help version"
        ),
    ),
    "setpriv": OptionSpec(
        "dhV",
        long=split_names(
            "dump nnp no-new-privs ambient-caps= inh-caps= bounding-set= ruid= euid= rgid= "
            "egid= reuid= regid= clear-groups keep-groups init-groups groups= list-caps "
            "securebits= pdeathsig= ptracer= selinux-label= apparmor-profile= "
            "landlock-access= landlock-rule= seccomp-filter= reset-env help version"
        ),
    ),
    "setsid": OptionSpec("cfwhV", long=split_names("ctty fork wait help version")),
    "stdbuf": OptionSpec("", "ioe", long=split_names("input= output= error= help version")),
    "strace": OptionSpec(
        "cCdDfFhiknNqrtTvVwxXyYzZ",
        "abeEIoOpPsSuU",
        without_command=frozenset("p"),
    ),
    "su": OptionSpec(
        "flmpPThV-",
        "cgGsw",
        long=split_names(
            "command= fast group= supp-group= login preserve-environment shell= "
            "session-command= pty no-pty whitelist-environment= help version"
        ),
    ),
    "sudo": OptionSpec(
        "ABbEeHiKklNnPSsVv",
        "CDghpRrTtUu",
        long=split_names(
            "askpass bell background close-from= chdir= preserve-env? edit group= set-home "
            "help host= login remove-timestamp reset-timestamp list no-update non-interactive "
            "preserve-groups prompt= chroot= role= stdin shell type= command-timeout= "
            "other-user= user= version validate"
        ),
        takes_assignments=True,
        without_command=frozenset({"K", "e", "edit", "l", "list", "v", "validate", "V", "version"}),
    ),
    "taskset": OptionSpec(
        "achpV",
        long=split_names("all-tasks pid cpu-list help version"),
        positional=1,
        without_command=frozenset({"p", "pid"}),
    ),
    "time": OptionSpec(
        "apqvV",
        "fo",
        long=split_names("append format= output= portability quiet verbose help version"),
    ),
    "timeout": OptionSpec(
        "fpv",
        "ks",
        long=split_names("foreground kill-after= preserve-status signal= verbose help version"),
        positional=1,
    ),
    "unshare": OptionSpec(
        "mupiCTrfUcnhV",
        "RwSGl",
        long=split_names(
            "mount? uts? ipc? net? pid? user? cgroup? time? fork map-user= map-group= "
            "map-root-user map-current-user map-auto map-users= map-groups= owner= "
            "kill-child? mount-proc? mount-binfmt? propagation= setgroups= keep-caps root= "
            "wd= setuid= setgid= monotonic= boottime= load-interp= help version"
        ),
    ),
    "watch": OptionSpec(
        "bcCegptwxhvrf",
        "nqs",
        optional="d",
        long=split_names(
            "beep color no-color differences? errexit chgexit interval= precise no-rerun "
            "no-title equexit= exec no-wrap no-linenumber shotsdir= follow help version"
        ),
    ),
    "xargs": OptionSpec(
        "0rtpxo",
        "EILPadns",
        optional="eil",
        long=split_names(
            "null arg-file= delimiter= eof? replace? max-lines? max-args= open-tty max-procs= "
            "interactive process-slot-var= no-run-if-empty max-chars= show-limits verbose "
            "exit help version"
        ),
    ),
}
WRAPPER_OPTIONS["toybox"] = WRAPPER_OPTIONS["busybox"]
SSH_OPTIONS = OptionSpec("46AaCfGgKkMNnqsTtVvXxYy", "BbcDEeFIiJLlmOopQRSWwP", positional=1)


def parse_options(
    wrapper: OptionSpec, words: Sequence[ShellWord], permute: bool = False
) -> ParsedOptions:
    """Split words into options and the rest.

    Without `permute` the options end at the first other word, as in programs that run commands.
    Raises UnknownOptionError, and UnreadableCommandError for a word of which only the run time
    shows whether it is an option.
    """
    values: list[tuple[str, ShellWord]] = []
    names: set[str] = set()
    rest: list[ShellWord] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.is_literal and word.may_be_option():
            raise UnreadableCommandError("an option in it is only known at run time")
        text = word.text
        if text == "--":
            break
        if not text.startswith("-") or (text == "-" and "-" not in wrapper.flags):
            if not permute:
                at -= 1
                break
            rest.append(word)
            continue
        if not word.is_literal:
            word = ShellWord(text, word.may_split)
        if text.startswith("--"):
            name, takes, value = parse_long_option(wrapper, text)
        else:
            name, takes, value = parse_short_options(wrapper, text[1:], names)
        names.add(name)
        if takes and value is None:
            if at >= len(words):
                raise UnknownOptionError
            values.append((name, words[at]))
            at += 1
        elif value is not None:
            values.append((name, ShellWord(value)))
    return ParsedOptions(tuple(values), (*rest, *words[at:]), frozenset(names))


def parse_long_option(wrapper: OptionSpec, text: str) -> tuple[str, bool, str | None]:
    """Parse a long option, which may be abbreviated to a unique prefix."""
    name, equals, value = text[2:].partition("=")
    options = {option.rstrip("=?"): option[-1:] for option in wrapper.long}
    matches = [name] if name in options else [key for key in options if key.startswith(name)]
    if len(matches) != 1 or (equals and options[matches[0]] not in "=?"):
        raise UnknownOptionError
    return matches[0], options[matches[0]] == "=", value if equals else None


def parse_short_options(
    wrapper: OptionSpec, letters: str, names: set[str]
) -> tuple[str, bool, str | None]:
    for number, letter in enumerate(letters):
        if letter in wrapper.values:
            return letter, True, letters[number + 1 :] or None
        if letter in wrapper.optional:
            return letter, False, letters[number + 1 :] or None
        if letter not in wrapper.flags:
            raise UnknownOptionError
        names.add(letter)
    return letters[-1:] or "-", False, None
