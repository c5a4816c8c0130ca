"""SkillHook (RFC 0036): the tool `skill`, slash commands, and the limits that skills set.

A skill is active from when it is loaded until the end of the run. While it is active, its
`allowed-tools` limit which tools the agent may call; with several active skills all limits apply.
"""

import asyncio
import hashlib
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from crabtalk.model import Tool as Schema
from crabtalk.runtime import (
    Clock,
    Done,
    Event,
    Run,
    ToolDispatch,
    ToolError,
    ToolOutput,
    escape_markup,
)
from crabtalk.storage import Agent

from .skill_files import Skill, SkillFiles, read_skill
from .skill_front_matter import SkillError
from .tool import AgentTool, ToolHook

log = logging.getLogger(__name__)

SCAN_MAX_AGE = 2.0  # seconds between two scans that block the event loop
MAX_LISTED = 40  # in a prompt, which is sent with every request
MAX_PROBLEMS = 20
MAX_LISTED_LENGTH = 120
MAX_SLASH_COMMANDS = 1024  # slash commands whose turns have not begun
FORMER_TOOL_NAME = "skill_tool"  # still accepted in calls, no longer offered
# Skills cannot forbid these.
ALWAYS_ALLOWED_TOOLS = frozenset({"skill", FORMER_TOOL_NAME, "ask_user", "set_title"})

SLASH_COMMAND = re.compile(r"\s*/([a-z0-9-]+)(.*)", re.DOTALL)
SKILL_TAG = re.compile(r"<(?=\s*+/?\s*+skill(?![\w-]))", re.IGNORECASE)
USAGE = "Call the tool skill with one of these names before doing what that skill is for."


class SkillTool(AgentTool):
    """Load a skill by name; with a part of it search, with nothing list all."""

    name: ClassVar[str] = "skill"
    kind: ClassVar[str] = "conversation"

    skill: str = msgspec.field(name="name", default="")

    async def run(self, call: ToolDispatch, hook: Any) -> str:
        if any(part in self.skill for part in ("..", "/", "\\")):
            raise ToolError("invalid arguments: name must be that of a skill, not a path")
        answer: str = await hook.use(call, self.skill.strip())
        return answer


class SkillHook(ToolHook):
    """`roots` are labels and directories. A skill in an earlier root hides skills of the same name
    in later ones."""

    tools = (SkillTool,)

    def __init__(self, roots: Sequence[tuple[str, Path]], clock: Clock | None = None) -> None:
        self._files = SkillFiles(roots)
        self._clock = clock or Clock()
        self._scanned_at: float | None = None
        self._scopes: dict[str, tuple[str, ...]] = {}  # by agent; empty: all skills
        # Tools that active skills allow, by run and skill. Skills without a limit are left out.
        self._active: dict[str, dict[str, frozenset[str]]] = {}
        # The same for slash commands whose turns have not begun, by the hash of the expanded text.
        self._slash_commands: OrderedDict[bytes, tuple[str, frozenset[str]]] = OrderedDict()

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._scopes[name] = agent.skills

    def on_unregister_agent(self, name: str) -> None:
        self._scopes.pop(name, None)

    def schema(self) -> list[Schema]:
        """Offer the tool only if there are skills, as every request carries its schema."""
        # Scanning is cheap while there are no skills.
        return super().schema() if self._files.skills or self._scan_if_stale() else []

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        names = escape_markup(", ".join(agent.skills), quotes=False)
        return ["skill"], f"skills: {names}" if names else None

    def on_build_agent(self, agent: Agent) -> Agent:
        """Add the list of skills to the prompt, if the agent may load any."""
        known = select_skills_in_scope(agent.skills, self._scan_if_stale().values())
        if not known or (agent.tools and "skill" not in agent.tools):
            return agent
        lines = [
            f"- {s.name}: {escape_markup(shorten_description(s), quotes=False)}"
            for s in known[:MAX_LISTED]
        ]
        if len(known) > MAX_LISTED:
            lines.append(f"and {len(known) - MAX_LISTED} more; call skill without a name for all")
        block = "\n".join(["<resources>", "Skills:", USAGE, *lines, "</resources>"])
        return msgspec.structs.replace(agent, prompt=f"{agent.prompt}\n\n{block}")

    # ── The tool ────────────────────────────────────────────────────────────────────────────

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        return super().dispatch(
            msgspec.structs.replace(call, name="skill") if call.name == FORMER_TOOL_NAME else call
        )

    async def use(self, call: ToolDispatch, name: str) -> str:
        """Return the skill of that name and its directory, else a list of skills that match."""
        await self.refresh()
        scope = self._scopes.get(call.agent)
        skill = self._files.skills.get(name)
        if skill is None:
            return format_skill_list(
                select_skills_in_scope(scope, self._files.skills.values()), name
            )
        if not is_in_scope(scope, name):
            raise ToolError(f"tool not available: {name}")
        try:
            fresh, body = await asyncio.to_thread(reload_skill, skill)
        except (SkillError, OSError) as error:
            raise ToolError(f"skill failed: {name}: {error}") from None
        self._activate(call.run, name, list_allowed_tools(fresh))
        return f"skill directory: {fresh.directory}\n{body}"

    async def refresh(self) -> None:
        """Scan the disk in a thread. When this is cancelled, the skills may be as before."""
        self._log_warnings(await asyncio.to_thread(self._files.scan))

    def _scan_if_stale(self) -> Mapping[str, Skill]:
        """Return all skills, for callers that cannot await. Scans the disk at most every
        SCAN_MAX_AGE seconds."""
        if self._scanned_at is None or self._clock.monotonic() - self._scanned_at >= SCAN_MAX_AGE:
            self._log_warnings(self._files.scan())
        return self._files.skills

    def _log_warnings(self, warnings: Iterable[str]) -> None:
        self._scanned_at = self._clock.monotonic()
        for warning in warnings:
            log.warning("skills: %s", warning)

    @property
    def problems(self) -> list[str]:
        """The first MAX_PROBLEMS problems of skills on disk, a sentence each."""
        return [f"skills: {warning}" for warning in self._files.warnings[:MAX_PROBLEMS]]

    # ── Slash commands ──────────────────────────────────────────────────────────────────────

    def preprocess(self, agent: str, content: str) -> str | None:
        """Expand `/name words` to the words and a block with the skill.

        Neither the words nor the skill can close or imitate the block's tags.
        """
        match = SLASH_COMMAND.match(content)
        if match is None or not is_in_scope(self._scopes.get(agent), match[1]):
            return None
        loaded = self._load_by_name(match[1])
        if loaded is None:
            return None
        skill, body = loaded
        words = SKILL_TAG.sub("&lt;", match[2].strip())
        header = f"skill directory: {skill.directory}\n" if has_resources(skill) else ""
        block = f'<skill name="{skill.name}">\n{SKILL_TAG.sub("&lt;", header + body)}\n</skill>'
        text = f"{words}\n\n{block}" if words else block
        if allowed := list_allowed_tools(skill):
            self._slash_commands[hash_text(text)] = skill.name, allowed
            self._slash_commands.move_to_end(hash_text(text))
            if len(self._slash_commands) > MAX_SLASH_COMMANDS:
                self._slash_commands.popitem(last=False)
        return text

    def _load_by_name(self, name: str) -> tuple[Skill, str] | None:
        """Load a skill from where the last scan found it; if that fails, scan again."""
        problem: Exception | None = None
        for is_last in (False, True):
            known = self._scan_if_stale() if is_last else self._files.skills
            if (skill := known.get(name)) is not None:
                try:
                    return reload_skill(skill)
                except (SkillError, OSError) as error:
                    problem = error
        if problem is not None:
            log.warning("skills: /%s was left as it is: %s", name, problem)
        return None

    # ── Limits of active skills ─────────────────────────────────────────────────────────────

    def on_turn(self, run: Run, content: str) -> None:
        # The limits of a run's skills also apply to the tasks it delegates.
        if run.parent is not None and (inherited := self._active.get(run.parent.run_id)):
            self._active[run.id] = dict(inherited)
        # Texts that preprocess expanded end like this; others need not be hashed.
        if content.endswith("</skill>") and (
            command := self._slash_commands.get(hash_text(content))
        ):
            self._activate(run, *command)

    def on_event(self, run: Run, event: Event) -> None:
        if isinstance(event, Done):
            self._active.pop(run.id, None)

    def _activate(self, run: Run, name: str, allowed: frozenset[str]) -> None:
        # Only the first load counts: an agent must not lift its limits by editing the file.
        if allowed and run.done is None:
            self._active.setdefault(run.id, {}).setdefault(name, allowed)

    def find_refusal(self, call: ToolDispatch) -> str | None:
        """Return why an active skill forbids a call, or None if it is allowed."""
        if call.name in ALWAYS_ALLOWED_TOOLS:
            return None
        for name, allowed in self._active.get(call.run.id, {}).items():
            if call.name.lower() not in allowed:
                these = ", ".join(sorted(allowed))
                return f"tool not available: {call.name}: the skill {name} allows only {these}"
        return None

    def list_sources(self) -> list[tuple[str, str]]:
        """Return the names of all skills with the labels of their roots."""
        return [(name, skill.source) for name, skill in sorted(self._scan_if_stale().items())]


def reload_skill(skill: Skill) -> tuple[Skill, str]:
    """Read a skill and its body from disk again. Raises SkillError and OSError."""
    fresh, body = read_skill(skill.directory, skill.source)
    if fresh.name != skill.name:
        raise SkillError(f"it is called {fresh.name} by now")
    return fresh, body


def is_in_scope(scope: Sequence[str] | None, name: str) -> bool:
    """An empty scope means all skills (RFC 0082). None, for an unregistered agent, means none."""
    return scope is not None and (not scope or name in scope)


def select_skills_in_scope(scope: Sequence[str] | None, skills: Iterable[Skill]) -> list[Skill]:
    chosen = (skill for skill in skills if is_in_scope(scope, skill.name))
    return sorted(chosen, key=lambda skill: skill.name)


def has_resources(skill: Skill) -> bool:
    """Whether a skill has scripts, references or assets, so that the agent needs its directory."""
    try:
        with os.scandir(skill.directory) as entries:
            return any(entry.is_dir() for entry in entries)
    except OSError:
        return False


def format_skill_list(skills: Sequence[Skill], words: str) -> str:
    lines = [f"{skill.name}: {' '.join(skill.description.split())}" for skill in skills]
    matches = [line for line in lines if words.lower() in line.lower()]
    return "\n".join(matches) or "no skills found"


def shorten_description(skill: Skill) -> str:
    text = " ".join(skill.description.split())
    return text if len(text) <= MAX_LISTED_LENGTH else text[: MAX_LISTED_LENGTH - 1] + "…"


def list_allowed_tools(skill: Skill) -> frozenset[str]:
    """Return the allowed tool names in lower case. A pattern such as Bash(git:*) allows the whole
    tool."""
    return frozenset(entry.partition("(")[0].lower() for entry in skill.allowed_tools)


def hash_text(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
