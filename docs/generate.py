"""Writes into the book what the sources know: `python -m docs.generate`; with --check, only says
which pages are stale.

A block stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. In a table of keys the
last column, what a key means, is written by hand and stays; a key that is new has none yet, and a
test asks for it.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from apps.help_page import ROOT, HelpPage, update
from crabtalk.daemon import config
from crabtalk.daemon.cli import main as crabtalkd
from crabtalk.hooks.bash import Settings as BashSettings
from crabtalk.hooks.memory import Settings as MemorySettings
from crabtalk.hooks.sessions import Settings as SessionsSettings
from crabtalk.model.settings import FIELDS as PROVIDER_KEYS
from crabtalk.model.settings import ProviderSettings
from crabtalk.policy import kinds_table
from crabtalk.storage.agent import AGENT_KEYS, SERVER_KEYS, Agent, McpServer

from .sources import Message, bounds, errors, sections
from .speed import speed

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


def permissions() -> str:
    """What calls may do where no rule says otherwise."""
    head = ["| a tool that | `plan` | `ask` | `accept-edits` | `auto` | a stranger's run |"]
    rows = [f"| {' | '.join(row)} |" for row in kinds_table()]
    return "\n".join([*head, "|---|---|---|---|---|---|", *rows])


# ── Tables of keys ──────────────────────────────────────────────────────────────────────────────


def keys(known: Mapping[str, Any]) -> Callable[[str], str]:
    """A table of keys and their defaults; what each means is taken from the block as it is."""

    def fresh(block: str) -> str:
        meanings = dict(ROW.findall(block))
        rows = (
            f"| `{key}` | {in_toml(default)} | {meanings.get(key, '')} |"
            for key, default in known.items()
        )
        return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])

    return fresh


def in_toml(value: Any) -> str:
    """As one would write it; nothing for what is not set."""
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


def defaults(names: Iterable[str], of: Any) -> dict[str, Any]:
    return {name: getattr(of, name, NOT_SET) for name in names}


def settings(of: Any) -> dict[str, Any]:
    """All there is in a value that has a default for everything."""
    return dict(msgspec.to_builtins(of))


# ── What is generated ───────────────────────────────────────────────────────────────────────────


def limits(_: str) -> str:
    lines = ["| key | default | what it bounds |", "|---|---|---|"]
    for kind in config.LIMIT_KINDS:
        for bound in bounds(kind):
            names = ", ".join(f"`{key}`" for key in bound.keys)
            values = ", ".join(in_toml(value) for value in bound.defaults)
            lines.append(f"| {names} | {values} | {bound.comment} |")
    return "\n".join(lines)


def codes(_: str) -> str:
    rows = (f"| {code} | {text} |" for code, text in errors())
    return "\n".join(["| code | when |", "|---:|---|", *rows])


def messages(_: str) -> str:
    proto = (ROOT / "proto" / "crabtalk.proto").read_text(encoding="utf-8")
    parts = []
    for section in sections(proto):
        parts.append(f"## {section.title}")
        parts += [described(message) for message in section.messages]
    return "\n\n".join(parts)


def described(message: Message) -> str:
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
    "url": config.FILES,
    "durability": "fsync",
    **defaults(("lease", "pool", "statement_timeout"), config.StorageSettings()),
}
GENERATED: dict[str, Callable[[str], str]] = {
    "speed": lambda _: speed(),
    "permissions": lambda _: permissions(),
    "limits": limits,
    "errors": codes,
    "messages": messages,
    "daemon": keys(dict.fromkeys(sorted(config.DAEMON_KEYS), NOT_SET)),
    "storage": keys(STORAGE),
    "providers": keys(defaults(PROVIDER_KEYS, ProviderSettings("")) | {"name": NOT_SET}),
    "agent": keys(defaults(AGENT_KEYS, Agent("", ""))),
    "mcps": keys(defaults(SERVER_KEYS, McpServer(""))),
    "hooks.bash": keys(settings(BashSettings())),
    "hooks.memory": keys(settings(MemorySettings())),
    "hooks.sessions": keys(settings(SessionsSettings())),
}


def fresh(text: str) -> str:
    """A page with every block as it should be."""
    return BLOCK.sub(
        lambda found: f"{found[1]}\n{GENERATED[found[2]](found[3])}\n\n{found[4]}", text
    )


def pages() -> dict[Path, str]:
    """Every page with something generated on it, as it should be."""
    found = {ROOT / path: fresh((ROOT / path).read_text(encoding="utf-8")) for path in PAGES}
    return {**found, ROOT / DAEMON_HELP.path: DAEMON_HELP.fresh(DAEMON_HELP.text())}


if __name__ == "__main__":
    sys.exit(update(pages(), SCRIPT))
