"""PermissionHandlers: the requests about permission modes and their explanation."""

from typing import TYPE_CHECKING

from crabtalk.daemon.daemon import Daemon
from crabtalk.policy import Mode, parse_mode
from crabtalk.protocol import BadRequestError, Server, wire
from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Pair

from .error_mapping import translate_errors

if TYPE_CHECKING:
    from crabtalk.policy import Explanation


class PermissionHandlers(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def set_mode(self, request: wire.SetModeMsg) -> wire.ModeInfo:
        runtime = await self._daemon.wait_until_ready()
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        with translate_errors():
            await self._daemon.load_new_agent(request.agent)
            agent = runtime.find_agent_definition(request.agent)
            if request.HasField("mode"):
                mode = read_mode(request.mode) if request.mode else None
                await runtime.set_mode(*to_mode_arguments(pair, mode))
                current = mode if mode is not None else read_mode(agent.mode)
                self._daemon.feed.publish_mode_change(pair, current.label)
            meta = await self._daemon.storage.read_meta(pair)
        own_mode = meta.mode if meta is not None else ""
        return wire.ModeInfo(mode=read_mode(own_mode or agent.mode).label, is_set=bool(own_mode))

    async def explain_agent(self, request: wire.ExplainAgentMsg) -> wire.AgentPermissions:
        runtime = await self._daemon.wait_until_ready()
        sender = request.sender or DEFAULT_SENDER
        with translate_errors():
            await self._daemon.load_new_agent(request.agent)
            agent = runtime.find_agent_definition(request.agent)
            meta = await self._daemon.storage.read_meta(Pair(request.agent, sender))
        own_mode = meta.mode if meta is not None else ""
        mode = read_mode(request.mode or own_mode or agent.mode)
        from crabtalk.policy import explain_permissions  # late: rarely used

        explanation = explain_permissions(
            self._daemon.policy, agent, sender, mode, self._daemon.list_tools(agent)
        )
        return to_agent_permissions(request.agent, sender, explanation)


def to_mode_arguments(pair: Pair, mode: Mode | None) -> tuple[str, str, str]:
    return pair.agent, mode.label if mode is not None else "", pair.sender


def read_mode(word: str) -> Mode:
    """Empty means auto. Raises BadRequestError for an unknown mode."""
    try:
        return parse_mode(word) if word else Mode.AUTO
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def to_agent_permissions(
    agent: str, sender: str, explanation: "Explanation"
) -> wire.AgentPermissions:
    return wire.AgentPermissions(
        agent=agent,
        sender=sender,
        origin=explanation.trust_level.label,
        origin_reason=explanation.trust_reason,
        mode=explanation.mode.label,
        tools=[
            wire.ToolPermission(tool=line.tool, verdict=line.verdict, reason=line.reason)
            for line in explanation.tools
        ],
        notes=explanation.notes,
    )
