"""An agent's page: its settings and prompt as TOML, the way its file has them, for people to read
and edit. No daemon and no files here, only text.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from .errors import CommandError

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# What TOML wants escaped; JSON's own escapes are TOML's for everything else.
DELETE = "\x7f"
MULTILINE_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CLOSING_QUOTE = re.compile(r'"(?="")|"\Z')


def render_agent(settings: Mapping[str, Any], prompt: str | None) -> str:
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
        lines += render_pair(key, value)
        if key == "model" and prompt is not None:
            lines.append(f"prompt = {render_prompt(prompt)}")
    if "model" not in plain and prompt is not None:
        lines.append(f"prompt = {render_prompt(prompt)}")
    for key, table in tables.items():
        lines += ["", f"[{render_key(key)}]", *render_pairs(table)]
    for hook, table in settings.get("hooks", {}).items():
        lines += ["", f"[hooks.{render_key(hook)}]", *render_pairs(table)]
    for server in settings.get("mcps", ()):
        lines += ["", "[[mcps]]", *render_pairs(server)]
    return "\n".join([*lines, ""])


def parse_agent(text: str) -> tuple[dict[str, Any], str | None]:
    """Settings and prompt of a page, in TOML or in JSON; the prompt is None if it has none."""
    document = parse_json(text) if text.lstrip().startswith("{") else parse_toml(text)
    prompt = document.pop("prompt", None)
    if prompt is not None and not isinstance(prompt, str):
        raise CommandError('prompt must be a text; write prompt = "..."')
    require_json_values(document)
    return document, prompt


def require_json_values(settings: Mapping[str, Any]) -> None:
    """What JSON cannot say, no agent can have."""
    try:
        json.dumps(settings)
    except TypeError:
        raise CommandError(
            "an agent's settings hold no dates and times; write them as texts"
        ) from None


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CommandError(f"that is not valid TOML: {error}; mend it") from None


def parse_json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"that is not valid JSON: {error}; mend it") from None
    if not isinstance(document, dict):
        raise CommandError("settings are a JSON object, or TOML; write one of them")
    return document


# ── TOML ───────────────────────────────────────────────────────────────────────────────────────


def render_pairs(table: Mapping[str, Any]) -> list[str]:
    return [line for key, value in table.items() for line in render_pair(key, value)]


def render_pair(key: str, value: Any) -> list[str]:
    """Nothing for what JSON calls null: TOML leaves it out."""
    return [] if value is None else [f"{render_key(key)} = {render_value(value)}"]


def render_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else quote_string(key)


def render_value(value: Any) -> str:
    match value:
        case str():
            return quote_string(value)
        case list() | tuple():
            return f"[{', '.join(map(render_value, value))}]"
        case Mapping():
            inside = ", ".join(
                line for key, each in value.items() for line in render_pair(key, each)
            )
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return json.dumps(value)


def quote_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(DELETE, "\\u007f")


def render_prompt(text: str) -> str:
    """Over several lines if it has them."""
    if "\n" not in text:
        return quote_string(text)
    text = text.replace("\\", "\\\\")
    text = MULTILINE_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return '"""\n' + CLOSING_QUOTE.sub(r'\\"', text) + '"""'
