"""Policy: the one place that decides whether a call is allowed, asked about or denied.

A call is judged by the origin of its run, the agent, the tool and what it touches. A delegated run
is judged once for every agent in its line, from the first caller to itself, and the strictest
verdict counts: so it may do no more than any of them.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from pathlib import Path

import msgspec

from crabtalk.protocol import sender_folder
from crabtalk.runtime import Access, Run, ToolDispatch
from crabtalk.storage import Agent, Pair

from .defaults import STRANGER_DENIALS, Mode, default_verdict, parse_mode
from .file_access import FILES, SKILLS, FileAccess
from .origins import Owners, Standing
from .rules import Permissions, Request, Rule, find_cover, find_match, parse_rule


class Decision(IntEnum):
    """From the most permissive to the strictest."""

    ALLOW = 0
    ASK = 1
    DENY = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Verdict(msgspec.Struct, frozen=True):
    decision: Decision
    reason: str


class Policy:
    """`home` is the daemon's; `mode_of` and `remembered` tell what was set for a conversation."""

    def __init__(
        self,
        home: Path | None = None,
        owners: Owners | None = None,
        *,
        mode_of: Callable[[Pair], str] = lambda pair: "",
        remembered: Callable[[Pair], Collection[str]] = lambda pair: (),
        roots_of: Callable[[Agent], tuple[Path, ...]] = lambda agent: (),
    ) -> None:
        self.home = home
        self.owners = owners or Owners()
        self._mode_of = mode_of
        self._remembered = remembered
        self._roots_of = roots_of

    # ── What holds for a run ────────────────────────────────────────────────────────────────

    def standing(self, run: Run, agent: Agent) -> Standing:
        """Of the run's origin, with all agents in its line."""
        return self.owners.standing(run.origin, (*run.lineage, agent))

    def mode(self, run: Run, agent: Agent) -> Mode:
        """The mode of the first run, tightened by every agent below it."""
        line = (*run.lineage, agent)
        mode = self.conversation_mode(run.tree.root, line[0])
        for below in line[1:]:
            if below.mode:
                mode = min(mode, parse_mode(below.mode))
        return mode

    def conversation_mode(self, run: Run, agent: Agent) -> Mode:
        """What the turn asks for, else what was set for the conversation, else the agent's."""
        return parse_mode(run.mode or self._mode_of(run.pair) or agent.mode or Mode.AUTO.word)

    def file_access(self, run: Run, agent: Agent) -> FileAccess:
        """Where the file tools of a run may go."""
        line = (*run.lineage, agent)
        folders = [roots for each in line if (roots := self._roots_of(each))]
        # A sandbox lets commands write one directory only, and so do the file tools.
        box = sandbox_above(run) or run.cwd
        writable = (box,) if any(map(has_sandbox, line)) else ()
        if self.home is None:
            return FileAccess(tuple(folders), writable=writable)
        files = self.home / FILES
        if self.owners.standing(run.origin, line) is Standing.STRANGER:
            own = sender_folder(self.home, run.origin)
            return FileAccess(
                ((own, *stranger_folders(line, "read", "edit")),),
                self.home,
                open_in_home=(own,),
                writable=writable or (own, *stranger_folders(line, "edit")),
            )
        return FileAccess(
            tuple(folders),
            self.home,
            open_in_home=(files,),
            readable_in_home=(self.home / SKILLS,),
            writable=writable,
        )

    def working_directory(self, agent: Agent, origin: str, cwd: Path) -> Path:
        """A stranger works in the folder of its own, whatever was asked for."""
        is_stranger = self.owners.standing(origin, (agent,)) is Standing.STRANGER
        return sender_folder(self.home, origin) if self.home and is_stranger else cwd

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def judge(self, request: Request, agent: Agent) -> Verdict:
        """The strictest verdict of all agents in line. Looks at the file system in a thread."""
        if request.access.kind in ("read", "edit", "shell"):
            return await asyncio.to_thread(self.judge_now, request, agent)
        return self.judge_now(request, agent)

    def judge_now(self, request: Request, agent: Agent) -> Verdict:
        """The same, blocking."""
        run = request.call.run
        standing = self.standing(run, agent)
        mode = self.mode(run, agent)
        remembered = self._remembered(run.tree.root.pair)
        # Relative paths in an agent's rules begin where that agent works: a task in a folder
        # below does not shift them.
        line = zip((*run.lineage, agent), (*run.directories, request.call.cwd), strict=True)
        verdicts = [
            self._judge_for(request, each, directory, standing, mode, remembered)
            for each, directory in line
        ]
        return max(verdicts, key=lambda verdict: verdict.decision)

    def _judge_for(
        self,
        request: Request,
        agent: Agent,
        directory: Path,
        standing: Standing,
        mode: Mode,
        remembered: Collection[str],
    ) -> Verdict:
        permissions = Permissions.of(agent)
        is_understood = request.access.kind != "mcp" and bool(request.access.target)
        if is_understood and not request.is_readable:
            # The tool understands arguments that we do not: what they say cannot be checked.
            return Verdict(Decision.DENY, "its arguments cannot be checked; write plain JSON")
        if (denial := find_denied_command(request, agent)) is not None:
            return Verdict(Decision.DENY, denial)
        if (rule := find_match(permissions.deny, request, directory)) is not None:
            return Verdict(Decision.DENY, f"the file of {agent.name} denies {rule}")
        if standing is Standing.STRANGER:
            refusal = self._deny_stranger(request, agent, permissions, directory)
            if refusal is not None:
                return refusal
        if mode is Mode.PLAN:
            planned = self._judge_by_mode(request, mode)
            if planned.decision is Decision.DENY:
                return planned  # whatever is allowed elsewhere: a plan changes nothing
        always = [rule for text in remembered if (rule := remembered_rule(text)) is not None]
        if (cover := find_cover(always, request)) is not None:
            return Verdict(Decision.ALLOW, f"you always allow {cover} in this conversation")
        if (rule := find_match(permissions.ask, request, directory)) is not None:
            return Verdict(Decision.ASK, f"the file of {agent.name} asks before {rule}")
        if (cover := find_cover(permissions.allow, request, directory)) is not None:
            return Verdict(Decision.ALLOW, f"the file of {agent.name} allows {cover}")
        return self._judge_by_mode(request, mode)

    def _deny_stranger(
        self, request: Request, agent: Agent, permissions: Permissions, directory: Path
    ) -> Verdict | None:
        """What a sender that is not the owner may not do, unless the agent's file opens it."""
        sentence = STRANGER_DENIALS.get(request.access.kind)
        if sentence is None or find_cover(permissions.strangers, request, directory) is not None:
            return None
        if request.access.kind == "delegate" and not request.access.target:
            return None  # to workers, which have the caller's own rights
        origin = request.call.run.origin[:80]
        return Verdict(Decision.DENY, sentence.format(sender=repr(origin), agent=agent.name))

    def _judge_by_mode(self, request: Request, mode: Mode) -> Verdict:
        decision, reason = default_verdict(request.access.kind, mode)
        if request.access.kind == "shell" and decision != "allow":
            from .harmless_commands import is_harmless  # late, as all of the shell parser

            call = request.call
            is_free = not request.arguments.get("env")
            if is_free and is_harmless(request.access.target, call.cwd, self.home or call.cwd):
                return Verdict(Decision.ALLOW, "it only reads")
        return Verdict(Decision[decision.upper()], reason)

    def request(self, call: ToolDispatch, names: Sequence[str], access: Access) -> Request:
        return Request(call, names, access)


def stranger_folders(line: Sequence[Agent], *tools: str) -> tuple[Path, ...]:
    """Folders that the file of every agent in line opens to strangers: `read(/srv/docs/**)` to
    read, `edit(/srv/drafts/**)` to read and to change."""
    opened: set[Path] | None = None
    for agent in line:
        rules = Permissions.of(agent).strangers
        folders = {
            Path(rule.pattern.removesuffix("/**")).expanduser()
            for rule in rules
            if rule.tool in tools and rule.pattern and rule.pattern.endswith("/**")
        }
        opened = folders if opened is None else opened & folders
    return tuple(sorted(opened or ()))


def sandbox_above(run: Run) -> Path | None:
    """The directory of the first run above with a sandbox, which is all that a sandbox lets the
    run change; None without one. The run's own directory lies inside of it, where its caller may
    put a link in its place, so it bounds nothing."""
    above = zip(run.lineage, run.directories, strict=True)
    return next((directory for caller, directory in above if has_sandbox(caller)), None)


def has_sandbox(agent: Agent) -> bool:
    return bool(agent.hooks.get("bash", {}).get("sandbox", "off") != "off")


def find_denied_command(request: Request, agent: Agent) -> str | None:
    """Why [hooks.bash] deny of an agent's file is against a command. What cannot be read could be
    what is denied."""
    deny = agent.hooks.get("bash", {}).get("deny", ()) if request.access.kind == "shell" else ()
    if not deny:
        return None
    from .shell_commands import UnreadableCommandError  # late: few agents deny commands
    from .shell_rules import find_denied

    try:
        entry = find_denied(request.access.target, deny)
    except UnreadableCommandError as error:
        return f"the command cannot be checked, because {error}; write it plainly"
    return f"the agent's file denies {entry!r}" if entry is not None else None


def remembered_rule(text: str) -> Rule | None:
    """A rule that "Always" remembered. Earlier versions remembered all of `bash` under a label that
    did not say so: that is asked again."""
    if text == "bash":
        return None
    try:
        return parse_rule(text)
    except ValueError:
        return None
