"""Policy: the one place that decides whether a call is allowed, asked about or denied.

A call is judged by the origin of its run, the agent, the tool and the tool's target. A call of a
delegated run is judged once for each of its calling agents and once for its own agent, and the
strictest verdict counts: it may do no more than any of them.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from pathlib import Path

import msgspec

from crabtalk.protocol import get_sender_folder
from crabtalk.runtime import Run, ToolAccess, ToolDispatch
from crabtalk.storage import Agent, Pair

from .defaults import STRANGER_DENIALS, Mode, decide_by_default, parse_mode
from .file_access import FILES_FOLDER, SKILLS_FOLDER, FileAccess
from .rules import (
    PermissionRequest,
    Permissions,
    Rule,
    find_covering_rules,
    find_matching_rule,
    parse_rule,
)
from .sender_trust import Owners, TrustLevel


class Decision(IntEnum):
    """From the most permissive to the strictest."""

    ALLOW = 0
    ASK = 1
    DENY = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class PolicyVerdict(msgspec.Struct, frozen=True):
    decision: Decision
    reason: str


class Policy:
    """`home` is the daemon's. `mode_of` and `remembered` return the mode and the allowed rules that
    were set for a conversation."""

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

    # ── Runs ────────────────────────────────────────────────────────────────────────────────

    def find_trust_level(self, run: Run, agent: Agent) -> TrustLevel:
        """Return the lowest trust level of the run's origin with the agent and its callers."""
        return self.owners.find_trust_level(run.origin, (*run.caller_agents, agent))

    def find_mode(self, run: Run, agent: Agent) -> Mode:
        """Return the mode of the first run, tightened by the modes of all delegates below it."""
        agents = (*run.caller_agents, agent)
        mode = self.find_conversation_mode(run.tree.root, agents[0])
        for delegate in agents[1:]:
            if delegate.mode:
                mode = min(mode, parse_mode(delegate.mode))
        return mode

    def find_conversation_mode(self, run: Run, agent: Agent) -> Mode:
        """Return the mode of the turn, else of the conversation, else of the agent."""
        return parse_mode(run.mode or self._mode_of(run.pair) or agent.mode or Mode.AUTO.label)

    def grant_file_access(self, run: Run, agent: Agent) -> FileAccess:
        """Return which paths the file tools of a run may use."""
        agents = (*run.caller_agents, agent)
        folders = [roots for each_agent in agents if (roots := self._roots_of(each_agent))]
        # A sandbox limits writes of commands to one directory; the same limit applies here.
        box = find_caller_sandbox(run) or run.cwd
        writable = (box,) if any(map(has_sandbox, agents)) else ()
        if self.home is None:
            return FileAccess(tuple(folders), writable=writable)
        files = self.home / FILES_FOLDER
        if self.owners.find_trust_level(run.origin, agents) is TrustLevel.STRANGER:
            own = get_sender_folder(self.home, run.origin)
            return FileAccess(
                ((own, *list_stranger_folders(agents, "read", "edit")),),
                self.home,
                open_in_home=(own,),
                writable=writable or (own, *list_stranger_folders(agents, "edit")),
            )
        return FileAccess(
            tuple(folders),
            self.home,
            open_in_home=(files,),
            readable_in_home=(self.home / SKILLS_FOLDER,),
            writable=writable,
        )

    def find_working_directory(self, agent: Agent, origin: str, cwd: Path) -> Path:
        """Return `cwd`, or for a stranger always its own folder."""
        is_stranger = self.owners.find_trust_level(origin, (agent,)) is TrustLevel.STRANGER
        return get_sender_folder(self.home, origin) if self.home and is_stranger else cwd

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def judge(self, request: PermissionRequest, agent: Agent) -> PolicyVerdict:
        """Return the strictest verdict for the agent and its callers. File system access happens in
        a thread."""
        if request.access.kind in ("read", "edit", "shell"):
            return await asyncio.to_thread(self.judge_blocking, request, agent)
        return self.judge_blocking(request, agent)

    def judge_blocking(self, request: PermissionRequest, agent: Agent) -> PolicyVerdict:
        """Like judge, but blocking."""
        run = request.call.run
        trust_level = self.find_trust_level(run, agent)
        mode = self.find_mode(run, agent)
        remembered = self._remembered(run.tree.root.pair)
        # Relative paths in an agent's rules start at that agent's working directory, even for a
        # task that works in a folder below it.
        agents = zip(
            (*run.caller_agents, agent), (*run.caller_directories, request.call.cwd), strict=True
        )
        verdicts = [
            self._judge_for_agent(request, each_agent, directory, trust_level, mode, remembered)
            for each_agent, directory in agents
        ]
        return max(verdicts, key=lambda verdict: verdict.decision)

    def _judge_for_agent(
        self,
        request: PermissionRequest,
        agent: Agent,
        directory: Path,
        trust_level: TrustLevel,
        mode: Mode,
        remembered: Collection[str],
    ) -> PolicyVerdict:
        permissions = Permissions.from_agent(agent)
        has_target = request.access.kind != "mcp" and bool(request.access.target)
        if has_target and not request.has_readable_arguments:
            # The tool can parse arguments that we cannot, so they cannot be checked.
            return PolicyVerdict(Decision.DENY, "its arguments cannot be checked; write plain JSON")
        if (denial := find_denied_command(request, agent)) is not None:
            return PolicyVerdict(Decision.DENY, denial)
        if (rule := find_matching_rule(permissions.deny, request, directory)) is not None:
            return PolicyVerdict(Decision.DENY, f"the file of {agent.name} denies {rule}")
        if trust_level is TrustLevel.STRANGER:
            refusal = self._deny_stranger(request, agent, permissions, directory)
            if refusal is not None:
                return refusal
        if mode is Mode.PLAN:
            planned = self._judge_by_mode(request, mode)
            if planned.decision is Decision.DENY:
                return planned  # rules cannot override it: mode plan changes nothing
        always = [rule for text in remembered if (rule := parse_remembered_rule(text)) is not None]
        if (cover := find_covering_rules(always, request)) is not None:
            return PolicyVerdict(Decision.ALLOW, f"you always allow {cover} in this conversation")
        if (rule := find_matching_rule(permissions.ask, request, directory)) is not None:
            return PolicyVerdict(Decision.ASK, f"the file of {agent.name} asks before {rule}")
        if (cover := find_covering_rules(permissions.allow, request, directory)) is not None:
            return PolicyVerdict(Decision.ALLOW, f"the file of {agent.name} allows {cover}")
        return self._judge_by_mode(request, mode)

    def _deny_stranger(
        self, request: PermissionRequest, agent: Agent, permissions: Permissions, directory: Path
    ) -> PolicyVerdict | None:
        """Deny a call that strangers may not make, unless the agent's file opens it to them."""
        sentence = STRANGER_DENIALS.get(request.access.kind)
        if (
            sentence is None
            or find_covering_rules(permissions.strangers, request, directory) is not None
        ):
            return None
        if request.access.kind == "delegate" and not request.access.target:
            return None  # only to workers, which have the caller's rights
        origin = request.call.run.origin[:80]
        return PolicyVerdict(Decision.DENY, sentence.format(sender=repr(origin), agent=agent.name))

    def _judge_by_mode(self, request: PermissionRequest, mode: Mode) -> PolicyVerdict:
        decision, reason = decide_by_default(request.access.kind, mode)
        if request.access.kind == "shell" and decision != "allow":
            from .shell.harmless_commands import (
                is_harmless_line,  # late, as all of the shell parser
            )

            call = request.call
            sets_no_variables = not request.arguments.get("env")
            home = self.home or call.cwd
            if sets_no_variables and is_harmless_line(request.access.target, call.cwd, home):
                return PolicyVerdict(Decision.ALLOW, "it only reads")
        return PolicyVerdict(Decision[decision.upper()], reason)

    def build_request(
        self, call: ToolDispatch, names: Sequence[str], access: ToolAccess
    ) -> PermissionRequest:
        return PermissionRequest(call, names, access)


def list_stranger_folders(agents: Sequence[Agent], *tools: str) -> tuple[Path, ...]:
    """Return the folders that the files of all these agents open to strangers.

    `read(/srv/docs/**)` opens a folder for reading, `edit(/srv/drafts/**)` for reading and changes.
    """
    opened: set[Path] | None = None
    for agent in agents:
        rules = Permissions.from_agent(agent).strangers
        folders = {
            Path(rule.pattern.removesuffix("/**")).expanduser()
            for rule in rules
            if rule.tool in tools and rule.pattern and rule.pattern.endswith("/**")
        }
        opened = folders if opened is None else opened & folders
    return tuple(sorted(opened or ()))


def find_caller_sandbox(run: Run) -> Path | None:
    """Return the directory of the first calling agent with a sandbox, or None.

    This is the only directory the run may change. The run's own directory lies inside it, but is no
    boundary: the caller may replace it by a link.
    """
    callers = zip(run.caller_agents, run.caller_directories, strict=True)
    return next((directory for caller, directory in callers if has_sandbox(caller)), None)


def has_sandbox(agent: Agent) -> bool:
    return bool(agent.hooks.get("bash", {}).get("sandbox", "off") != "off")


def find_denied_command(request: PermissionRequest, agent: Agent) -> str | None:
    """Return why [hooks.bash] deny of an agent's file forbids a command, or None. A command that
    cannot be parsed is denied as well."""
    deny = agent.hooks.get("bash", {}).get("deny", ()) if request.access.kind == "shell" else ()
    if not deny:
        return None
    from .shell.commands import UnreadableCommandError  # late: few agents deny commands
    from .shell.rules import find_denied_entry

    try:
        entry = find_denied_entry(request.access.target, deny)
    except UnreadableCommandError as error:
        return f"the command cannot be checked, because {error}; write it plainly"
    return f"the agent's file denies {entry!r}" if entry is not None else None


def parse_remembered_rule(text: str) -> Rule | None:
    """Parse a rule stored by the answer "Always".

    The rule `bash` is ignored: earlier versions stored it under a label that did not say it allows
    all commands, so people are asked again.
    """
    if text == "bash":
        return None
    try:
        return parse_rule(text)
    except ValueError:
        return None
