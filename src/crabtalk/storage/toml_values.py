"""Renders TOML values, and replaces the value in a statement."""

import re
import tomllib
from typing import Any

import msgspec

from .toml_statements import TOKEN, Keys, text_before_value

UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')
UNSAFE_IN_LINES = re.compile(r'[\x00-\x08\x0b-\x1f\x7f\\]|"(?="")|"\Z')
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def replace_value(statement: str, keys: Keys, old: Any, new: Any) -> str:
    """Replaces the value in a statement; spacing and comments stay."""
    if isinstance(old, list | dict):
        return replace_entries(statement, keys, old, new)
    before = text_before_value(statement)
    rest = statement.removeprefix(before)
    string = TOKEN.match(rest) if rest[0] in "\"'" else None
    end = string.end() if string else len(rest.split("#")[0].rstrip())
    return f"{before}{render_value(new, multiline=True)}{rest[end:]}"


def replace_entries(statement: str, keys: Keys, old: Any, new: Any) -> str:
    import tomlkit  # imported late, because it is slow to import
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(statement)
        table = document
        for key in keys[:-1]:
            table = table[key]
        amend_value(table, keys[-1], old, new)
        text = tomlkit.dumps(document)
        value: Any = tomllib.loads(text)
        for key in keys:
            value = value[key]
        if is_same_value(value, new):
            return text
    except (TOMLKitError, ValueError):
        pass
    # tomlkit fails on some valid TOML, such as commas at the start of lines. Losing the comments is
    # better than not changing the value.
    return f"{text_before_value(statement)}{render_value(new)}\n"


def amend_value(holder: Any, key: Any, old: Any, new: Any) -> None:
    """Changes a tomlkit value; in lists and tables only the entries that differ."""
    import tomlkit
    from tomlkit.items import InlineTable

    if is_same_value(old, new):
        return
    if isinstance(old, list) and isinstance(new, list):
        amend_list(holder[key], old, new)
    elif isinstance(old, dict) and isinstance(new, dict):
        table = holder[key]
        is_one_line = isinstance(table, InlineTable) and "\n" not in table.as_string()
        if is_one_line and old.keys() != new.keys():
            # It has no comments, and tomlkit would leave gaps where entries are removed.
            in_order = {name: new[name] for name in (*old, *new) if name in new}
            holder[key] = tomlkit.value(render_value(in_order))
            return
        for name in old.keys() - new.keys():
            del table[name]
        for name, value in new.items():
            if name in old:
                amend_value(table, name, old[name], value)
            else:
                table[name] = tomlkit.value(render_value(value))
    else:
        holder[key] = tomlkit.value(render_value(new))


def amend_list(array: Any, old: list[Any], new: list[Any]) -> None:
    from difflib import SequenceMatcher

    import tomlkit

    def identity(entry: Any) -> str:
        return repr(entry.get("name")) if isinstance(entry, dict) else repr(entry)

    matcher = SequenceMatcher(None, [*map(identity, old)], [*map(identity, new)], autojunk=False)
    for tag, start, end, first, last in reversed(matcher.get_opcodes()):
        if tag == "equal":
            for offset in range(end - start):
                amend_value(array, start + offset, old[start + offset], new[first + offset])
            continue
        del array[start:end]
        for value in reversed(new[first:last]):
            array.insert(start, tomlkit.value(render_value(value)))


def render_value(value: Any, *, multiline: bool = False) -> str:
    """A value as TOML. With `multiline`, text with line feeds becomes a multi-line string."""
    match value:
        case bool():
            return str(value).lower()
        case str() if multiline and "\n" in value:
            return f'"""\n{UNSAFE_IN_LINES.sub(escape_character, value)}"""'
        case str():
            return f'"{UNSAFE.sub(escape_character, value)}"'
        case list():
            return f"[{', '.join(map(render_value, value))}]"
        case dict():
            entries = [
                f"{render_dotted_key((key,))} = {render_value(entry)}"
                for key, entry in value.items()
            ]
            return f"{{ {', '.join(entries)} }}" if entries else "{}"
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def escape_character(match: re.Match[str]) -> str:
    return ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"


def render_dotted_key(path: Keys) -> str:
    return ".".join(
        key if re.fullmatch("[A-Za-z0-9_-]+", key) else render_value(key)
        for key in path
        if isinstance(key, str)
    )


def is_same_value(left: Any, right: Any) -> bool:
    """Like ==, but true differs from 1, and 1 from 1.0."""
    return left is right or encode_exact(left) == encode_exact(right)


def encode_exact(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
