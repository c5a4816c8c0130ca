"""Recognizes shell lines that only read inside the working directory: they run without approval.

Strict on purpose: programs and their options must be on a list, and every argument that could be a
path must, with links resolved, lie in the working directory and outside the daemon's home.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from .commands import SimpleCommand, UnreadableCommandError
from .harmless_git import is_harmless_git
from .harmless_options import (
    FIND_TESTS,
    HARMLESS_PROGRAMS,
    MAX_ARGUMENTS,
    PROGRAMS_WITH_PATTERN,
    PROGRAMS_WITHOUT_PATHS,
    RECURSIVE_PROGRAMS,
    VERSION_PROGRAMS,
    VERSION_WORDS,
)
from .options import UnknownOptionError, parse_options
from .parser import parse_commands


def is_harmless_line(line: str, cwd: Path, home: Path) -> bool:
    """Whether every command of the line is on the list. It accesses the file system, so call it in
    a thread."""
    try:
        commands = parse_commands(line)
    except UnreadableCommandError:
        return False
    return bool(commands) and all(is_harmless_command(command, cwd, home) for command in commands)


def is_harmless_command(command: SimpleCommand, cwd: Path, home: Path) -> bool:
    if (
        not command.is_literal
        or command.assignments
        or command.wrapper_programs
        or command.is_guess
        or "/" in command.path
    ):
        return False
    for redirect in command.redirects:
        if redirect.writes_file or not redirect.target.is_literal:
            return False
        if redirect.operator in ("<", "n<") and not is_inside(redirect.target.text, cwd, home):
            return False
    try:
        return has_harmless_arguments(command, cwd, home)
    except (UnknownOptionError, UnreadableCommandError, OSError, RuntimeError, ValueError):
        return False


def has_harmless_arguments(command: SimpleCommand, cwd: Path, home: Path) -> bool:
    program, words = command.program, [word.text for word in command.words]
    if len(words) == 1 and words[0] in VERSION_WORDS.get(program, ("--version",)):
        return program in VERSION_PROGRAMS
    if program == "git":
        return is_harmless_git(words, cwd) and are_all_inside(list_git_paths(words), cwd, home)
    if program == "find":
        return is_harmless_find(words, cwd, home)
    if program == "command":
        return len(words) == 2 and words[0] in ("-v", "-V") and not words[1].startswith("-")
    if program == "[":
        return are_all_inside(words, cwd, home)
    options = HARMLESS_PROGRAMS.get(program)
    if options is None:
        return False
    parsed = parse_options(options, command.words, permute=True)
    if len(parsed.rest) > MAX_ARGUMENTS.get(program, len(parsed.rest)):
        return False
    if program == "date":
        return all(word.text.startswith("+") for word in parsed.rest)
    if program == "jq" and re.search(r"env|import|include|input_", "".join(words), re.IGNORECASE):
        return False  # prints the environment, or reads further files
    if program in PROGRAMS_WITHOUT_PATHS:
        return True
    paths = [word.text for word in parsed.rest]
    if program in PROGRAMS_WITH_PATTERN and not parsed.names & {
        "e",
        "f",
        "regexp",
        "file",
        "from-file",
    }:
        paths = paths[1:]
    paths += [value.text for name, value in parsed.values if name not in ("e", "regexp")]
    is_recursive = program in RECURSIVE_PROGRAMS or bool(
        parsed.names & {"r", "R", "recursive", "dereference-recursive"}
    )
    if is_recursive and not has_path_argument(parsed.rest, program):
        paths.append(".")
    return are_all_inside(paths, cwd, home, is_recursive)


def has_path_argument(rest: Sequence[object], program: str) -> bool:
    return len(rest) > (1 if program in PROGRAMS_WITH_PATTERN else 0)


def is_harmless_find(words: Sequence[str], cwd: Path, home: Path) -> bool:
    """Whether find has only tests, and no action that runs, deletes or writes."""
    paths = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+[a-zA-Z]?", word):
            if word not in FIND_TESTS:
                return False
        else:
            paths.append(word)
    if not words or words[0].startswith(("-", "(", "!")):
        paths.append(".")
    return are_all_inside(paths, cwd, home, is_recursive=True)


def list_git_paths(words: Sequence[str]) -> list[str]:
    """Return arguments that could be paths. In `HEAD:path` the path is inside the repository."""
    return [word.partition("=")[2] if word.startswith("-") else word for word in words[1:]]


def are_all_inside(paths: Sequence[str], cwd: Path, home: Path, is_recursive: bool = False) -> bool:
    return all(is_inside(path, cwd, home, is_recursive) for path in paths)


def is_inside(text: str, cwd: Path, home: Path, is_recursive: bool = False) -> bool:
    """Whether a path stays in the working directory and does not reach the daemon's home."""
    root, secret = cwd.resolve(), home.resolve()
    path = (root / text).resolve()
    if not path.is_relative_to(root) or path.is_relative_to(secret):
        return False
    return not (is_recursive and secret.is_relative_to(path))
