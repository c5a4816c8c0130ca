"""Permission rules for shell lines: the text inside `bash(...)`, and entries of old deny lists.

`git status:*` matches commands that start with these words, `npm run test` exactly these words, `*`
anything. To deny or ask, a rule matches broadly: its words anywhere, flags in any order and
spelling. To allow, it matches strictly, and every command of the line must be covered.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .commands import (
    ShellWord,
    SimpleCommand,
    UnreadableCommandError,
    get_base_name,
    split_name_set,
)
from .flags import find_flags, has_same_flag, is_flag_word
from .parser import parse_commands
from .programs import INTERPRETERS, SHELLS

# Wrappers that do not change what the inner command can do. Other wrappers need a rule.
TRANSPARENT_WRAPPERS = split_name_set("command env ionice nice nohup stdbuf time timeout")
SAFE_VARIABLES = re.compile(
    r"LANG|LANGUAGE|LC_\w+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|CI|PYTHONUNBUFFERED"
    r"|PYTHONDONTWRITEBYTECODE|RUST_BACKTRACE|RUST_LOG|NODE_ENV|DEBUG|VERBOSE"
)
SYSTEM_DIRECTORIES = split_name_set("/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin")
# How code of other languages starts programs. Code is searched for the name of a denied program
# only if its pattern matches; code for interpreters not listed here is always searched.
STARTER_PATTERNS = {
    "awk": re.compile(r"system|\||getline"),
    "sed": re.compile(r"(?:^|[;{}\n\d$/])\s*e\b|([^\w\s\\])\w*e\w*(?:$|[;}\s])"),
    "vim": re.compile(r"!|system"),
}
STARTER_PATTERNS |= {
    "gawk": STARTER_PATTERNS["awk"],
    "mawk": STARTER_PATTERNS["awk"],
    "nawk": STARTER_PATTERNS["awk"],
}
STARTER_PATTERNS |= dict.fromkeys(
    ("vi", "nvim", "ex", "ed", "view", "emacs"), STARTER_PATTERNS["vim"]
)


@dataclass(frozen=True, slots=True)
class ShellRule:
    kind: Literal["any", "exact", "prefix"]
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = shlex.join(self.words)
        return {"any": "*", "exact": text, "prefix": f"{text}:*"}[self.kind]


def parse_shell_rule(text: str) -> ShellRule:
    """Raises ValueError with a message for an invalid rule."""
    stripped = text.strip()
    if stripped == "*":
        return ShellRule("any")
    is_prefix = stripped.endswith(":*")
    body = stripped.removesuffix(":*")
    try:
        lexer = shlex.shlex(body, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = tuple(lexer)
    except ValueError:
        raise ValueError(f"The rule {text!r} has an open quote; close it.") from None
    if not words:
        raise ValueError("A shell rule is empty; write a command such as `git status:*`.")
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"|\\.", "", body)
    if re.search(r"[;&|<>()`$\n]", unquoted):
        raise ValueError(
            f"The rule {text!r} is more than one command; write one rule for each simple command."
        )
    if re.search(r"[*?]", unquoted):
        raise ValueError(
            f"The rule {text!r} has a pattern inside; write `:*` at the end, or quote it."
        )
    if "=" in words[0]:
        raise ValueError(f"The rule {text!r} starts with an assignment; start with a program.")
    return ShellRule("prefix" if is_prefix else "exact", words)


def is_deny_entry(text: str) -> bool:
    """Whether a text is a valid entry of `[hooks.bash] deny`: a program and words of its
    arguments."""
    return bool(text.strip()) and not re.search(r"[;&|<>()`$'\"\\\n]", text)


def find_denied_entry(line: str, deny: Sequence[str]) -> str | None:
    """Return the first entry of a deny list that matches something the line would run.

    Raises UnreadableCommandError if that is not clear.
    """
    if not deny:
        return None
    commands = parse_commands(line)
    unreadable: UnreadableCommandError | None = None
    for entry in deny:
        try:
            if matches_any_command(ShellRule("prefix", tuple(entry.split())), commands):
                return entry
        except UnreadableCommandError as error:
            unreadable = error
    if unreadable is not None:
        raise unreadable
    return None


def matches_any_command(rule: ShellRule, commands: Sequence[SimpleCommand]) -> bool:
    """Whether a deny or ask rule matches any of the commands. Raises UnreadableCommandError if
    that is only known at run time."""
    if rule.kind == "any":
        return bool(commands)
    program, wanted = get_base_name(rule.words[0]), rule.words[1:]
    if any(matches_certainly(program, wanted, command) for command in commands):
        return True
    for command in commands:
        if name := next(command.code_assignments(), None):
            raise UnreadableCommandError(f"{name} can make it run more than it says")
        if command.program == program and may_match(wanted, command):
            raise UnreadableCommandError(f"an argument of {program} is only known at run time")
    return False


def matches_certainly(program: str, wanted: Sequence[str], command: SimpleCommand) -> bool:
    if command.program == program:
        return not find_missing_words(wanted, command)
    return mentions_program(program, wanted, command)


def find_missing_words(wanted: Sequence[str], command: SimpleCommand) -> list[str]:
    arguments = [word.text for word in command.words if word.is_literal]
    flags = find_flags(command.program, arguments)
    return [
        word
        for word in wanted
        if word not in arguments and not has_same_flag(command.program, word, arguments, flags)
    ]


def may_match(wanted: Sequence[str], command: SimpleCommand) -> bool:
    """Whether words that are only known at run time could supply all missing words."""
    positional = sum(not word.startswith("-") for word in wanted)
    return all(
        any(
            not word.is_literal and may_supply_word(text, at, command.words, positional)
            for at, word in enumerate(command.words)
        )
        for text in find_missing_words(wanted, command)
    )


def may_supply_word(text: str, at: int, words: Sequence[ShellWord], positional: int) -> bool:
    word, before = words[at], [earlier.text for earlier in words[:at]]
    if text.startswith("-"):
        if "--" in before or not word.may_be_option():
            return False
        is_cluster = is_flag_word(text) and re.fullmatch(r"-?[\w\0]*", word.text)
        return word.may_split or bool(is_cluster) or word.may_equal(text)
    # A word after an option could be its value; any other word is a positional argument.
    certain = sum(
        not earlier.startswith("-") and not (number and before[number - 1].startswith("-"))
        for number, earlier in enumerate(before)
    )
    return certain < positional and word.may_equal(text)


def mentions_program(program: str, wanted: Sequence[str], command: SimpleCommand) -> bool:
    """Whether the code given to an interpreter mentions the program."""
    name = re.sub(r"[\d.]+$", "", command.program)
    if not {command.program, name} & INTERPRETERS and command.program not in STARTER_PATTERNS:
        return False
    texts = [word.text for word in command.words]
    texts += [redirect.target.text for redirect in command.redirects if redirect.is_text]
    text = "\n".join(texts)
    starter = STARTER_PATTERNS.get(command.program)
    if starter is not None and not starter.search(text):
        return False
    names = [program, *(word for word in wanted if not word.startswith("-"))]
    return all(re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) for word in names)


def covers_all_commands(
    rules: Sequence[ShellRule],
    commands: Sequence[SimpleCommand],
    is_harmless: Callable[[SimpleCommand], bool] | None = None,
) -> bool:
    """Whether the rules allow every command. `is_harmless` may accept further commands."""
    if any(rule.kind == "any" for rule in rules):
        return True
    known = [command for command in commands if not command.is_guess]
    wrapping = {id(command.parent) for command in known}
    return bool(known) and all(
        is_plain_command(command)
        and (
            command.program == ""
            or is_covered_command(rules, command)
            or is_transparent_wrapper(command, id(command) in wrapping)
            or (is_harmless is not None and is_harmless(command))
        )
        for command in known
    )


def are_safe_variables(names: Sequence[str]) -> bool:
    """Whether variables of these names change nothing about which programs run."""
    return all(SAFE_VARIABLES.fullmatch(name) for name in names)


def is_plain_command(command: SimpleCommand) -> bool:
    """Whether a command has only literal words, safe assignments, and writes no file."""
    return (
        command.is_literal
        and are_safe_variables([name for name, _ in command.assignments])
        and not any(redirect.writes_file for redirect in command.redirects)
    )


def is_covered_command(rules: Sequence[ShellRule], command: SimpleCommand) -> bool:
    """Whether a rule matches the command, or an exact rule matches a wrapper around it."""
    if any(matches_strictly(rule, command) for rule in rules):
        return True
    outer = command.parent
    while outer is not None:
        if any(rule.kind == "exact" and matches_strictly(rule, outer) for rule in rules):
            return True
        outer = outer.parent
    return False


def matches_strictly(rule: ShellRule, command: SimpleCommand) -> bool:
    directory = command.path.rpartition("/")[0]
    if command.path != rule.words[0] and (
        command.program != rule.words[0] or (directory and directory not in SYSTEM_DIRECTORIES)
    ):
        return False
    words = tuple(word.text for word in command.words)
    wanted = rule.words[1:]
    return words == wanted if rule.kind == "exact" else words[: len(wanted)] == wanted


def is_transparent_wrapper(command: SimpleCommand, has_inner: bool) -> bool:
    if not has_inner or "/" in command.path:
        return False
    if command.program in SHELLS:
        return len(command.words) == 2 and command.words[0].text == "-c"
    return command.program in TRANSPARENT_WRAPPERS
