"""Write the generated parts of the book: `python -m docs.generate`. With --check, only list the
stale pages.

A block is between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. In a table of keys the
last column, the meaning of a key, is written by hand and kept. A new key has no meaning yet, and a
test fails until it has one.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from apps.help_page import ROOT, HelpPage, update_pages
from crabtalk.daemon.cli import main as crabtalkd
from crabtalk.daemon.config import settings
from crabtalk.hooks.bash import BashSettings as BashSettings
from crabtalk.hooks.memory import MemorySettings as MemorySettings
from crabtalk.hooks.sessions import SessionsSettings as SessionsSettings
from crabtalk.model.provider_settings import FIELD_TYPES as PROVIDER_KEYS
from crabtalk.model.provider_settings import ProviderSettings
from crabtalk.policy import build_kinds_table
from crabtalk.storage.agent import AGENT_KEYS, SERVER_KEYS, Agent, McpServerConfig

from .source_comments import WireMessage, parse_proto, read_error_codes, read_limits
from .speed_table import render_speed_table

SCRIPT = "docs.generate"
PAGES = (
    "README.md",
    "docs/reference/config.md",
    "docs/reference/agents.md",
    "docs/reference/wire.md",
    "docs/permissions.md",
)
BLOCK = re.compile(r"(<!-- generated: ([\w.]+) -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)
ROW = re.compile(r"^\| `([\w.]+)` \|[^|]*\| *(.*?) *\|$", re.MULTILINE)
NOT_SET = ""

DAEMON_HELP = HelpPage(crabtalkd, "docs/reference/crabtalkd.md", SCRIPT)


def render_permissions() -> str:
    """Render the table of default permissions."""
    head = ["| a tool that | `plan` | `ask` | `accept-edits` | `auto` | a stranger's run |"]
    rows = [f"| {' | '.join(row)} |" for row in build_kinds_table()]
    return "\n".join([*head, "|---|---|---|---|---|---|", *rows])


# ── Tables of keys ──────────────────────────────────────────────────────────────────────────────


def make_key_table(known: Mapping[str, Any]) -> Callable[[str], str]:
    """Return a renderer for a table of keys and defaults. It keeps the meanings in the block."""

    def fresh(block: str) -> str:
        meanings = dict(ROW.findall(block))
        rows = (
            f"| `{key}` | {format_toml(default)} | {meanings.get(key, '')} |"
            for key, default in known.items()
        )
        return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])

    return fresh


def format_toml(value: Any) -> str:
    """Format a value as TOML code. A value that is not set gives an empty cell."""
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case int():
            return f"`{value}`"
        case float():
            return f"`{value:g}`"
        case str() if value:
            return f'`"{value}"`'
        case tuple() | list():
            return "`[]`"
    return NOT_SET


def read_defaults(names: Iterable[str], of: Any) -> dict[str, Any]:
    return {name: getattr(of, name, NOT_SET) for name in names}


def list_settings(of: Any) -> dict[str, Any]:
    """Return all fields of a settings object and their defaults."""
    return dict(msgspec.to_builtins(of))


# ── Generated blocks ───────────────────────────────────────────────────────────────────────────


def render_limits(_: str) -> str:
    lines = ["| key | default | what it bounds |", "|---|---|---|"]
    for kind in settings.LIMIT_TYPES:
        for bound in read_limits(kind):
            names = ", ".join(f"`{key}`" for key in bound.keys)
            values = ", ".join(format_toml(value) for value in bound.defaults)
            lines.append(f"| {names} | {values} | {bound.comment} |")
    return "\n".join(lines)


def render_codes(_: str) -> str:
    rows = (f"| {code} | {text} |" for code, text in read_error_codes())
    return "\n".join(["| code | when |", "|---:|---|", *rows])


def render_messages(_: str) -> str:
    proto = (ROOT / "proto" / "crabtalk.proto").read_text(encoding="utf-8")
    parts = []
    for section in parse_proto(proto):
        parts.append(f"## {section.title}")
        parts += [render_message(message) for message in section.messages]
    return "\n\n".join(parts)


def render_message(message: WireMessage) -> str:
    lines = [f"### {message.name}", ""]
    about = [message.comment] * bool(message.comment)
    about += ["An enum."] * message.is_enum + ["One of these:"] * bool(message.oneof)
    about += ["Without fields."] * (not message.members)
    if about:
        lines += [" ".join(about), ""]
    if message.members:
        lines += ["| # | name | type | |", "|---:|---|---|---|"]
    for member in message.members:
        kind = f"`{member.kind}`" if member.kind else ""
        lines.append(f"| {member.number} | `{member.name}` | {kind} | {member.comment} |")
    return "\n".join(lines).rstrip()


STORAGE = {
    "url": settings.FILE_URL,
    "durability": "fsync",
    **read_defaults(("lease", "pool", "statement_timeout"), settings.StorageSettings()),
}
GENERATED: dict[str, Callable[[str], str]] = {
    "speed": lambda _: render_speed_table(),
    "permissions": lambda _: render_permissions(),
    "limits": render_limits,
    "errors": render_codes,
    "messages": render_messages,
    "daemon": make_key_table(dict.fromkeys(sorted(settings.DAEMON_KEYS), NOT_SET)),
    "storage": make_key_table(STORAGE),
    "providers": make_key_table(
        read_defaults(PROVIDER_KEYS, ProviderSettings("")) | {"name": NOT_SET}
    ),
    "agent": make_key_table(read_defaults(AGENT_KEYS, Agent("", ""))),
    "mcps": make_key_table(read_defaults(SERVER_KEYS, McpServerConfig(""))),
    "hooks.bash": make_key_table(list_settings(BashSettings())),
    "hooks.memory": make_key_table(list_settings(MemorySettings())),
    "hooks.sessions": make_key_table(list_settings(SessionsSettings())),
}


def refresh_page(text: str) -> str:
    """Return the page with fresh blocks."""
    return BLOCK.sub(
        lambda found: f"{found[1]}\n{GENERATED[found[2]](found[3])}\n\n{found[4]}", text
    )


def render_pages() -> dict[Path, str]:
    """Render every page with generated blocks."""
    found = {ROOT / path: refresh_page((ROOT / path).read_text(encoding="utf-8")) for path in PAGES}
    return {**found, ROOT / DAEMON_HELP.path: DAEMON_HELP.refresh_blocks(DAEMON_HELP.read_page())}


if __name__ == "__main__":
    sys.exit(update_pages(render_pages(), SCRIPT))
