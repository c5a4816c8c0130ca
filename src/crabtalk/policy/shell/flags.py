"""Recognizes flags of a command in all their spellings: -rf, -r -f, --recursive --force, --rec."""

import re
from collections.abc import Sequence

RECURSIVE_FLAGS = {"r": "recursive", "R": "recursive"}
# Flag letters and their long names, for programs that often are in deny lists.
LONG_NAMES: dict[str, dict[str, str]] = {
    "chgrp": {
        "R": "recursive",
        "f": "silent",
        "h": "no-dereference",
        "v": "verbose",
        "c": "changes",
    },
    "chmod": {"R": "recursive", "f": "silent", "v": "verbose", "c": "changes"},
    "chown": {
        "R": "recursive",
        "f": "silent",
        "h": "no-dereference",
        "v": "verbose",
        "c": "changes",
    },
    "cp": RECURSIVE_FLAGS
    | {"f": "force", "a": "archive", "l": "link", "s": "symbolic-link", "u": "update"},
    "curl": {"o": "output", "O": "remote-name", "T": "upload-file", "d": "data", "X": "request"},
    "docker": {"f": "force", "a": "all", "v": "volumes"},
    "du": {"a": "all", "s": "summarize", "h": "human-readable"},
    "git": {"f": "force", "d": "delete", "D": "delete", "a": "all", "n": "no-verify"},
    "grep": RECURSIVE_FLAGS | {"i": "ignore-case", "v": "invert-match", "f": "file"},
    "ln": {"f": "force", "s": "symbolic"},
    "ls": {"a": "all", "R": "recursive"},
    "mkdir": {"p": "parents", "m": "mode"},
    "mv": {"f": "force", "n": "no-clobber"},
    "rm": RECURSIVE_FLAGS
    | {"f": "force", "d": "dir", "v": "verbose", "i": "interactive", "I": "interactive"},
    "rmdir": {"p": "parents", "v": "verbose"},
    "rsync": {"r": "recursive", "a": "archive", "n": "dry-run"},
    "scp": {"R": "r"},
    "sed": {"i": "in-place", "e": "expression", "n": "quiet"},
    "shred": {"f": "force", "u": "remove", "z": "zero"},
    "tar": {"x": "extract", "c": "create", "f": "file", "P": "absolute-names"},
    "touch": {"a": "time", "c": "no-create"},
    "truncate": {"s": "size"},
    "wget": {"O": "output-document", "r": "recursive"},
}


def is_flag_word(word: str) -> bool:
    """Up to three letters after a dash are flags; longer words are single options, as in find."""
    return bool(re.fullmatch(r"-\w{1,3}", word))


def find_flags(program: str, arguments: Sequence[str]) -> set[str]:
    """Return the flags among arguments, by their long names where those are known."""
    names = LONG_NAMES.get(program, {})
    flags = set()
    for argument in arguments:
        if re.fullmatch(r"-\w+", argument):
            flags |= {names.get(letter, letter) for letter in argument[1:]}
        elif re.match(r"--\w", argument):
            prefix = argument[2:].partition("=")[0]
            flags |= {name for name in names.values() if name.startswith(prefix)}
    return flags


def has_same_flag(program: str, word: str, arguments: Sequence[str], flags: set[str]) -> bool:
    """Whether the arguments contain the flags of a rule's word in some other spelling."""
    names = LONG_NAMES.get(program, {})
    if word.startswith("--"):
        options = [argument.partition("=")[0] for argument in arguments if argument[:2] == "--"]
        is_abbreviated = any(len(option) > 2 and word.startswith(option) for option in options)
        return is_abbreviated or word[2:] in flags
    return is_flag_word(word) and flags >= {names.get(letter, letter) for letter in word[1:]}
