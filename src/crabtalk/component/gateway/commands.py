"""Commands: what begins with a slash. Ours are carried out; what names a skill is the agent's."""

from dataclasses import dataclass

from crabtalk.client import Client, ServerError

from .service import Rich

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

# Answered at once, whatever the agent is doing.
QUICK = frozenset({"start", "help", "agents", "search", "title"})
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


async def agent_names(client: Client) -> list[str]:
    return [agent.name for agent in (await client.list_agents()).agents]


async def is_skill(client: Client, name: str) -> bool:
    return any(skill.name.lower() == name for skill in (await client.list_skills()).skills)


async def describe_agents(client: Client, current: str) -> Rich:
    agents = (await client.list_agents()).agents
    lines = [
        f"- {agent.name}{' (here)' if agent.name == current else ''}"
        f"{f': {agent.description}' if agent.description else ''}"
        for agent in agents
    ]
    return "\n".join(["Agents:", *lines]) if lines else "There are no agents."


async def search(client: Client, agent: str, sender: str, words: str) -> Rich:
    if not words:
        return "Say what to look for: /search WORDS"
    hits = (await client.search_sessions(words, agent=agent, sender=sender, limit=HITS)).hits
    lines = []
    for hit in hits:
        found = next((one for one in hit.window if one.message_id == hit.message_id), None)
        if found is not None:
            snippet = " ".join(found.snippet.split())[:SNIPPET]
            lines.append(f"- {hit.updated_at[:10]} {found.role}: {snippet}")
    return "\n".join(lines) if lines else f"Nothing was found for “{words}”."


async def name_it(client: Client, agent: str, sender: str, title: str) -> Rich:
    if not title:
        return "Say how to call it: /title WORDS"
    await client.set_title(agent, title, sender=sender)
    return f"This conversation is called “{title}” now."


async def fold(client: Client, agent: str, sender: str, *, fresh: bool) -> Rich:
    """Raises ServerError for anything but an empty conversation."""
    try:
        summary = await client.compact(agent, sender=sender, fresh=fresh)
    except ServerError as error:
        if error.code not in (400, 404):
            raise
        return "There is nothing here yet." if fresh else f"Nothing was folded: {error.message}"
    if fresh:
        return "We begin anew."
    return f"Folded into a summary:\n\n{summary}"
