"""PermissionGate: puts each call before the policy, asks people, and carries out what they said.

The composite has one. It knows which agents there are and who can be asked; what is allowed is
decided in the policy room.
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
    """Remembers what people always allow in a conversation."""

    async def approve_rule(self, pair: Pair, rule: str) -> None:
        """Raises StorageError when it cannot be remembered."""
        ...


class NullRuleStore:
    async def approve_rule(self, pair: Pair, rule: str) -> None:
        pass


class PermissionGate:
    """`is_watched` tells whether anybody follows all events of a run and could answer a question,
    or whether the owner could."""

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
        """Raises ToolError: a run that outlives its agent is confined to nothing we know."""
        try:
            return self._agents[call.agent]
        except KeyError:
            raise ToolError(f"permission denied: no agent is called {call.agent!r} now") from None

    async def collect_asks(
        self, calls: Sequence[tuple[ToolDispatch, Sequence[str], ToolAccess]]
    ) -> "tuple[list[ApprovalQuestion], list[ApprovalQuestion]]":
        """The approvals that calls need: of the person who speaks, and of the owner."""
        own: dict[str, ApprovalQuestion] = {}
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
            from crabtalk.policy import build_question  # late: most calls ask nobody

            for_owner = self.is_for_owner(call.run, agent)
            asked = build_question(request, verdict.reason, for_owner=for_owner)
            # Of calls that read the same, the first is asked about; the others are refused.
            (owners if for_owner else own).setdefault(asked.question.question, asked)
        return list(own.values()), list(owners.values())

    def is_for_owner(self, run: Run, agent: Agent) -> bool:
        """Whether a stranger set the run off, who must not allow its calls."""
        return self.policy.find_trust_level(run, agent) is TrustLevel.STRANGER

    def find_unanswerable_reason(self, run: Run, agent: Agent) -> str | None:
        """Why nobody could answer, so that asking is no use."""
        root = run.tree.root
        if root.unattended or run.unattended:
            return (
                "it needs an approval, and nobody is there to give one; use `--mode auto`, or "
                "allow it in [permissions] of the agent's file"
            )
        for_owner = self.is_for_owner(run, agent)
        # Whoever started the first run sees its questions, and not those of its delegates.
        is_seen = root.attended and run is root and not for_owner
        if not is_seen and not self._is_watched(run, for_owner):
            return (
                "it needs the owner's approval, and no client is connected that could give it; "
                "open a chat, or allow it in [permissions] of the agent's file"
            )
        return None

    async def check(self, call: ToolDispatch, names: Sequence[str], access: ToolAccess) -> None:
        """Waits for an approval where one is needed. Raises ToolError for what is not allowed."""
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
        asked = build_question(request, verdict.reason, for_owner=for_owner)
        if not self._asks.claim(call.run, asked.digest, for_owner=for_owner):
            raise ToolError(
                "permission denied: nobody was asked about exactly this call; make it again, by "
                "itself"
            )
        count = self._asks.question_count(call.run, for_owner=for_owner)
        reply = await self._asks.wait_for_reply(call.run, for_owner=for_owner)
        answer = parse_answer(asked, reply, is_only_one=count == 1)
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
                    **({"rules": list(asked.rules)} if answer.is_always else {}),
                },
            )
        )
        if not answer.is_allowed:
            who = "the owner" if for_owner else "the user"
            why = "nobody allowed it in time" if reply is None else f"{who} said no"
            raise ToolError(f"permission denied: {why}")
        if answer.is_always:
            await self._remember_rules(call.run.tree.root.pair, asked.rules)

    async def _remember_rules(self, pair: Pair, rules: Sequence[str]) -> None:
        for rule in rules:
            try:
                await self._get_rule_store().approve_rule(pair, rule)
            except StorageError as error:
                # This once it was allowed in any case; the next call asks again.
                log.warning("an approval could not be remembered: %s", error)

    def open_owner_ask(self, run: Run, owners: "Sequence[ApprovalQuestion]") -> list[AskUser]:
        """Opens the approvals that are the owner's. Those of the speaker go with its other
        questions."""
        if not owners:
            return []
        return [self._asks.open_ask(run, [asked.question for asked in owners], for_owner=True)]


class DeniedError(ToolError):
    """The policy denied a call."""

    def __init__(self, verdict: PolicyVerdict) -> None:
        super().__init__(f"permission denied: {verdict.reason}")


def check_agent_permissions(agent: Agent) -> None:
    """Raises AgentError for a mode or permissions that cannot be meant."""
    Permissions.from_agent(agent)
    if agent.mode:
        try:
            parse_mode(agent.mode)
        except ValueError as error:
            raise AgentError(f"mode: {error}") from None
