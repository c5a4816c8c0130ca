"""An agent's page: its settings and prompt as TOML, the way its file has them, for people to read
and edit. No daemon and no files here, only text.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from .complaints import CommandError

BARE = re.compile(r"[A-Za-z0-9_-]+")
# What TOML wants escaped; JSON's own escapes are TOML's for everything else.
DELETE = "\x7f"
MULTILINE_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CLOSING = re.compile(r'"(?="")|"\Z')


def page_of(settings: Mapping[str, Any], prompt: str | None) -> str:
    """TOML of what JSON has. Without a prompt none is written."""
    tables = {
        key: value
        for key, value in settings.items()
        if isinstance(value, Mapping) and key != "hooks"
    }
    apart = {"hooks", "mcps", *tables}
    plain = {key: value for key, value in settings.items() if key not in apart}
    lines = []
    for key, value in plain.items():
        lines += pair(key, value)
        if key == "model" and prompt is not None:
            lines.append(f"prompt = {prose(prompt)}")
    if "model" not in plain and prompt is not None:
        lines.append(f"prompt = {prose(prompt)}")
    for key, table in tables.items():
        lines += ["", f"[{key_text(key)}]", *pairs(table)]
    for hook, table in settings.get("hooks", {}).items():
        lines += ["", f"[hooks.{key_text(hook)}]", *pairs(table)]
    for server in settings.get("mcps", ()):
        lines += ["", "[[mcps]]", *pairs(server)]
    return "\n".join([*lines, ""])


def read_page(text: str) -> tuple[dict[str, Any], str | None]:
    """Settings and prompt of a page, in TOML or in JSON; the prompt is None if it has none."""
    document = json_page(text) if text.lstrip().startswith("{") else toml_page(text)
    prompt = document.pop("prompt", None)
    if prompt is not None and not isinstance(prompt, str):
        raise CommandError('prompt must be a text; write prompt = "..."')
    must_be_plain(document)
    return document, prompt


def must_be_plain(settings: Mapping[str, Any]) -> None:
    """What JSON cannot say, no agent can have."""
    try:
        json.dumps(settings)
    except TypeError:
        raise CommandError(
            "an agent's settings hold no dates and times; write them as texts"
        ) from None


def toml_page(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CommandError(f"that is not valid TOML: {error}; mend it") from None


def json_page(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"that is not valid JSON: {error}; mend it") from None
    if not isinstance(document, dict):
        raise CommandError("settings are a JSON object, or TOML; write one of them")
    return document


# ── TOML ───────────────────────────────────────────────────────────────────────────────────────


def pairs(table: Mapping[str, Any]) -> list[str]:
    return [line for key, value in table.items() for line in pair(key, value)]


def pair(key: str, value: Any) -> list[str]:
    """Nothing for what JSON calls null: TOML leaves it out."""
    return [] if value is None else [f"{key_text(key)} = {value_text(value)}"]


def key_text(key: str) -> str:
    return key if BARE.fullmatch(key) else quoted(key)


def value_text(value: Any) -> str:
    match value:
        case str():
            return quoted(value)
        case list() | tuple():
            return f"[{', '.join(map(value_text, value))}]"
        case Mapping():
            inside = ", ".join(line for key, each in value.items() for line in pair(key, each))
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return json.dumps(value)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(DELETE, "\\u007f")


def prose(text: str) -> str:
    """Over several lines if it has them."""
    if "\n" not in text:
        return quoted(text)
    text = text.replace("\\", "\\\\")
    text = MULTILINE_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return '"""\n' + CLOSING.sub(r'\\"', text) + '"""'
