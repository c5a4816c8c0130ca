"""A TOML text taken apart: headers, keys, and what stands between them, each with its comments."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

Keys = tuple[str | int, ...]  # a number after the name of an array of tables says which


class TomlStatement(msgspec.Struct):
    """A header or a key with the comments right above it, or what stands between those."""

    text: str
    kind: Literal["header", "key", "between"]
    path: Keys
    section: Keys  # the table it stands in
    above: str = ""


# Strings are told apart so that nothing inside them is taken for a bracket, a comment or an end.
TOKEN = re.compile(
    r'''
    """ [^"\\]* (?: (?: \\. | "{1,2}(?!") ) [^"\\]* )* "{3,5}
    | \'\'\' [^']* (?: '{1,2}(?!') [^']* )* '{3,5}
    | " (?: \\. | [^"\\\n] )* "
    | ' [^'\n]* '
    | \# [^\n]*
    | [\[{] | [\]}] | \n
    ''',
    re.DOTALL | re.VERBOSE,
)
KEY_AND_EQUALS = re.compile(r"""(?:[^"'=]|"(?:\\.|[^"\\])*"|'[^']*')*=[ \t]*""")


def parse_statements(text: str) -> list[TomlStatement]:
    found: list[TomlStatement] = []
    above = ""
    section: Keys = ()
    counts: dict[Keys, int] = {}
    for statement in split_statements(text):
        bare = statement.strip()
        if bare.startswith("#"):
            above += statement
            continue
        if not bare:
            found.append(TomlStatement(above + statement, "between", section, section))
        elif bare.startswith("["):
            section = find_opened_table(statement, counts)
            detach_comments(found, section)
            found.append(TomlStatement(statement, "header", section, section, above))
        else:
            path = (*section, *parse_key(f"{text_before_value(statement)}0")[0])
            found.append(TomlStatement(statement, "key", path, section, above))
        above = ""
    if above:
        found.append(TomlStatement(above, "between", section, section))
    detach_comments(found, ())
    return found


def detach_comments(found: list[TomlStatement], following: Keys) -> None:
    """Comments that stand apart between a hook or server and the next outlive both."""
    for before, piece in zip(reversed(found[:-1]), reversed(found), strict=False):
        if not piece.kind == before.kind == "between":
            return
        if piece.text.strip() and piece.section[:2] != following[:2]:
            piece.path = piece.section = ()


def split_statements(text: str) -> Iterator[str]:
    depth = start = 0
    for token in TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "\n" and depth == 0:
            yield text[start : token.end()]
            start = token.end()
    if start < len(text):
        yield text[start:]


def parse_key(statement: str) -> tuple[list[str], Any]:
    """The parts of its only key, and what that holds."""
    keys: list[str] = []
    value: Any = tomllib.loads(statement)
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        keys.append(key)
    return keys, value


def text_before_value(statement: str) -> str:
    """A key, and all up to its value."""
    match = KEY_AND_EQUALS.match(statement)
    return match[0] if match else ""


def find_opened_table(header: str, counts: dict[Keys, int]) -> Keys:
    """The table a header opens. `counts` says how far each array of tables has come."""
    keys, value = parse_key(header)
    path: Keys = ()
    for key in keys[:-1]:
        path = (*path, key)
        path = (*path, counts[path]) if path in counts else path
    path = (*path, keys[-1])
    if isinstance(value, list):
        counts[path] = counts.get(path, -1) + 1
        path = (*path, counts[path])
    return path
