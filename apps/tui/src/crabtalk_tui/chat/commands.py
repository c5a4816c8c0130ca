"""Commands: what a line that begins with `/` does. Everything else goes to the agent.

A command asks the daemon and gives a Reply; it prints nothing, and never raises for what a daemon
or a person can do wrong.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from crabtalk.client import ServerError
from crabtalk.component.command import counted
from crabtalk.protocol import wire
from crabtalk_tui.complaints import CommandError, complaint, is_too_long
from crabtalk_tui.options import MODES
from crabtalk_tui.stores import known

from . import answers
from .candidates import Catalogue
from .command_table import COMMANDS, Command
from .exporting import FORMS, Form, exporter
from .session import FAILURES, Kind, Session

HISTORY = 20  # messages
MOST_HISTORY = 2000
HITS = 5
AGENTS = "/agents has them"
SLUG = re.compile(r"[^\w.-]+")
CALL = re.compile(r"/([a-z]+)((?:\s.*)?)", re.DOTALL)
GUEST = re.compile(r"@([^\s@]+)\s+(\S.*)", re.DOTALL)


class Saying(NamedTuple):
    """A turn to come: to the agent, or with another one in its place."""

    text: str
    guest: str = ""
    tool_choice: str = ""


class Called(NamedTuple):
    command: Command
    rest: str


class Reply(NamedTuple):
    """What a command has to show, and what is to happen."""

    markdown: str = ""
    notice: str = ""
    kind: Kind = "info"
    messages: Sequence[wire.ConversationMessage] = ()  # to be shown as what was said before
    saying: Saying | None = None
    is_fresh: bool = False  # what was known of the context no longer holds
    leaves: bool = False
    reviews: bool = False  # approvals that wait for the owner are to be put


def read(text: str, catalogue: Catalogue) -> Called | Saying:
    """What a typed text is. Words no command has, skills among them, are said to the agent."""
    if (found := CALL.fullmatch(text)) and (command := COMMANDS.get(found[1])) is not None:
        return Called(command, found[2].strip())
    if (found := GUEST.fullmatch(text.strip())) and catalogue.has_agent(found[1]):
        return Saying(found[2], guest=found[1])
    return Saying(text)


async def run(called: Called, session: Session) -> Reply:
    """Cancelled, what it asked of the daemon may still be carried out."""
    try:
        return await DOING[called.command.name](session, called.rest)
    except FAILURES as error:
        return Reply(notice=complaint(error) or str(error), kind="error")


# ── Each of them ───────────────────────────────────────────────────────────────────────────────


async def show_help(session: Session, rest: str) -> Reply:
    name = rest.removeprefix("/")
    if name and name not in COMMANDS:
        raise CommandError(f"there is no command /{name}; /help has them all")
    if name:
        return Reply(answers.help_line(name))
    from .keys import KEYS  # late: it brings the terminal along

    return Reply(answers.help_page(KEYS))


async def show_agents(session: Session, rest: str) -> Reply:
    await session.refresh()
    return Reply(answers.agents(session.catalogue, session.agent))


async def switch_agent(session: Session, rest: str) -> Reply:
    if not rest:
        raise CommandError(
            f"this is {session.agent}; /agent NAME talks to another, /agents has them"
        )
    with known(AGENTS):
        await session.switch(rest)
    messages = await session.conversation.last(HISTORY)
    return Reply(notice=f"now with {rest}", messages=messages, is_fresh=True)


async def invite_guest(session: Session, rest: str) -> Reply:
    name, _, text = rest.partition(" ")
    if not text.strip():
        raise CommandError("say who and what: /guest NAME TEXT")
    with known(AGENTS):
        await session.client.get_agent(name)
    return Reply(saying=Saying(text.strip(), guest=name))


async def begin_afresh(session: Session, rest: str) -> Reply:
    try:
        await session.compact(fresh=True)
    except ServerError as error:
        if error.code in (400, 404):
            return Reply(notice="nothing was said yet: this is a beginning")
        raise
    notice = "a new beginning; /archives and /search have what was said before"
    return Reply(notice=notice, is_fresh=True)


async def compact(session: Session, rest: str) -> Reply:
    try:
        summary = await session.compact()
    except ServerError as error:
        if is_too_long(error.message):
            raise CommandError(f"{error.message}; /new begins afresh, and loses nothing") from None
        raise
    notice = "folded into a summary, which the agent goes on from"
    return Reply(summary, notice=notice, is_fresh=True)


async def show_archives(session: Session, rest: str) -> Reply:
    found: Sequence[wire.ArchiveInfo] = ()
    try:
        listed = await session.client.list_archives(session.agent, sender=session.sender or None)
        found = listed.archives
    except ServerError as error:
        if error.code != 404:
            raise
    if not found:
        return Reply(notice="nothing was folded yet; /compact does that")
    if not rest:
        return Reply(answers.archives(found))
    number = whole(rest, len(found))
    return Reply(found[number - 1].summary or "It was closed without a summary.")


async def search(session: Session, rest: str) -> Reply:
    if not rest:
        raise CommandError("say what to look for: /search WORDS")
    found = await session.client.search_sessions(
        rest, limit=HITS, context_before=1, context_after=1
    )
    return Reply(answers.hits(found.hits)) if found.hits else Reply(notice="nothing found")


async def show_history(session: Session, rest: str) -> Reply:
    count = whole(rest, MOST_HISTORY) if rest else HISTORY
    messages = await session.conversation.last(count)
    return Reply(messages=messages) if messages else Reply(notice="nothing was said yet")


async def show_memory(session: Session, rest: str) -> Reply:
    client, agent, sender = session.client, session.agent, session.sender or None
    if rest:
        hits = (await client.search_memory(agent, rest, limit=HITS, sender=sender)).hits
        return Reply(answers.memory_hits(hits)) if hits else Reply(notice="nothing found")
    page = await client.list_memory(agent, sender=sender)
    if not page.entries:
        return Reply(notice=f"{agent} remembers nothing yet")
    return Reply(answers.memory(page))


async def show_skills(session: Session, rest: str) -> Reply:
    await session.refresh()
    return Reply(answers.skills(session.catalogue))


async def choose_model(session: Session, rest: str) -> Reply:
    if not rest:
        await session.refresh()
        return Reply(answers.models(session.catalogue.models, session.model))
    own = (await session.client.get_agent(session.agent)).model
    if own:
        raise CommandError(
            f"{session.agent} has a model of its own, {own}, whichever is active; "
            f"`crabtalk agents edit {session.agent}` changes it"
        )
    await session.client.set_active_model(rest)
    await session.refresh()
    return Reply(notice=f"{rest} answers from now on, for every agent that names no other")


async def choose_mode(session: Session, rest: str) -> Reply:
    if not rest:
        info = await session.load_mode()
        return Reply(answers.format_modes(session.mode, info))
    if rest != "default" and rest not in MODES:
        names = ", ".join([*MODES, "default"])
        raise CommandError(f"there is no mode {rest!r}; there are {names}")
    await session.set_mode("" if rest == "default" else rest)
    about = MODES.get(session.mode, "")
    return Reply(notice=f"{session.mode} mode: {about}" if about else f"{session.mode} mode")


async def review_approvals(session: Session, rest: str) -> Reply:
    if not len(session.approvals):
        return Reply(notice="no run of other people waits for your approval")
    return Reply(reviews=True)


async def show_servers(session: Session, rest: str) -> Reply:
    found = (await session.client.list_mcps(session.agent)).mcps
    if not found:
        return Reply(notice=f"{session.agent} has no MCP servers; `crabtalk mcp add` adds one")
    return Reply(answers.servers(found))


async def show_events(session: Session, rest: str) -> Reply:
    subscriptions = (await session.client.list_subscriptions()).subscriptions
    return Reply(answers.events(session.happened, subscriptions))


async def title(session: Session, rest: str) -> Reply:
    if not rest:
        found = await session.conversation.title()
        return Reply(notice=found or "it has no title yet; /title WORDS gives it one")
    await session.client.set_title(session.agent, rest, sender=session.sender or None)
    return Reply(notice=f"it is called {await session.conversation.title()}")


async def show_cost(session: Session, rest: str) -> Reply:
    return Reply(answers.cost(session.spending))


async def export(session: Session, rest: str) -> Reply:
    path, form = destination(rest, session)
    name = await session.conversation.title()
    made = exporter(form, agent=session.agent, sender=session.sender, title=name)
    count = 0
    with writing(path):
        # Not in the place of another file: what is there is somebody's.
        file = path.open("x", encoding="utf-8")
    try:
        with writing(path):
            file.write(made.begin())
        async for page in session.conversation.pages():
            count += len(page)
            with writing(path):
                await asyncio.to_thread(file.write, made.add(page))
        with writing(path):
            file.write(made.end())
            file.close()
    except BaseException:
        with suppress(OSError):
            file.close()
        path.unlink(missing_ok=True)
        raise
    return Reply(notice=f"{counted(count, 'message')} written to {path}")


async def leave(session: Session, rest: str) -> Reply:
    return Reply(leaves=True)


DOING: dict[str, Callable[[Session, str], Awaitable[Reply]]] = {
    "help": show_help,
    "agents": show_agents,
    "agent": switch_agent,
    "guest": invite_guest,
    "new": begin_afresh,
    "compact": compact,
    "archives": show_archives,
    "search": search,
    "history": show_history,
    "memory": show_memory,
    "skills": show_skills,
    "model": choose_model,
    "mode": choose_mode,
    "approvals": review_approvals,
    "mcp": show_servers,
    "events": show_events,
    "title": title,
    "cost": show_cost,
    "export": export,
    "quit": leave,
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says which file it was: a disk that is full names none."""
    try:
        yield
    except FileExistsError:
        raise CommandError(f"{path} is there already; /export FILE names another") from None
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}; /export FILE names another"
        ) from None


def whole(text: str, most: int) -> int:
    """A number from 1 to `most`."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= most:
        raise CommandError(f"{text!r} is no number from 1 to {most}")
    return int(text)


def destination(typed: str, session: Session) -> tuple[Path, Form]:
    """Where to, and as what: the end of the name says."""
    path = Path(typed or file_name(session))
    form = FORMS.get(path.suffix.lower())
    if form is None:
        raise CommandError(f"end the name of the file in {', '.join(FORMS)}")
    try:
        return path.expanduser(), form
    except RuntimeError:
        raise CommandError(f"{path} is in nobody's directory; name another") from None


def file_name(session: Session) -> str:
    pair = SLUG.sub("-", f"{session.agent}-{session.sender}").strip("-.")
    return f"{pair}-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}.md"
