"""PermissionGate: checks each call against the policy, asks people, and applies their answers.

It belongs to the CompositeHook. It knows the registered agents and who can be asked; which calls
are allowed is decided in crabtalk.policy.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from crabtalk.policy import (
    Decision,
    PermissionRequest,
    Permissions,
    Policy,
    PolicyVerdict,
    TrustLevel,
    parse_mode,
)
from crabtalk.runtime import AskUser, Run, ToolAccess, ToolDispatch, ToolError
from crabtalk.storage import Agent, AgentError, Pair, StorageError

from .ask_registry import AskRegistry

if TYPE_CHECKING:
    from crabtalk.policy import ApprovalQuestion

log = logging.getLogger(__name__)


class RuleStore(Protocol):
    """Stores the rules that people always allow in a conversation."""

    async def approve_rule(self, pair: Pair, rule: str) -> None:
        """Raises StorageError if the rule cannot be stored."""
        ...


class NullRuleStore:
    async def approve_rule(self, pair: Pair, rule: str) -> None:
        pass


class PermissionGate:
    """`is_watched` returns whether a client follows all events of a run and could answer a
    question; with True as its second argument, whether the owner's client does."""

    def __init__(
        self,
        policy: Policy,
        asks: AskRegistry,
        memory: Callable[[], RuleStore] = NullRuleStore,
        is_watched: Callable[[Run, bool], bool] = lambda run, by_owner: False,
    ) -> None:
        self.policy = policy
        self._asks = asks
        self._get_rule_store = memory
        self._is_watched = is_watched
        self._agents: dict[str, Agent] = {}

    def register(self, agent: Agent) -> None:
        self._agents[agent.name] = agent

    def unregister(self, name: str) -> None:
        self._agents.pop(name, None)

    def find_agent(self, name: str) -> Agent | None:
        return self._agents.get(name)

    def require_agent(self, call: ToolDispatch) -> Agent:
        """Raises ToolError if the agent was removed while its run continues: its limits are
        unknown then."""
        try:
            return self._agents[call.agent]
        except KeyError:
            raise ToolError(f"permission denied: no agent is called {call.agent!r} now") from None

    async def collect_asks(
        self, calls: Sequence[tuple[ToolDispatch, Sequence[str], ToolAccess]]
    ) -> "tuple[list[ApprovalQuestion], list[ApprovalQuestion]]":
        """Return the approvals that calls need: those of the sender, and those of the owner."""
        for_sender: dict[str, ApprovalQuestion] = {}
        owners: dict[str, ApprovalQuestion] = {}
        for call, names, access in calls:
            agent = self._agents.get(call.agent)
            if agent is None or not names:
                continue
            request = self.policy.build_request(call, names, access)
            verdict = await self.policy.judge(request, agent)
            if verdict.decision is not Decision.ASK or self.find_unanswerable_reason(
                call.run, agent
            ):
                continue
            from crabtalk.policy import build_question  # late: most calls need no approval

            for_owner = self.is_for_owner(call.run, agent)
            approval = build_question(request, verdict.reason, for_owner=for_owner)
            # Of calls with the same text only the first is asked about; the others are refused.
            (owners if for_owner else for_sender).setdefault(approval.question.question, approval)
        return list(for_sender.values()), list(owners.values())

    def is_for_owner(self, run: Run, agent: Agent) -> bool:
        """Whether only the owner may allow the run's calls, because a stranger started it."""
        return self.policy.find_trust_level(run, agent) is TrustLevel.STRANGER

    def find_unanswerable_reason(self, run: Run, agent: Agent) -> str | None:
        """Return why a question would get no answer, or None if it could get one."""
        root = run.tree.root
        if root.unattended or run.unattended:
            return (
                "it needs an approval, and no person is there to give one; use `--mode auto`, or "
                "allow it in [permissions] of the agent's file"
            )
        for_owner = self.is_for_owner(run, agent)
        # The client that started the first run sees its questions, but not those of delegates.
        is_seen = root.attended and run is root and not for_owner
        if not is_seen and not self._is_watched(run, for_owner):
            return (
                "it needs the owner's approval, and no client is connected that could give it; "
                "open a chat, or allow it in [permissions] of the agent's file"
            )
        return None

    async def check(self, call: ToolDispatch, names: Sequence[str], access: ToolAccess) -> None:
        """Wait for an approval if the call needs one. Raises ToolError if it is not allowed."""
        agent = self.require_agent(call)
        request = self.policy.build_request(call, names, access)
        verdict = await self.policy.judge(request, agent)
        if verdict.decision is Decision.DENY:
            raise DeniedError(verdict)
        if verdict.decision is Decision.ASK:
            if (sentence := self.find_unanswerable_reason(call.run, agent)) is not None:
                raise ToolError(f"permission denied: {sentence}")
            await self._wait_for_approval(call, request, verdict, agent)

    async def _wait_for_approval(
        self, call: ToolDispatch, request: PermissionRequest, verdict: PolicyVerdict, agent: Agent
    ) -> None:
        from crabtalk.policy import build_question, compute_digest, parse_answer  # late, as above

        for_owner = self.is_for_owner(call.run, agent)
        approval = build_question(request, verdict.reason, for_owner=for_owner)
        if not self._asks.claim(call.run, approval.digest, for_owner=for_owner):
            raise ToolError(
                "permission denied: no question was asked about exactly this call; make it again, "
                "by itself"
            )
        count = self._asks.question_count(call.run, for_owner=for_owner)
        reply = await self._asks.wait_for_reply(call.run, for_owner=for_owner)
        answer = parse_answer(approval, reply, is_only_question=count == 1)
        decision = "always" if answer.is_always else "allowed" if answer.is_allowed else "denied"
        call.run.decision_records.append(
            (
                "approval",
                {
                    "call_id": call.call_id,
                    "tool": call.name,
                    "digest": compute_digest(call),
                    "decision": decision if reply is not None else "unanswered",
                    "by": "owner" if for_owner else call.run.origin,
                    **({"rules": list(approval.rules)} if answer.is_always else {}),
                },
            )
        )
        if not answer.is_allowed:
            who = "the owner" if for_owner else "the user"
            why = f"{who} did not answer in time" if reply is None else f"{who} said no"
            raise ToolError(f"permission denied: {why}")
        if answer.is_always:
            await self._remember_rules(call.run.tree.root.pair, approval.rules)

    async def _remember_rules(self, pair: Pair, rules: Sequence[str]) -> None:
        for rule in rules:
            try:
                await self._get_rule_store().approve_rule(pair, rule)
            except StorageError as error:
                # This call is allowed all the same; the next one asks again.
                log.warning("an approval could not be remembered: %s", error)

    def open_owner_ask(self, run: Run, owners: "Sequence[ApprovalQuestion]") -> list[AskUser]:
        """Open the ask for the owner. Approvals of the sender are part of its other ask."""
        if not owners:
            return []
        return [
            self._asks.open_ask(run, [approval.question for approval in owners], for_owner=True)
        ]


class DeniedError(ToolError):
    """The policy denied a call."""

    def __init__(self, verdict: PolicyVerdict) -> None:
        super().__init__(f"permission denied: {verdict.reason}")


def check_agent_permissions(agent: Agent) -> None:
    """Raises AgentError for an invalid mode or invalid permissions."""
    Permissions.from_agent(agent)
    if agent.mode:
        try:
            parse_mode(agent.mode)
        except ValueError as error:
            raise AgentError(f"mode: {error}") from None
