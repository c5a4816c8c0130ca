"""PermissionsServer: the requests about what agents may do: modes and explanations."""

from typing import TYPE_CHECKING

from crabtalk.policy import Mode, parse_mode
from crabtalk.protocol import BadRequestError, Server, wire
from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Pair

from .daemon import Daemon
from .refusals import answered

if TYPE_CHECKING:
    from crabtalk.policy import Explanation


class PermissionsServer(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def set_mode(self, request: wire.SetModeMsg) -> wire.ModeInfo:
        runtime = await self._daemon.ready()
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        with answered():
            await self._daemon.find_agent(request.agent)
            agent = runtime.written(request.agent)
            if request.HasField("mode"):
                mode = read_mode(request.mode) if request.mode else None
                await runtime.set_mode(*pair_arguments(pair, mode))
                current = mode if mode is not None else read_mode(agent.mode)
                self._daemon.feed.tell_mode(pair, current.word)
            meta = await self._daemon.storage.meta(pair)
        own = meta.mode if meta is not None else ""
        return wire.ModeInfo(mode=(read_mode(own or agent.mode)).word, is_set=bool(own))

    async def explain_agent(self, request: wire.ExplainAgentMsg) -> wire.AgentPermissions:
        runtime = await self._daemon.ready()
        sender = request.sender or DEFAULT_SENDER
        with answered():
            await self._daemon.find_agent(request.agent)
            agent = runtime.written(request.agent)
            meta = await self._daemon.storage.meta(Pair(request.agent, sender))
        own = meta.mode if meta is not None else ""
        mode = read_mode(request.mode or own or agent.mode)
        from crabtalk.policy import explain_permissions  # late: asked for now and then

        found = explain_permissions(
            self._daemon.policy, agent, sender, mode, self._daemon.tools_of(agent)
        )
        return permissions_message(request.agent, sender, found)


def pair_arguments(pair: Pair, mode: Mode | None) -> tuple[str, str, str]:
    return pair.agent, mode.word if mode is not None else "", pair.sender


def read_mode(word: str) -> Mode:
    """Empty: as without one. Raises BadRequestError for what is no mode."""
    try:
        return parse_mode(word) if word else Mode.AUTO
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def permissions_message(agent: str, sender: str, found: "Explanation") -> wire.AgentPermissions:
    return wire.AgentPermissions(
        agent=agent,
        sender=sender,
        origin=found.standing.word,
        origin_reason=found.standing_reason,
        mode=found.mode.word,
        tools=[
            wire.ToolPermission(tool=line.tool, verdict=line.verdict, reason=line.reason)
            for line in found.tools
        ],
        notes=found.notes,
    )
