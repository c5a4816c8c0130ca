"""An agent's settings and prompt as TOML, in the layout of its file, for people to read and edit.

Works on text only; no daemon and no files.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from .errors import CommandError

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# TOML wants this character escaped; for all others JSON's escapes are valid TOML.
DELETE = "\x7f"
MULTILINE_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CLOSING_QUOTE = re.compile(r'"(?="")|"\Z')


def render_agent(settings: Mapping[str, Any], prompt: str | None) -> str:
    """Render JSON settings as TOML. Without a prompt no `prompt` key is written."""
    tables = {
        key: value
        for key, value in settings.items()
        if isinstance(value, Mapping) and key != "hooks"
    }
    separate = {"hooks", "mcps", *tables}
    plain = {key: value for key, value in settings.items() if key not in separate}
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
    """Parse settings and prompt from TOML or JSON; the prompt is None if there is none."""
    document = parse_json(text) if text.lstrip().startswith("{") else parse_toml(text)
    prompt = document.pop("prompt", None)
    if prompt is not None and not isinstance(prompt, str):
        raise CommandError('prompt must be a text; write prompt = "..."')
    require_json_values(document)
    return document, prompt


def require_json_values(settings: Mapping[str, Any]) -> None:
    """Raise CommandError for values JSON does not have: agents cannot have them either."""
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
    """Return no line for a JSON null: TOML has no null."""
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
                line for key, item in value.items() for line in render_pair(key, item)
            )
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return json.dumps(value)


def quote_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(DELETE, "\\u007f")


def render_prompt(text: str) -> str:
    """Use a multi-line string if the prompt has several lines."""
    if "\n" not in text:
        return quote_string(text)
    text = text.replace("\\", "\\\\")
    text = MULTILINE_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return '"""\n' + CLOSING_QUOTE.sub(r'\\"', text) + '"""'
