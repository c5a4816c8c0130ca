"""Splits a TOML text into statements: headers, keys and what is between them, with comments."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

Keys = tuple[str | int, ...]  # a number is the index in the array of tables before it


class TomlStatement(msgspec.Struct):
    """A header or a key with the comments right above it, or the text between two of those."""

    text: str
    kind: Literal["header", "key", "between"]
    path: Keys
    section: Keys  # the table it is in
    above: str = ""


# Strings are matched as a whole, so that nothing in them counts as a bracket, comment or line end.
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
    statements: list[TomlStatement] = []
    above = ""
    section: Keys = ()
    counts: dict[Keys, int] = {}
    for part in split_statements(text):
        stripped = part.strip()
        if stripped.startswith("#"):
            above += part
            continue
        if not stripped:
            statements.append(TomlStatement(above + part, "between", section, section))
        elif stripped.startswith("["):
            section = find_opened_table(part, counts)
            detach_comments(statements, section)
            statements.append(TomlStatement(part, "header", section, section, above))
        else:
            path = (*section, *parse_key(f"{text_before_value(part)}0")[0])
            statements.append(TomlStatement(part, "key", path, section, above))
        above = ""
    if above:
        statements.append(TomlStatement(above, "between", section, section))
    detach_comments(statements, ())
    return statements


def detach_comments(statements: list[TomlStatement], following: Keys) -> None:
    """Makes separate comments between two hooks or servers belong to neither, so that removing one
    of these does not remove the comments."""
    for before, last in zip(reversed(statements[:-1]), reversed(statements), strict=False):
        if not last.kind == before.kind == "between":
            return
        if last.text.strip() and last.section[:2] != following[:2]:
            last.path = last.section = ()


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
    """The parts of the statement's only key, and its value."""
    keys: list[str] = []
    value: Any = tomllib.loads(statement)
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        keys.append(key)
    return keys, value


def text_before_value(statement: str) -> str:
    """The key, the equals sign and the spaces after it."""
    match = KEY_AND_EQUALS.match(statement)
    return match[0] if match else ""


def find_opened_table(header: str, counts: dict[Keys, int]) -> Keys:
    """The table that a header opens. `counts` has the last index of each array of tables."""
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
