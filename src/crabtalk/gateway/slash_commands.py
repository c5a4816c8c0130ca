"""Slash commands. The gateway runs its own commands; a skill's name is sent to the agent."""

from dataclasses import dataclass

from crabtalk.client import ServerError

from .agent_bindings import AGENT_NOT_ALLOWED
from .chat_service import Markdown, Update
from .errors import BUSY
from .gateway_context import GatewayContext
from .journal_records import (
    AgentChosen,
    DaemonRequest,
    PendingUpdate,
    RequestNotSent,
    RequestStarted,
)

HELP_TEXT = """\
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
OWNER_HELP_TEXT = "/mode, /mode NAME: show or set what the agent may do without asking you"
NOT_OWNER_TEXT = "Only the owner of this program can see or set the mode."
# Resets the conversation to the mode in its agent's file.
DEFAULT_MODE = "default"
MODES = (
    "plan: it only reads",
    "ask: it asks before it edits a file or runs a command that may do harm",
    "accept-edits: it edits files without asking",
    "auto: it does all that the agent's file allows",
    f"{DEFAULT_MODE}: as the agent's file says",
)

# Answered at once, even while the agent works.
IMMEDIATE_COMMANDS = frozenset({"start", "help", "agents", "search", "title", "mode"})
COMMAND_NAMES = IMMEDIATE_COMMANDS | {"agent", "guest", "stop", "new", "compact"}
MAX_HITS = 5
MAX_SNIPPET = 200


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    name: str
    arguments: str = ""


def parse_command(text: str) -> ParsedCommand | None:
    """Parse `/name words`, or `/name@bot words` as groups write it. None for other text."""
    if not text.startswith("/"):
        return None
    first, _, rest = text[1:].partition(" ") if " " in text else (text[1:], "", "")
    if "\n" in first:
        first, _, more = first.partition("\n")
        rest = f"{more} {rest}"
    name = first.partition("@")[0].lower()
    return ParsedCommand(name, rest.strip()) if name else None


def parse_guest(text: str) -> ParsedCommand | None:
    """Parse `@name words`. None for other text."""
    first, _, rest = text.partition(" ")
    if len(first) < 2 or not first.startswith("@") or not rest.strip():
        return None
    return ParsedCommand(first[1:], rest.strip())


class SlashCommandHandler:
    """The gateway's commands. Each returns the text of its answer and raises client errors."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._client = context.daemon.client

    async def agent_exists(self, name: str) -> bool:
        return name in [agent.name for agent in (await self._client.list_agents()).agents]

    async def skill_exists(self, name: str) -> bool:
        skills = (await self._client.list_skills()).skills
        return any(skill.name.lower() == name for skill in skills)

    async def run(self, item: PendingUpdate, command: ParsedCommand) -> Markdown:
        agent, sender = self._context.agent_for(item.update), self._context.sender_for(item.update)
        match command.name:
            case "start" | "help":
                return self._build_help(item.update)
            case "agents":
                return await self._list_agents(item.update, agent)
            case "mode":
                return await self._show_or_set_mode(
                    item.update, agent, sender, command.arguments.lower()
                )
            case "agent":
                return await self._choose_agent(item, agent, command.arguments)
            case "search":
                return await self._search(agent, sender, command.arguments)
            case "title":
                return await self._set_title(agent, sender, command.arguments)
            case "new" | "compact":
                return await self._compact(item, agent, sender, command.name)
            case "guest":
                guest_call = parse_guest(f"@{command.arguments}")
                if guest_call is None:
                    return "Say who, and what: /guest NAME WORDS"
                if not self.is_allowed(item.update, guest_call.name):
                    return AGENT_NOT_ALLOWED.format(name=guest_call.name)
                return f"There is no agent {guest_call.name}; see /agents"
            case _:
                return f"There is no command or skill /{command.name}; see /help"

    def is_allowed(self, update: Update, agent: str) -> bool:
        return self._context.bindings.is_allowed(update, agent)

    def _build_help(self, update: Update) -> Markdown:
        return (
            f"{HELP_TEXT}\n\n{OWNER_HELP_TEXT}"
            if self._context.bindings.may_set_mode(update)
            else HELP_TEXT
        )

    async def _show_or_set_mode(
        self, update: Update, agent: str, sender: str, name: str
    ) -> Markdown:
        """Show or set the permission mode. The daemon still decides what a run may do."""
        if not self._context.bindings.may_set_mode(update):
            return NOT_OWNER_TEXT
        known = [mode.partition(":")[0] for mode in MODES]
        if name and name not in known:
            return "\n".join([f"There is no mode {name}. The modes are:", *MODES])
        new_mode = None if not name else "" if name == DEFAULT_MODE else name
        info = await self._client.set_mode(agent, new_mode, sender=sender)
        origin = "set for this conversation" if info.is_set else "as the agent's file says"
        return f"The mode is {info.mode} ({origin})."

    async def _list_agents(self, update: Update, current: str) -> Markdown:
        lines = [
            f"- {agent.name}{' (here)' if agent.name == current else ''}"
            f"{f': {agent.description}' if agent.description else ''}"
            for agent in (await self._client.list_agents()).agents
            if self.is_allowed(update, agent.name)
        ]
        return "\n".join(["Agents:", *lines])

    async def _choose_agent(self, item: PendingUpdate, current: str, name: str) -> Markdown:
        if not name:
            return f"You are talking to {current}. /agent NAME changes that; /agents lists them."
        # Checked before the daemon is asked, because a chat must not learn which agents exist.
        if not self.is_allowed(item.update, name):
            return AGENT_NOT_ALLOWED.format(name=name)
        if not await self.agent_exists(name):
            return f"There is no agent {name}; see /agents"
        chosen = "" if name == self._context.bindings.choose_default_agent(item.update) else name
        self._context.journal.append(AgentChosen(item.update.chat.id, chosen))
        return f"You are talking to {name} now."

    async def _search(self, agent: str, sender: str, words: str) -> Markdown:
        if not words:
            return "Say what to look for: /search WORDS"
        result = await self._client.search_sessions(
            words, agent=agent, sender=sender, limit=MAX_HITS
        )
        lines = [
            f"- {hit.updated_at[:10]} {found.role}: {' '.join(found.snippet.split())[:MAX_SNIPPET]}"
            for hit in result.hits
            for found in hit.window
            if found.message_id == hit.message_id
        ]
        return "\n".join(lines) if lines else f"Nothing was found for “{words}”."

    async def _set_title(self, agent: str, sender: str, title: str) -> Markdown:
        if not title:
            return "Say how to call it: /title WORDS"
        await self._client.set_title(agent, title, sender=sender)
        return f"This conversation is called “{title}” now."

    async def _compact(self, item: PendingUpdate, agent: str, sender: str, name: str) -> Markdown:
        """Record the number of archives first: after a crash, one more archive means that the
        compaction was done."""
        offset = len(await self._context.daemon.list_archives(agent, sender))
        ask = DaemonRequest(kind="compact", agent=agent, sender=sender, text=name, offset=offset)
        await self._context.journal.append_and_flush(RequestStarted(item.id, ask))
        try:
            summary = await self._client.compact(agent, sender=sender, fresh=name == "new")
        except ServerError as error:
            if error.code == BUSY:
                self._context.journal.append(RequestNotSent(item.id))
            if error.code not in (400, 404):
                raise
            return "There is nothing here yet."
        return describe_compaction(name, summary)


def describe_compaction(name: str, summary: str) -> Markdown:
    return "We begin anew." if name == "new" else f"Folded into a summary:\n\n{summary}"
