"""Commands: what begins with a slash. Ours are carried out; what names a skill is the agent's."""

from dataclasses import dataclass

from crabtalk.client import ServerError

from .bindings import NOT_ALLOWED
from .desk import Desk
from .entries import Ask, Asking, Chose, Item, Unasked
from .errors import BUSY
from .service import Rich, Update

HELP = """\
Write, and the agent answers. What you write while it works, it reads as it goes on.

/agent NAME: talk to another agent; /agents lists them
/guest NAME WORDS, or @NAME WORDS: have another agent speak once
/stop: stop what is going on
/new: begin anew; what was said stays searchable
/compact: fold what was said into a summary
/search WORDS: find what was said
/title WORDS: name this conversation
/help: this text

A name of a skill behind a slash uses the skill."""
OWNER_HELP = "/mode, /mode NAME: show or set what the agent may do without asking you"
NOT_OWNER = "Only the owner of this program can see or set the mode."
# What sets a conversation back to its agent's own mode.
DEFAULT = "default"
MODES = (
    "plan: it only reads",
    "ask: it asks before it edits a file or runs a command that may do harm",
    "accept-edits: it edits files without asking",
    "auto: it does all that the agent's file allows",
    f"{DEFAULT}: as the agent's file says",
)

# Answered at once, whatever the agent is doing.
QUICK = frozenset({"start", "help", "agents", "search", "title", "mode"})
NAMES = QUICK | {"agent", "guest", "stop", "new", "compact"}
HITS = 5
SNIPPET = 200


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    rest: str = ""


def parse(text: str) -> Command | None:
    """None for what is no command. `/name@bot words` is one as groups write it."""
    if not text.startswith("/"):
        return None
    first, _, rest = text[1:].partition(" ") if " " in text else (text[1:], "", "")
    if "\n" in first:
        first, _, more = first.partition("\n")
        rest = f"{more} {rest}"
    name = first.partition("@")[0].lower()
    return Command(name, rest.strip()) if name else None


def guest_in(text: str) -> Command | None:
    """`@name words` as one: the name and the words."""
    first, _, rest = text.partition(" ")
    if len(first) < 2 or not first.startswith("@") or not rest.strip():
        return None
    return Command(first[1:], rest.strip())


class Commands:
    """Ours. Each gives the text of its answer, and raises what the client raises."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._client = desk.link.client

    async def is_agent(self, name: str) -> bool:
        return name in [agent.name for agent in (await self._client.list_agents()).agents]

    async def is_skill(self, name: str) -> bool:
        skills = (await self._client.list_skills()).skills
        return any(skill.name.lower() == name for skill in skills)

    async def run(self, item: Item, command: Command) -> Rich:
        agent, sender = self._desk.agent(item.update), self._desk.sender(item.update)
        match command.name:
            case "start" | "help":
                return self._build_help(item.update)
            case "agents":
                return await self._agents(item.update, agent)
            case "mode":
                return await self._show_or_set_mode(
                    item.update, agent, sender, command.rest.lower()
                )
            case "agent":
                return await self._choose(item, agent, command.rest)
            case "search":
                return await self._search(agent, sender, command.rest)
            case "title":
                return await self._title(agent, sender, command.rest)
            case "new" | "compact":
                return await self._fold(item, agent, sender, command.name)
            case "guest":
                called = guest_in(f"@{command.rest}")
                if called is None:
                    return "Say who, and what: /guest NAME WORDS"
                if not self.is_allowed(item.update, called.name):
                    return NOT_ALLOWED.format(name=called.name)
                return f"There is no agent {called.name}; see /agents"
            case _:
                return f"There is no command or skill /{command.name}; see /help"

    def is_allowed(self, update: Update, agent: str) -> bool:
        return self._desk.bindings.is_allowed(update, agent)

    def _build_help(self, update: Update) -> Rich:
        return f"{HELP}\n\n{OWNER_HELP}" if self._desk.bindings.may_set_mode(update) else HELP

    async def _show_or_set_mode(self, update: Update, agent: str, sender: str, name: str) -> Rich:
        """Shows or sets the permission mode. The daemon still decides what a run may do."""
        if not self._desk.bindings.may_set_mode(update):
            return NOT_OWNER
        known = [mode.partition(":")[0] for mode in MODES]
        if name and name not in known:
            return "\n".join([f"There is no mode {name}. The modes are:", *MODES])
        wanted = None if not name else "" if name == DEFAULT else name
        info = await self._client.set_mode(agent, wanted, sender=sender)
        origin = "set for this conversation" if info.is_set else "as the agent's file says"
        return f"The mode is {info.mode} ({origin})."

    async def _agents(self, update: Update, current: str) -> Rich:
        lines = [
            f"- {agent.name}{' (here)' if agent.name == current else ''}"
            f"{f': {agent.description}' if agent.description else ''}"
            for agent in (await self._client.list_agents()).agents
            if self.is_allowed(update, agent.name)
        ]
        return "\n".join(["Agents:", *lines])

    async def _choose(self, item: Item, current: str, name: str) -> Rich:
        if not name:
            return f"You are talking to {current}. /agent NAME changes that; /agents lists them."
        # Before the daemon is asked: whether there is such an agent is not everybody's business.
        if not self.is_allowed(item.update, name):
            return NOT_ALLOWED.format(name=name)
        if not await self.is_agent(name):
            return f"There is no agent {name}; see /agents"
        chosen = "" if name == self._desk.bindings.default_agent(item.update) else name
        self._desk.journal.note(Chose(item.update.chat.id, chosen))
        return f"You are talking to {name} now."

    async def _search(self, agent: str, sender: str, words: str) -> Rich:
        if not words:
            return "Say what to look for: /search WORDS"
        found = await self._client.search_sessions(words, agent=agent, sender=sender, limit=HITS)
        lines = [
            f"- {hit.updated_at[:10]} {one.role}: {' '.join(one.snippet.split())[:SNIPPET]}"
            for hit in found.hits
            for one in hit.window
            if one.message_id == hit.message_id
        ]
        return "\n".join(lines) if lines else f"Nothing was found for “{words}”."

    async def _title(self, agent: str, sender: str, title: str) -> Rich:
        if not title:
            return "Say how to call it: /title WORDS"
        await self._client.set_title(agent, title, sender=sender)
        return f"This conversation is called “{title}” now."

    async def _fold(self, item: Item, agent: str, sender: str, name: str) -> Rich:
        """Writes the number of archives into the journal first: after a crash, one more means that
        this was done."""
        offset = len(await self._desk.link.archives(agent, sender))
        ask = Ask(kind="compact", agent=agent, sender=sender, text=name, offset=offset)
        await self._desk.journal.keep(Asking(item.id, ask))
        try:
            summary = await self._client.compact(agent, sender=sender, fresh=name == "new")
        except ServerError as error:
            if error.code == BUSY:
                self._desk.journal.note(Unasked(item.id))
            if error.code not in (400, 404):
                raise
            return "There is nothing here yet."
        return folded(name, summary)


def folded(name: str, summary: str) -> Rich:
    return "We begin anew." if name == "new" else f"Folded into a summary:\n\n{summary}"
