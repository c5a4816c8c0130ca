"""CompositeHook: combines all hooks into the one hook the engine sees (RFC 0075).

It refuses calls outside an agent's scope before any hook runs them, and adds to an agent's prompt
what the hooks have to say.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from crabtalk.model import Tool as Schema
from crabtalk.policy import Policy, ToolInScope
from crabtalk.runtime import (
    AskUser,
    Done,
    Event,
    Hook,
    Run,
    ToolAccess,
    ToolDispatch,
    ToolError,
    ToolOutput,
    ToolRefused,
    ToolsComplete,
    escape_markup,
)
from crabtalk.storage import Agent

from .ask_registry import AskRegistry
from .ask_user import AskUserHook
from .permission_gate import (
    DeniedError,
    NullRuleStore,
    PermissionGate,
    RuleStore,
    check_agent_permissions,
)

log = logging.getLogger(__name__)

# Former tool names, which older conversations still use → current names.
TOOL_ALIASES = {"skill_tool": "skill"}

# After these events no call waits for an answer any more.
STEP_END_EVENTS = (ToolsComplete, Done)

# Returns None if a call may be made, else the reason why not.
Guard = Callable[[ToolDispatch], str | None]
AgentsGetter = Callable[[], Mapping[str, Agent]]


class CompositeHook(Hook):
    """Runs hooks in the order of their names. `peers` returns all agents by name."""

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        asks: AskRegistry,
        *,
        peers: AgentsGetter = dict,
        guards: Sequence[Guard] = (),
        policy: Policy | None = None,
        rule_memory: Callable[[], RuleStore] = NullRuleStore,
        is_watched: Callable[[Run, bool], bool] = lambda run, by_owner: False,
    ) -> None:
        self._hooks_by_name = dict(hooks)
        self._hooks = [hooks[name] for name in sorted(hooks)]
        self._asks = asks
        self._ask_hook = AskUserHook(asks)
        self.gate = PermissionGate(policy or Policy(), asks, rule_memory, is_watched)
        self._get_agents = peers
        self._guards = guards
        self._scoped_agents: dict[str, Agent] = {}  # agents that may not call everything
        self._event_hooks = select_event_hooks(self._all_hooks())

    def add_hooks(self, hooks: Mapping[str, Hook]) -> None:
        """Add hooks, before any agent is registered. Existing hooks win over new ones of the same
        name."""
        self._hooks_by_name = {**hooks, **self._hooks_by_name}
        self._hooks = [self._hooks_by_name[name] for name in sorted(self._hooks_by_name)]
        self._event_hooks = select_event_hooks(self._all_hooks())

    # ── Tools ───────────────────────────────────────────────────────────────────────────────

    def schema(self) -> list[Schema]:
        return [tool for hook in self._all_hooks() for tool in hook.schema()]

    def agent_tools(self, agent: Agent) -> list[Schema]:
        return [tool for hook in self._all_hooks() for tool in hook.agent_tools(agent)]

    def _all_hooks(self) -> list[Hook]:
        return [self._ask_hook, *self._hooks]

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        """Return the tools the agent may call, and the scope lines for its prompt.

        If the agent's file has `tools`, only those are allowed. Otherwise each hook decides; most
        allow all their tools.
        """
        allowed: list[str] = []
        lines: list[str] = []
        for hook in self._all_hooks():
            names, line = list_allowed_tools(hook, agent)
            allowed += names
            lines += [line] if line else []
        return allowed, "\n".join(lines) or None

    def tools_in_scope(self, agent: Agent) -> list[ToolInScope]:
        """Return all tools of all hooks, and whether the agent's file offers each."""
        tools: list[ToolInScope] = []
        for hook in self._all_hooks():
            offered = {tool.name: tool for tool in [*hook.schema(), *hook.agent_tools(agent)]}
            in_scope = set(list_allowed_tools(hook, agent)[0])
            for name in sorted(offered):
                names = hook.tool_names(agent, name)
                tools.append(
                    ToolInScope(name, names, hook.tool_kind(name), bool(in_scope & set(names)))
                )
        return tools

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def on_build_agent(self, agent: Agent) -> Agent:
        """Extend the prompt with the text of every hook, the other agents and the agent's scope."""
        check_agent_permissions(agent)
        built = agent
        for hook in self._all_hooks():
            built = hook.on_build_agent(built)
        parts = [built.prompt, *filter(None, (hook.system_prompt() for hook in self._all_hooks()))]
        parts.append(f"<environment>\nos: {get_system_name()}\n</environment>")
        if peers := self._describe_other_agents(agent):
            parts.append("<agents>\n" + "\n".join(peers) + "\n</agents>")
        line = self.scoped_tools(agent)[1]
        if line and (agent.skills or agent.tools or "<" in line):
            parts.append(f"<scope>\n{line}\n</scope>")
        return msgspec.structs.replace(built, prompt="\n\n".join(parts))

    def _describe_other_agents(self, agent: Agent) -> list[str]:
        return [
            f"- {escape_markup(other.name)}: {escape_markup(' '.join(other.description.split()))}"
            for name, other in sorted(self._get_agents().items())
            if name != agent.name and other.description
        ]

    def on_register_agent(self, name: str, agent: Agent) -> None:
        for hook in self._all_hooks():
            hook.on_register_agent(name, agent)
        self._scoped_agents.pop(name, None)
        if agent.tools or agent.skills:
            self._scoped_agents[name] = agent
        self.gate.register(agent)

    def on_unregister_agent(self, name: str) -> None:
        for hook in self._all_hooks():
            hook.on_unregister_agent(name)
        self._scoped_agents.pop(name, None)
        self.gate.unregister(name)

    # ── Runs ────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, agent: Agent) -> None:
        for hook in self._all_hooks():
            await hook.prepare(agent)

    def preprocess(self, agent: str, content: str) -> str | None:
        for hook in self._all_hooks():
            if (text := hook.preprocess(agent, content)) is not None:
                return text
        return None

    def on_turn(self, run: Run, content: str) -> None:
        for hook in self._all_hooks():
            hook.on_turn(run, content)

    def on_event(self, run: Run, event: Event) -> None:
        if type(event) in STEP_END_EVENTS:
            self._asks.close(run)
        for hook in self._event_hooks:
            hook.on_event(run, event)

    async def collect_questions(self, calls: Sequence[ToolDispatch]) -> list[AskUser]:
        """Open the asks of a step.

        One ask has the questions and approvals of all its calls; a second one has the approvals
        that only the owner may give.
        """
        run = calls[0].run
        questions = [question for call in calls for question in self._ask_hook.list_questions(call)]
        in_scope = [
            (call, names, self.describe_access(call))
            for call in map(resolve_alias, calls)
            if (names := self.names_of_call(call)) and self._find_scope_breach(call, names) is None
        ]
        for_sender, for_owner = await self.gate.collect_asks(in_scope)
        questions += [approval.question for approval in for_sender]
        asks = [self._asks.open_ask(run, questions)] if questions else []
        return asks + self.gate.open_owner_ask(run, for_owner)

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        call = resolve_alias(call)
        owner = self._find_owner(call)
        return owner.describe_access(call) if owner is not None else ToolAccess()

    def _find_owner(self, call: ToolDispatch) -> Hook | None:
        return next((hook for hook in self._all_hooks() if hook.names_of_call(call)), None)

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        call = resolve_alias(call)
        for hook in self._all_hooks():
            if names := hook.names_of_call(call):
                return self._dispatch_if_allowed(hook, call, names)
        return None

    def names_of_call(self, call: ToolDispatch) -> tuple[str, ...]:
        call = resolve_alias(call)
        return next(
            (names for hook in self._all_hooks() if (names := hook.names_of_call(call))), ()
        )

    async def _dispatch_if_allowed(
        self, owner: Hook, call: ToolDispatch, names: Sequence[str]
    ) -> str | ToolOutput:
        if (sentence := self._find_scope_breach(call, names)) is not None:
            refuse_call(call, sentence)
        try:
            await self.gate.check(call, names, owner.describe_access(call))
        except DeniedError as denied:
            refuse_call(call, str(denied))
        work = owner.dispatch(call)
        if work is None:
            raise ToolError(f"tool not registered: {call.name}")
        return await work

    def _find_scope_breach(self, call: ToolDispatch, names: Sequence[str]) -> str | None:
        """Return why a call is outside the scope of its agent or of one of its callers, else None.

        The scope is enforced here; the scope lines in the prompt only inform the model.
        """
        owner = self._find_owner(call)
        if owner is None:
            return None
        agent = self._scoped_agents.get(call.agent)
        if agent is None and owner.describe_access(call).kind != "mcp":
            agent = self.gate.find_agent(call.agent)  # a hook may be disabled in its file
        if agent is not None and not set(names) & set(list_allowed_tools(owner, agent)[0]):
            return f"tool not available: {call.name}"
        for caller in call.run.caller_agents:
            if not self._is_open_to_caller(owner, caller, names, call):
                return (
                    f"tool not available: {call.name}; {caller.name}, which delegated this, may "
                    "not call it either"
                )
        return next(filter(None, (guard(call) for guard in self._guards)), None)

    def _is_open_to_caller(
        self, owner: Hook, caller: Agent, names: Sequence[str], call: ToolDispatch
    ) -> bool:
        """Whether a calling agent could make this call too.

        Each agent declares its own MCP servers. In a run of the owner a delegate may use servers
        that its caller does not have; in a run of any other sender it may not.
        """
        if owner.describe_access(call).kind == "mcp" and self.gate.policy.owners.is_owner(
            call.run.origin
        ):
            return not caller.tools or bool(set(names) & set(caller.tools))
        return bool(set(names) & set(list_allowed_tools(owner, caller)[0]))


def resolve_alias(call: ToolDispatch) -> ToolDispatch:
    """Replace a former tool name by the current one."""
    return msgspec.structs.replace(call, name=TOOL_ALIASES.get(call.name, call.name))


def list_allowed_tools(hook: Hook, agent: Agent) -> tuple[list[str], str | None]:
    """Return which of a hook's tools an agent may call now, and the hook's line for the prompt."""
    names, line = hook.scoped_tools(agent)
    return [name for name in names if not agent.tools or name in agent.tools], line


def refuse_call(call: ToolDispatch, sentence: str) -> None:
    log.warning(
        "security: a call out of scope was refused",
        extra={"fields": {"agent": call.agent, "sender": call.sender, "tool": call.name}},
    )
    call.run.emit(ToolRefused(call.call_id, call.name, sentence))
    raise ToolError(sentence)


def get_system_name() -> str:
    return "macos" if sys.platform == "darwin" else sys.platform


def select_event_hooks(hooks: Sequence[Hook]) -> list[Hook]:
    """Return the hooks that override on_event: it is called for each chunk of an answer."""
    return [hook for hook in hooks if type(hook).on_event is not Hook.on_event]
