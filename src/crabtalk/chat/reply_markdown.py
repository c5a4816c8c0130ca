"""Format replies of the daemon as the Markdown that the chat's commands show.

Names and texts come from anywhere, so all are escaped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from crabtalk.cli.options import MODES
from crabtalk.cli.times import format_day, format_local_time
from crabtalk.protocol import wire
from crabtalk.service.command_line import to_one_line

from .command_table import COMMANDS
from .completion import NameCatalogue, NameEntry
from .prices import Spending, TokenCount

MAX_TEXT = 200  # characters of a text shown in one line
MAX_CELL_TEXT = 80  # characters of a text in a table
MAX_ROWS = 50  # rows of a list
MAX_EVENTS = 20
# Characters with a meaning anywhere, and those with a meaning at the beginning of a line.
MARKUP = re.compile(r"([\\`*_\[\]<>|~&]|^[#+=-]|(?<=^\d)[.)])")
STATUS = {
    wire.CONNECTED: "connected",
    wire.CONNECTING: "connecting",
    wire.DISCONNECTED: "disconnected",
    wire.FAILED: "failed",
}


def format_help(keys: Mapping[str, str]) -> str:
    rows = [(f"`{command.usage}`", command.about) for command in COMMANDS.values()]
    return (
        format_table(("command", "what it does"), rows)
        + "\nAnything else goes to the agent: `/NAME` uses a skill, `@NAME TEXT` has another agent "
        "answer once. A space before the `/` hands a skill over that is called like a command.\n\n"
        + format_table(("key", "what it does"), keys.items())
    )


def format_command_help(name: str) -> str:
    command = COMMANDS[name]
    return f"`{command.usage}`: {command.about}.\n"


def format_agents(catalogue: NameCatalogue, current: str) -> str:
    rows = [
        (
            format_name(agent.name, agent.name == current),
            escape_text(agent.model),
            escape_text(agent.about),
        )
        for agent in catalogue.agents
    ]
    return format_table(("agent", "model", ""), rows) + "\n`/agent NAME` talks to another one.\n"


def format_skills(catalogue: NameCatalogue) -> str:
    if not catalogue.skills:
        return "There are no skills. Each is a folder with a `SKILL.md` in `skills/` of the home.\n"
    return format_table(
        ("skill", ""),
        [(f"`/{escape_code(s.name)}`", escape_text(s.about)) for s in catalogue.skills],
    )


def format_models(names: Sequence[NameEntry], current: str) -> str:
    if not names:
        return "No model can be used. `crabtalkd models` says why, `crabtalkd setup` adds one.\n"
    rows = [
        (format_name(model.name, model.name == current), escape_text(model.about))
        for model in names
    ]
    return format_table(("model", ""), rows) + "\n`/model NAME` makes one the active one.\n"


def format_modes(current: str, info: wire.ModeInfo) -> str:
    rows = [(format_name(name, name == current), about) for name, about in MODES.items()]
    if current != info.mode:
        where = "It holds for this chat"
    elif info.is_set:
        where = "It is set for this conversation"
    else:
        where = "It is the agent's own"
    return format_table(("mode", "what runs without asking"), rows) + (
        f"\nNow: {escape_text(current)}. {where}. `/mode NAME` or Shift+Tab sets another, "
        "`/mode default` goes back to the agent's.\n"
    )


def format_archives(archives: Sequence[wire.ArchiveInfo]) -> str:
    rows = [
        (
            str(number),
            format_local_time(archive.archived_at),
            str(archive.end_id - archive.first_id),
            escape_text(archive.title),
        )
        for number, archive in enumerate(archives, 1)
    ]
    return (
        format_table(("", "when", "messages", "about"), rows) + "\n`/archives NUMBER` shows one.\n"
    )


def format_hits(hits: Iterable[wire.SessionHit]) -> str:
    return "\n".join(map(format_hit, hits))


def format_hit(hit: wire.SessionHit) -> str:
    head = (
        f"**{escape_text(hit.title) or 'untitled'}** · "
        f"{escape_text(hit.agent)} with {escape_text(hit.sender)}"
        f" · {format_local_time(hit.updated_at)}\n"
    )
    lines = [
        f"- {f'**{speaker}**' if item.message_id == hit.message_id else speaker}: "
        f"{escape_text(item.snippet)}"
        for item in hit.window
        for speaker in [f"{item.role} {escape_code(item.tool_name)}".rstrip()]
    ]
    return "\n".join([head, *lines, ""])


def format_memory(page: wire.MemoryPage) -> str:
    rows = [
        (
            format_day(entry.created_at),
            escape_text(entry.kind),
            escape_text(entry.name),
            escape_text(entry.content, MAX_CELL_TEXT),
        )
        for entry in page.entries[:MAX_ROWS]
    ]
    rest = page.total - len(rows)
    more = f"\n{rest} more; `crabtalk memory list` has all.\n" if rest > 0 else ""
    return format_table(("since", "kind", "name", "content"), rows) + more


def format_memory_hits(hits: Iterable[wire.MemoryHit]) -> str:
    return "\n".join(
        f"**{escape_text(hit.name)}** · {escape_text(hit.kind)}, "
        f"{format_local_time(hit.created_at)}\n\n"
        f"{quote_text(hit.content)}\n"
        for hit in hits
    )


def format_servers(servers: Iterable[wire.McpInfo]) -> str:
    rows = [
        (
            escape_text(server.name),
            STATUS.get(server.status, "not tried yet"),
            str(server.tool_count),
            escape_text(server.error),
        )
        for server in servers
    ]
    return format_table(("server", "state", "tools", ""), rows)


def format_events(
    recent_events: Sequence[str], subscriptions: Sequence[wire.SubscriptionInfo]
) -> str:
    parts = [f"- {escape_text(line)}" for line in recent_events[-MAX_EVENTS:]] or [
        "Nothing happened since the chat opened."
    ]
    if subscriptions:
        rows = [
            (
                str(s.id),
                escape_text(s.source),
                escape_text(s.target_agent),
                escape_text(s.created_by),
                "once" if s.once else "",
            )
            for s in subscriptions[:MAX_ROWS]
        ]
        head = ("", "when this is published", "this agent runs", "set up by", "")
        parts += ["", format_table(head, rows)]
    return "\n".join(parts) + "\n"


def format_cost(spending: Spending) -> str:
    if not spending.models:
        return "Nothing was spent since the chat was opened.\n"
    counts = [("last turn", spending.last)]
    counts += [(escape_text(name) or "model", count) for name, count in spending.models.items()]
    counts += [("all", spending.total)] if len(spending.models) > 1 else []
    rows = [format_cost_row(name, count, spending) for name, count in counts]
    table = format_table(("", "turns", "tokens in", "tokens out", "cost"), rows)
    if spending.total.cost is None:
        table += '\nPrices come from `config/tui.toml` in the home: `[prices."MODEL"]`.\n'
    return table + "\nWhat compactions spend is not in it.\n"


def format_cost_row(name: str, count: TokenCount, spending: Spending) -> tuple[str, ...]:
    money = escape_text(spending.format_cost(count.cost)) or "no price"
    return name, str(count.turns), f"{count.input_tokens:,}", f"{count.output_tokens:,}", money


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def format_name(name: str, is_current: bool) -> str:
    return f"**{escape_text(name)}**" if is_current else escape_text(name)


def escape_text(text: str, max_length: int = MAX_TEXT) -> str:
    """Return the text in one line, with all markup escaped."""
    return MARKUP.sub(r"\\\1", to_one_line(text, max_length))


def quote_text(text: str, max_lines: int = 10) -> str:
    """Quote the first lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    more = [f"… {len(lines) - max_lines} more lines"] if len(lines) > max_lines else []
    return "\n".join(f"> {escape_text(line)}  " for line in [*lines[:max_lines], *more])


def escape_code(text: str) -> str:
    return to_one_line(text).replace("`", "'")
