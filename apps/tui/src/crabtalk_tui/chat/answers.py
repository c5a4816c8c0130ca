"""Answers: what the daemon tells, as the markdown that commands answer with.

Names and texts are anybody's: none of them can become markup.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from crabtalk.component.command import one_line
from crabtalk.protocol import wire
from crabtalk_tui.moments import day, local
from crabtalk_tui.options import MODES

from .candidates import Catalogue, Named
from .command_table import COMMANDS
from .prices import Count, Spending

LINE = 200  # characters of a text that is shown in one line
BRIEF = 80  # the same, in a table
MOST = 50  # rows of a list
LATELY = 20  # things that happened
# Anywhere, and what means something only where a line begins.
MARKUP = re.compile(r"([\\`*_\[\]<>|~&]|^[#+=-]|(?<=^\d)[.)])")
STATUS = {
    wire.CONNECTED: "connected",
    wire.CONNECTING: "connecting",
    wire.DISCONNECTED: "disconnected",
    wire.FAILED: "failed",
}


def help_page(keys: Mapping[str, str]) -> str:
    rows = [(f"`{command.usage}`", command.about) for command in COMMANDS.values()]
    return (
        table(("command", "what it does"), rows)
        + "\nAnything else goes to the agent: `/NAME` uses a skill, `@NAME TEXT` has another agent "
        "answer once. A space before the `/` hands a skill over that is called like a command.\n\n"
        + table(("key", "what it does"), keys.items())
    )


def help_line(name: str) -> str:
    command = COMMANDS[name]
    return f"`{command.usage}`: {command.about}.\n"


def agents(catalogue: Catalogue, current: str) -> str:
    rows = [
        (mark(agent.name, agent.name == current), plain(agent.model), plain(agent.about))
        for agent in catalogue.agents
    ]
    return table(("agent", "model", ""), rows) + "\n`/agent NAME` talks to another one.\n"


def skills(catalogue: Catalogue) -> str:
    if not catalogue.skills:
        return "There are no skills. Each is a folder with a `SKILL.md` in `skills/` of the home.\n"
    return table(("skill", ""), [(f"`/{code(s.name)}`", plain(s.about)) for s in catalogue.skills])


def models(names: Sequence[Named], current: str) -> str:
    if not names:
        return "No model can be used. `crabtalkd models` says why, `crabtalkd setup` adds one.\n"
    rows = [(mark(model.name, model.name == current), plain(model.about)) for model in names]
    return table(("model", ""), rows) + "\n`/model NAME` makes one the active one.\n"


def format_modes(current: str, info: wire.ModeInfo) -> str:
    rows = [(mark(name, name == current), about) for name, about in MODES.items()]
    if current != info.mode:
        where = "It holds for this chat"
    elif info.is_set:
        where = "It is set for this conversation"
    else:
        where = "It is the agent's own"
    return table(("mode", "what runs without asking"), rows) + (
        f"\nNow: {plain(current)}. {where}. `/mode NAME` or Shift+Tab sets another, "
        "`/mode default` goes back to the agent's.\n"
    )


def archives(found: Sequence[wire.ArchiveInfo]) -> str:
    rows = [
        (str(number), local(each.archived_at), str(each.end_id - each.first_id), plain(each.title))
        for number, each in enumerate(found, 1)
    ]
    return table(("", "when", "messages", "about"), rows) + "\n`/archives NUMBER` shows one.\n"


def hits(found: Iterable[wire.SessionHit]) -> str:
    return "\n".join(map(hit, found))


def hit(found: wire.SessionHit) -> str:
    head = (
        f"**{plain(found.title) or 'untitled'}** · {plain(found.agent)} with {plain(found.sender)}"
        f" · {local(found.updated_at)}\n"
    )
    lines = [
        f"- {f'**{who}**' if item.message_id == found.message_id else who}: {plain(item.snippet)}"
        for item in found.window
        for who in [f"{item.role} {code(item.tool_name)}".rstrip()]
    ]
    return "\n".join([head, *lines, ""])


def memory(page: wire.MemoryPage) -> str:
    rows = [
        (day(entry.created_at), plain(entry.kind), plain(entry.name), plain(entry.content, BRIEF))
        for entry in page.entries[:MOST]
    ]
    rest = page.total - len(rows)
    more = f"\n{rest} more; `crabtalk memory list` has all.\n" if rest > 0 else ""
    return table(("since", "kind", "name", "content"), rows) + more


def memory_hits(found: Iterable[wire.MemoryHit]) -> str:
    return "\n".join(
        f"**{plain(each.name)}** · {plain(each.kind)}, {local(each.created_at)}\n\n"
        f"{quoted(each.content)}\n"
        for each in found
    )


def servers(found: Iterable[wire.McpInfo]) -> str:
    rows = [
        (plain(s.name), STATUS.get(s.status, "not tried yet"), str(s.tool_count), plain(s.error))
        for s in found
    ]
    return table(("server", "state", "tools", ""), rows)


def events(happened: Sequence[str], subscriptions: Sequence[wire.SubscriptionInfo]) -> str:
    parts = [f"- {plain(line)}" for line in happened[-LATELY:]] or [
        "Nothing happened since the chat opened."
    ]
    if subscriptions:
        rows = [
            (
                str(s.id),
                plain(s.source),
                plain(s.target_agent),
                plain(s.created_by),
                "once" if s.once else "",
            )
            for s in subscriptions[:MOST]
        ]
        head = ("", "when this is published", "this agent runs", "set up by", "")
        parts += ["", table(head, rows)]
    return "\n".join(parts) + "\n"


def cost(spending: Spending) -> str:
    if not spending.models:
        return "Nothing was spent since the chat was opened.\n"
    counts = [("last turn", spending.last)]
    counts += [(plain(name) or "model", count) for name, count in spending.models.items()]
    counts += [("all", spending.total)] if len(spending.models) > 1 else []
    rows = [row(name, count, spending) for name, count in counts]
    shown = table(("", "turns", "tokens in", "tokens out", "cost"), rows)
    if spending.total.cost is None:
        shown += '\nPrices come from `config/tui.toml` in the home: `[prices."MODEL"]`.\n'
    return shown + "\nWhat compactions spend is not in it.\n"


def row(name: str, count: Count, spending: Spending) -> tuple[str, ...]:
    money = plain(spending.shown(count.cost)) or "no price"
    return name, str(count.turns), f"{count.read:,}", f"{count.written:,}", money


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mark(name: str, is_current: bool) -> str:
    return f"**{plain(name)}**" if is_current else plain(name)


def plain(text: str, most: int = LINE) -> str:
    """One line of text that is nothing but text."""
    return MARKUP.sub(r"\\\1", one_line(text, most))


def quoted(text: str, most: int = 10) -> str:
    """The first lines, set off."""
    lines = [line for line in text.splitlines() if line.strip()]
    more = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join(f"> {plain(line)}  " for line in [*lines[:most], *more])


def code(text: str) -> str:
    return one_line(text).replace("`", "'")
