"""The chat's commands: lines that begin with `/`. Everything else goes to the agent.

A command asks the daemon and returns a CommandReply. It prints nothing; errors of the daemon or the
person become notices, not exceptions.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from crabtalk.cli.errors import CommandError, explain_error, is_context_overflow
from crabtalk.cli.memory_sources import explain_not_found
from crabtalk.cli.options import MODES
from crabtalk.client import ServerError
from crabtalk.protocol import wire
from crabtalk.service.command_line import format_count

from . import reply_markdown
from .command_table import COMMANDS, SlashCommand
from .completion import NameCatalogue
from .export import FORMATS, ExportFormat, create_exporter
from .session import REQUEST_ERRORS, ChatSession, NoticeKind

DEFAULT_HISTORY = 20  # messages
MAX_HISTORY = 2000
MAX_HITS = 5
AGENTS_HINT = "/agents has them"
UNSAFE_CHARACTERS = re.compile(r"[^\w.-]+")
COMMAND_PATTERN = re.compile(r"/([a-z]+)((?:\s.*)?)", re.DOTALL)
GUEST_PATTERN = re.compile(r"@([^\s@]+)\s+(\S.*)", re.DOTALL)


class QueuedTurn(NamedTuple):
    """A turn that has not begun: with the agent, or with a guest in its place."""

    text: str
    guest: str = ""
    tool_choice: str = ""


class CommandCall(NamedTuple):
    command: SlashCommand
    arguments: str


class CommandReply(NamedTuple):
    """The output of a command, and actions for the chat."""

    markdown: str = ""
    notice: str = ""
    kind: NoticeKind = "info"
    messages: Sequence[wire.ConversationMessage] = ()  # shown as history
    turn: QueuedTurn | None = None
    resets_usage: bool = False  # the size of the context is not known any more
    leaves_chat: bool = False
    reviews_approvals: bool = False  # open the approvals that wait for the owner


def parse_input(text: str, catalogue: NameCatalogue) -> CommandCall | QueuedTurn:
    """Parse typed text. A `/` word that is no command, such as a skill, goes to the agent."""
    if (match := COMMAND_PATTERN.fullmatch(text)) and (
        command := COMMANDS.get(match[1])
    ) is not None:
        return CommandCall(command, match[2].strip())
    if (match := GUEST_PATTERN.fullmatch(text.strip())) and catalogue.has_agent(match[1]):
        return QueuedTurn(match[2], guest=match[1])
    return QueuedTurn(text)


async def run_command(call: CommandCall, session: ChatSession) -> CommandReply:
    """Run a command. If cancelled, the daemon may still carry out its request."""
    try:
        return await HANDLERS[call.command.name](session, call.arguments)
    except REQUEST_ERRORS as error:
        return CommandReply(notice=explain_error(error) or str(error), kind="error")


# ── The commands ───────────────────────────────────────────────────────────────────────────────


async def show_help(session: ChatSession, rest: str) -> CommandReply:
    name = rest.removeprefix("/")
    if name and name not in COMMANDS:
        raise CommandError(f"there is no command /{name}; /help has them all")
    if name:
        return CommandReply(reply_markdown.format_command_help(name))
    from .key_bindings import KEYS  # late: it imports the terminal

    return CommandReply(reply_markdown.format_help(KEYS))


async def show_agents(session: ChatSession, rest: str) -> CommandReply:
    await session.refresh_catalogue()
    return CommandReply(reply_markdown.format_agents(session.catalogue, session.agent))


async def switch_agent(session: ChatSession, rest: str) -> CommandReply:
    if not rest:
        raise CommandError(
            f"this is {session.agent}; /agent NAME talks to another, /agents has them"
        )
    with explain_not_found(AGENTS_HINT):
        await session.switch_agent(rest)
    messages = await session.conversation.load_last(DEFAULT_HISTORY)
    return CommandReply(notice=f"now with {rest}", messages=messages, resets_usage=True)


async def invite_guest(session: ChatSession, rest: str) -> CommandReply:
    name, _, text = rest.partition(" ")
    if not text.strip():
        raise CommandError("say who and what: /guest NAME TEXT")
    with explain_not_found(AGENTS_HINT):
        await session.client.get_agent(name)
    return CommandReply(turn=QueuedTurn(text.strip(), guest=name))


async def start_new(session: ChatSession, rest: str) -> CommandReply:
    try:
        await session.compact(fresh=True)
    except ServerError as error:
        if error.code in (400, 404):
            return CommandReply(notice="nothing was said yet: this is a beginning")
        raise
    notice = "a new beginning; /archives and /search have what was said before"
    return CommandReply(notice=notice, resets_usage=True)


async def compact_conversation(session: ChatSession, rest: str) -> CommandReply:
    try:
        summary = await session.compact()
    except ServerError as error:
        if is_context_overflow(error.message):
            raise CommandError(f"{error.message}; /new begins afresh, and loses nothing") from None
        raise
    notice = "folded into a summary, which the agent goes on from"
    return CommandReply(summary, notice=notice, resets_usage=True)


async def show_archives(session: ChatSession, rest: str) -> CommandReply:
    archives: Sequence[wire.ArchiveInfo] = ()
    try:
        reply = await session.client.list_archives(session.agent, sender=session.sender or None)
        archives = reply.archives
    except ServerError as error:
        if error.code != 404:
            raise
    if not archives:
        return CommandReply(notice="nothing was folded yet; /compact does that")
    if not rest:
        return CommandReply(reply_markdown.format_archives(archives))
    number = parse_number(rest, len(archives))
    return CommandReply(archives[number - 1].summary or "It was closed without a summary.")


async def search_conversations(session: ChatSession, rest: str) -> CommandReply:
    if not rest:
        raise CommandError("say what to look for: /search WORDS")
    results = await session.client.search_sessions(
        rest, limit=MAX_HITS, context_before=1, context_after=1
    )
    return (
        CommandReply(reply_markdown.format_hits(results.hits))
        if results.hits
        else CommandReply(notice="nothing found")
    )


async def show_history(session: ChatSession, rest: str) -> CommandReply:
    count = parse_number(rest, MAX_HISTORY) if rest else DEFAULT_HISTORY
    messages = await session.conversation.load_last(count)
    return (
        CommandReply(messages=messages) if messages else CommandReply(notice="nothing was said yet")
    )


async def show_memory(session: ChatSession, rest: str) -> CommandReply:
    client, agent, sender = session.client, session.agent, session.sender or None
    if rest:
        hits = (await client.search_memory(agent, rest, limit=MAX_HITS, sender=sender)).hits
        return (
            CommandReply(reply_markdown.format_memory_hits(hits))
            if hits
            else CommandReply(notice="nothing found")
        )
    page = await client.list_memory(agent, sender=sender)
    if not page.entries:
        return CommandReply(notice=f"{agent} remembers nothing yet")
    return CommandReply(reply_markdown.format_memory(page))


async def show_skills(session: ChatSession, rest: str) -> CommandReply:
    await session.refresh_catalogue()
    return CommandReply(reply_markdown.format_skills(session.catalogue))


async def choose_model(session: ChatSession, rest: str) -> CommandReply:
    if not rest:
        await session.refresh_catalogue()
        return CommandReply(reply_markdown.format_models(session.catalogue.models, session.model))
    own = (await session.client.get_agent(session.agent)).model
    if own:
        raise CommandError(
            f"{session.agent} has a model of its own, {own}, whichever is active; "
            f"`crabtalk agents edit {session.agent}` changes it"
        )
    await session.client.set_active_model(rest)
    await session.refresh_catalogue()
    return CommandReply(notice=f"{rest} answers from now on, for every agent that names no other")


async def choose_mode(session: ChatSession, rest: str) -> CommandReply:
    if not rest:
        info = await session.load_mode()
        return CommandReply(reply_markdown.format_modes(session.mode, info))
    if rest != "default" and rest not in MODES:
        names = ", ".join([*MODES, "default"])
        raise CommandError(f"there is no mode {rest!r}; there are {names}")
    await session.set_mode("" if rest == "default" else rest)
    about = MODES.get(session.mode, "")
    return CommandReply(notice=f"{session.mode} mode: {about}" if about else f"{session.mode} mode")


async def review_approvals(session: ChatSession, rest: str) -> CommandReply:
    if not len(session.approvals):
        return CommandReply(notice="no run of other people waits for your approval")
    return CommandReply(reviews_approvals=True)


async def show_servers(session: ChatSession, rest: str) -> CommandReply:
    servers = (await session.client.list_mcps(session.agent)).mcps
    if not servers:
        return CommandReply(
            notice=f"{session.agent} has no MCP servers; `crabtalk mcp add` adds one"
        )
    return CommandReply(reply_markdown.format_servers(servers))


async def show_events(session: ChatSession, rest: str) -> CommandReply:
    subscriptions = (await session.client.list_subscriptions()).subscriptions
    return CommandReply(reply_markdown.format_events(session.recent_events, subscriptions))


async def change_title(session: ChatSession, rest: str) -> CommandReply:
    if not rest:
        title = await session.conversation.load_title()
        return CommandReply(notice=title or "it has no title yet; /title WORDS gives it one")
    await session.client.set_title(session.agent, rest, sender=session.sender or None)
    return CommandReply(notice=f"it is called {await session.conversation.load_title()}")


async def show_cost(session: ChatSession, rest: str) -> CommandReply:
    return CommandReply(reply_markdown.format_cost(session.spending))


async def export_conversation(session: ChatSession, rest: str) -> CommandReply:
    path, file_format = parse_export_path(rest, session)
    title = await session.conversation.load_title()
    exporter = create_exporter(file_format, agent=session.agent, sender=session.sender, title=title)
    count = 0
    with explain_write_errors(path):
        # Never overwrite a file.
        file = path.open("x", encoding="utf-8")
    try:
        with explain_write_errors(path):
            file.write(exporter.begin())
        async for page in session.conversation.iter_pages():
            count += len(page)
            with explain_write_errors(path):
                await asyncio.to_thread(file.write, exporter.add(page))
        with explain_write_errors(path):
            file.write(exporter.end())
            file.close()
    except BaseException:
        with suppress(OSError):
            file.close()
        path.unlink(missing_ok=True)
        raise
    return CommandReply(notice=f"{format_count(count, 'message')} written to {path}")


async def leave_chat(session: ChatSession, rest: str) -> CommandReply:
    return CommandReply(leaves_chat=True)


HANDLERS: dict[str, Callable[[ChatSession, str], Awaitable[CommandReply]]] = {
    "help": show_help,
    "agents": show_agents,
    "agent": switch_agent,
    "guest": invite_guest,
    "new": start_new,
    "compact": compact_conversation,
    "archives": show_archives,
    "search": search_conversations,
    "history": show_history,
    "memory": show_memory,
    "skills": show_skills,
    "model": choose_model,
    "mode": choose_mode,
    "approvals": review_approvals,
    "mcp": show_servers,
    "events": show_events,
    "title": change_title,
    "cost": show_cost,
    "export": export_conversation,
    "quit": leave_chat,
}


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise CommandError that names the file, which an error of a full disk does not."""
    try:
        yield
    except FileExistsError:
        raise CommandError(f"{path} is there already; /export FILE names another") from None
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}; /export FILE names another"
        ) from None


def parse_number(text: str, maximum: int) -> int:
    """Parse a number from 1 to `maximum`."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise CommandError(f"{text!r} is no number from 1 to {maximum}")
    return int(text)


def parse_export_path(typed: str, session: ChatSession) -> tuple[Path, ExportFormat]:
    """Return the path and the format, which the end of the name gives."""
    path = Path(typed or make_file_name(session))
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise CommandError(f"end the name of the file in {', '.join(FORMATS)}")
    try:
        return path.expanduser(), file_format
    except RuntimeError:
        raise CommandError(f"{path} is in the directory of an unknown user; name another") from None


def make_file_name(session: ChatSession) -> str:
    pair = UNSAFE_CHARACTERS.sub("-", f"{session.agent}-{session.sender}").strip("-.")
    return f"{pair}-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}.md"
