"""McpHandlers: the requests about MCP servers, which are stored in the agents' files."""

from collections.abc import AsyncGenerator

import msgspec

from crabtalk.daemon.daemon import Daemon
from crabtalk.mcp import ALL_AGENTS, Peer, PeerStatus
from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.storage import MASK, Agent, McpServerConfig, parse_agent, unmask_settings

from .agents import parse_settings
from .error_mapping import translate_errors, unknown_agent_error

WIRE_STATUSES = {
    PeerStatus.UNKNOWN: wire.MCP_STATUS_UNKNOWN,
    PeerStatus.CONNECTING: wire.CONNECTING,
    PeerStatus.CONNECTED: wire.CONNECTED,
    PeerStatus.FAILED: wire.FAILED,
    PeerStatus.DISCONNECTED: wire.DISCONNECTED,
}


class McpHandlers(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def list_mcps(self, request: wire.ListMcpsMsg) -> wire.McpList:
        runtime = await self._daemon.wait_until_ready()
        if request.agent and request.agent not in runtime.agents:
            raise unknown_agent_error(request.agent)
        agents = [agent for name, agent in sorted(runtime.agents.items())]
        infos = [
            self._describe_server(agent.name, server)
            for agent in agents
            if request.agent in ("", agent.name)
            for server in agent.mcps
        ]
        if not request.agent:
            infos += [
                to_mcp_info(ALL_AGENTS, peer.owners[owner], peer)
                for owner, peer in self._daemon.mcp.list_states()
                if owner.agent == ALL_AGENTS
            ]
        return wire.McpList(mcps=infos)

    async def upsert_mcp(self, request: wire.UpsertMcpMsg) -> wire.McpInfo:
        await self._daemon.wait_until_ready()
        async with self._daemon.change_lock():
            with translate_errors():
                agent = await self._load_declaring_agent(request.agent)
                document = unmask_settings({"mcps": [parse_settings(request.config)]}, agent)
                (server,) = parse_agent(agent.name, document, agent.prompt).mcps
                others = {server.name: server for server in agent.mcps}
                await self._save_servers(agent, {**others, server.name: server})
        return self._describe_server(agent.name, server)

    async def delete_mcp(self, request: wire.DeleteMcpMsg) -> None:
        await self._daemon.wait_until_ready()
        async with self._daemon.change_lock():
            with translate_errors():
                agent = await self._load_declaring_agent(request.agent)
                servers = {server.name: server for server in agent.mcps}
                if servers.pop(request.name, None) is None:
                    raise NotFoundError(
                        f"{agent.name} has no MCP server called {request.name[:80]!r}"
                    )
                await self._save_servers(agent, servers)

    def subscribe_mcp_events(
        self, request: wire.SubscribeMcpEventsMsg
    ) -> AsyncGenerator[wire.McpEventMsg, None]:
        return self._daemon.mcp_feed.subscribe(self._daemon.mcp.snapshot())

    async def _load_declaring_agent(self, name: str) -> Agent:
        """The agent as stored now, in case a person edited its file."""
        runtime = await self._daemon.wait_until_ready()
        if name not in runtime.agents:
            raise unknown_agent_error(name)
        return await self._daemon.storage.load_agent(name) or runtime.agents[name]

    async def _save_servers(self, agent: Agent, servers: dict[str, McpServerConfig]) -> None:
        """Store the agent before using it, so that an acknowledged change survives a crash."""
        changed = msgspec.structs.replace(agent, mcps=tuple(servers.values()))
        await self._daemon.storage.save_agent(changed)
        self._daemon.register(changed)

    def _describe_server(self, agent: str, server: McpServerConfig) -> wire.McpInfo:
        return to_mcp_info(agent, server, self._daemon.mcp.find_peer(server))


def to_mcp_info(agent: str, server: McpServerConfig, peer: Peer | None) -> wire.McpInfo:
    """Secrets are masked, as in all answers."""
    return wire.McpInfo(
        name=server.name,
        command=server.command,
        args=server.args,
        env=dict.fromkeys(server.env, MASK),
        url=server.url,
        auth=MASK if server.auth else "",
        source=agent,
        auto_restart=server.auto_restart,
        source_kind=wire.LOCAL if agent else wire.EXTERNAL,
        status=WIRE_STATUSES[peer.status] if peer is not None else wire.MCP_STATUS_UNKNOWN,
        error=peer.error if peer is not None else "",
        tool_count=len(peer.tools) if peer is not None and peer.is_offered else 0,
    )
