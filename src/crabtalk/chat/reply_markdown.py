"""Answers: what the daemon tells, as the markdown that commands answer with.

Names and texts are anybody's: none of them can become markup.
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

MAX_TEXT = 200  # characters of a text that is shown in one line
MAX_CELL_TEXT = 80  # the same, in a table
MAX_ROWS = 50  # rows of a list
MAX_EVENTS = 20  # things that happened
# Anywhere, and what means something only where a line begins.
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


def format_archives(found: Sequence[wire.ArchiveInfo]) -> str:
    rows = [
        (
            str(number),
            format_local_time(each.archived_at),
            str(each.end_id - each.first_id),
            escape_text(each.title),
        )
        for number, each in enumerate(found, 1)
    ]
    return (
        format_table(("", "when", "messages", "about"), rows) + "\n`/archives NUMBER` shows one.\n"
    )


def format_hits(found: Iterable[wire.SessionHit]) -> str:
    return "\n".join(map(format_hit, found))


def format_hit(found: wire.SessionHit) -> str:
    head = (
        f"**{escape_text(found.title) or 'untitled'}** · "
        f"{escape_text(found.agent)} with {escape_text(found.sender)}"
        f" · {format_local_time(found.updated_at)}\n"
    )
    lines = [
        f"- {f'**{who}**' if item.message_id == found.message_id else who}: "
        f"{escape_text(item.snippet)}"
        for item in found.window
        for who in [f"{item.role} {escape_code(item.tool_name)}".rstrip()]
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


def format_memory_hits(found: Iterable[wire.MemoryHit]) -> str:
    return "\n".join(
        f"**{escape_text(each.name)}** · {escape_text(each.kind)}, "
        f"{format_local_time(each.created_at)}\n\n"
        f"{quote_text(each.content)}\n"
        for each in found
    )


def format_servers(found: Iterable[wire.McpInfo]) -> str:
    rows = [
        (
            escape_text(s.name),
            STATUS.get(s.status, "not tried yet"),
            str(s.tool_count),
            escape_text(s.error),
        )
        for s in found
    ]
    return format_table(("server", "state", "tools", ""), rows)


def format_events(happened: Sequence[str], subscriptions: Sequence[wire.SubscriptionInfo]) -> str:
    parts = [f"- {escape_text(line)}" for line in happened[-MAX_EVENTS:]] or [
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
    shown = format_table(("", "turns", "tokens in", "tokens out", "cost"), rows)
    if spending.total.cost is None:
        shown += '\nPrices come from `config/tui.toml` in the home: `[prices."MODEL"]`.\n'
    return shown + "\nWhat compactions spend is not in it.\n"


def format_cost_row(name: str, count: TokenCount, spending: Spending) -> tuple[str, ...]:
    money = escape_text(spending.format_cost(count.cost)) or "no price"
    return name, str(count.turns), f"{count.input_tokens:,}", f"{count.output_tokens:,}", money


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def format_name(name: str, is_current: bool) -> str:
    return f"**{escape_text(name)}**" if is_current else escape_text(name)


def escape_text(text: str, most: int = MAX_TEXT) -> str:
    """One line of text that is nothing but text."""
    return MARKUP.sub(r"\\\1", to_one_line(text, most))


def quote_text(text: str, most: int = 10) -> str:
    """The first lines, set off."""
    lines = [line for line in text.splitlines() if line.strip()]
    more = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join(f"> {escape_text(line)}  " for line in [*lines[:most], *more])


def escape_code(text: str) -> str:
    return to_one_line(text).replace("`", "'")
