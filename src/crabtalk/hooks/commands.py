"""What a command line would run, and whether a deny list names it.

A guard rail, not a wall. It sees through quoting, lists, pipes, subshells, substitutions and the
usual wrappers (env, sudo, xargs, sh -c, find -exec), and refuses what it cannot read. It does not
see what only happens at run time: the text of a script, what is piped into a shell, the value of a
variable among the arguments, an interpreter's own ways to start a program. The wall is the sandbox.
"""

import re
from collections.abc import Iterator, Sequence

from .shell_words import UnreadableError, simple_commands

SHELLS = {"ash", "bash", "dash", "ksh", "sh", "su", "zsh"}
# Programs that run the rest of their arguments, and those of their options that take a value.
WRAPPERS: dict[str, set[str]] = {
    "builtin": set(),
    "busybox": set(),
    "command": set(),
    "doas": {"-C", "-u"},
    "env": {"-C", "-u", "--chdir", "--unset"},
    "exec": {"-a"},
    "ionice": {"-c", "-n", "-p"},
    "nice": {"-n"},
    "nohup": set(),
    "setsid": set(),
    "stdbuf": {"-e", "-i", "-o"},
    "sudo": {"-C", "-D", "-R", "-T", "-U", "-g", "-h", "-p", "-r", "-t", "-u", "--group", "--user"},
    "time": {"-f", "-o"},
    "timeout": {"-k", "-s", "--kill-after", "--signal"},
    "xargs": {"-E", "-I", "-L", "-P", "-a", "-d", "-n", "-s", "--arg-file", "--delimiter"},
}
POSITIONAL = {"timeout": 1}  # what such a program wants for itself before the command
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
DEEPEST = 16

Command = tuple[str, list[str]]  # the program's name, without directories, and its arguments


def denied(command: str, deny: Sequence[str]) -> str | None:
    """The entry of a deny list that names something the command would run.

    Raises UnreadableError if that cannot be told.
    """
    entries = [(entry, entry.split()) for entry in deny]
    if not entries:
        return None
    for program, arguments in run_by(command):
        for entry, words in entries:
            if program == name_of(words[0]) and has_all(words[1:], arguments):
                return entry
        if is_only_known_later(program):
            raise UnreadableError(f"which program {program!r} is, is only known when it runs")
    return None


def is_entry(text: str) -> bool:
    """Whether a deny list can hold it: a program, and words that its arguments have."""
    return bool(text.strip()) and not re.search(r"[;&|<>()`$'\"\\\n]", text)


def run_by(command: str, depth: int = 0) -> Iterator[Command]:
    """All a command line would run, wrappers as well as what is inside them."""
    if depth > DEEPEST:
        raise UnreadableError("its commands are nested too deeply")
    for words in simple_commands(command):
        yield from unwrapped(words, depth)


def unwrapped(words: Sequence[str], depth: int) -> Iterator[Command]:
    if depth > DEEPEST:
        raise UnreadableError("its commands are nested too deeply")
    start = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    if start == len(words):
        return
    program, arguments = name_of(words[start]), list(words[start + 1 :])
    yield program, arguments
    if program in SHELLS:
        if (script := script_of(arguments)) is not None:
            yield from run_by(script, depth + 1)
    elif program == "eval":
        yield from run_by(" ".join(arguments), depth + 1)
    elif program == "find":
        for command in run_by_find(arguments):
            yield from unwrapped(command, depth + 1)
    elif program == "env" and (text := split_string(arguments)) is not None:
        yield from run_by(text, depth + 1)
    elif program in WRAPPERS and not is_question(program, arguments):
        yield from unwrapped(inside(program, arguments), depth + 1)


def run_by_find(arguments: Sequence[str]) -> Iterator[list[str]]:
    command: list[str] | None = None
    for word in arguments:
        if command is None:
            command = [] if word in ("-exec", "-execdir", "-ok", "-okdir") else None
        elif word in (";", "+"):
            yield command
            command = None
        else:
            command.append(word)
    if command:
        yield command


def inside(program: str, arguments: list[str]) -> list[str]:
    """The command among a wrapper's arguments."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        if arguments[at] == "--":
            at += 1
            break
        at += 2 if arguments[at] in WRAPPERS[program] else 1
    return arguments[at + POSITIONAL.get(program, 0) :]


def is_question(program: str, arguments: list[str]) -> bool:
    """`command -v curl` only asks where it is."""
    return program == "command" and bool(arguments) and arguments[0] in ("-v", "-V")


def script_of(arguments: Sequence[str]) -> str | None:
    """What a shell was given with -c."""
    is_script = takes_value = False
    for word in arguments:
        if takes_value:
            takes_value = False
        elif word in ("--rcfile", "--init-file") or re.fullmatch(r"[-+]\w*[oO]", word):
            takes_value = True
            is_script = is_script or ("c" in word.lstrip("-+") and not word.startswith("--"))
        elif word == "--command":
            is_script = True
        elif word.startswith("--command="):
            return word.partition("=")[2]
        elif word.startswith(("-", "+")):
            is_script = is_script or (not word.startswith("--") and "c" in word)
        elif is_script:
            return word
    return None


def split_string(arguments: Sequence[str]) -> str | None:
    """The command line in `env -S "..."`."""
    for number, word in enumerate(arguments):
        if found := re.fullmatch(r"(?s)(-\w*S|--split-string)=?(.*)", word):
            return " ".join([found[2], *arguments[number + 1 :]])
    return None


def name_of(word: str) -> str:
    return word.rpartition("/")[2]


def is_only_known_later(program: str) -> bool:
    # The three are tests, and the last pattern of a `case`.
    return program not in ("[", "[[", "*") and any(sign in program for sign in "$`*?[{")


def has_all(wanted: Sequence[str], arguments: Sequence[str]) -> bool:
    flags = set("".join(word[1:] for word in arguments if re.fullmatch(r"-\w+", word)))
    return all(has(word, arguments, flags) for word in wanted)


def has(word: str, arguments: Sequence[str], flags: set[str]) -> bool:
    if word in arguments:
        return True
    if word.startswith("--"):
        return any(argument.startswith(f"{word}=") for argument in arguments)
    # Flags come in any order, together or one by one. Longer words after a single dash are
    # options of their own, as find has them.
    return bool(re.fullmatch(r"-\w{1,3}", word)) and flags.issuperset(word[1:])
