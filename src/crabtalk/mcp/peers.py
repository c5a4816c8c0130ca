"""PeerRegistry: which agents declared which servers, and the state of each.

It does no I/O. Each method handles an event and returns effects, which McpServerManager applies.
One peer serves all agents with an equal declaration.
"""

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from crabtalk.storage import McpServerConfig

from .declarations import compute_fingerprint, mask_secrets
from .messages import McpTool

# Seconds before a lost peer is retried: doubled each time, up to LONGEST_DELAY.
FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0
# After this many seconds of connection the delay starts from FIRST_DELAY again.
STEADY_SECONDS = 30.0


class PeerStatus(Enum):
    UNKNOWN = "unknown"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    FAILED = "failed"
    DISCONNECTED = "disconnected"


class PeerOwner(NamedTuple):
    """The agent that declared a server, and its name for the server."""

    agent: str
    name: str


# ── Effects ────────────────────────────────────────────────────────────────────────────────────


class StartPeer(msgspec.Struct, frozen=True):
    number: int
    server: McpServerConfig


class StopPeer(msgspec.Struct, frozen=True):
    number: int


class ScheduleRetry(msgspec.Struct, frozen=True):
    """Call handle_retry_due with both, `after` seconds later."""

    peer: str
    number: int
    after: float


class ScheduleIdleCheck(msgspec.Struct, frozen=True):
    """Call check_idle with the peer, `after` seconds later."""

    peer: str
    after: float


class PeerStateChanged(msgspec.Struct, frozen=True):
    """An event for subscribers. With status CONNECTING, `error` says what the peer waits for."""

    status: PeerStatus
    agent: str
    name: str
    tools: tuple[str, ...] = ()
    error: str = ""


PeerEffect = StartPeer | StopPeer | ScheduleRetry | ScheduleIdleCheck | PeerStateChanged


class Peer(msgspec.Struct):
    """One server, as the daemon sees it."""

    id: str
    server: McpServerConfig  # as its first owner declared it
    owners: dict[PeerOwner, McpServerConfig] = {}
    status: PeerStatus = PeerStatus.UNKNOWN
    error: str = ""
    tools: tuple[McpTool, ...] = ()  # as last reported
    number: int = 0  # of its latest start
    is_idle: bool = False  # stopped because it was not used
    was_settled: bool = False  # has been connected or failed since it was declared
    failures: int = 0
    connected_at: float = 0.0
    last_used: float = 0.0
    running_calls: int = 0
    is_idle_check_due: bool = False  # a check is scheduled

    @property
    def is_offered(self) -> bool:
        """Whether its tools can be called."""
        return self.status is PeerStatus.CONNECTED or self.is_idle

    @property
    def restarts(self) -> bool:
        return any(server.auto_restart for server in self.owners.values())

    @property
    def idle_timeout(self) -> float | None:
        """The longest timeout of its owners; None if one of them has none."""
        longest = 0.0
        for server in self.owners.values():
            if server.idle_timeout is None:
                return None
            longest = max(longest, server.idle_timeout)
        return longest

    def begin_call(self) -> None:
        self.running_calls += 1

    def end_call(self, now: float) -> None:
        self.running_calls -= 1
        self.last_used = now


class PeerRegistry:
    def __init__(self, most: int = 256) -> None:
        self._max_peers = most
        self._peers: dict[str, Peer] = {}
        self._declared: dict[str, dict[str, str]] = {}  # agent → name → peer id, as declared
        self._replaced: dict[PeerOwner, str] = {}  # old peers that serve until the new one connects
        self._started: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self.version = 0  # changes with everything that agents' tools depend on

    # ── States ──────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, peer: str) -> Peer | None:
        return self._peers.get(peer)

    def list_serving(self, agent: str) -> list[tuple[str, Peer]]:
        """Return an agent's peers with their names, as declared. While the peer of a changed
        declaration connects, the old peer stands in for it."""
        serving = []
        for name, current in self._declared.get(agent, {}).items():
            peer = self._peers[current]
            before = self._peers.get(self._replaced.get(PeerOwner(agent, name), ""))
            serving.append((name, before if before is not None and before.is_offered else peer))
        return serving

    def list_states(self) -> Iterator[tuple[PeerOwner, Peer]]:
        """Yield all declared servers with their peers."""
        for agent, names in self._declared.items():
            for name, peer in names.items():
                yield PeerOwner(agent, name), self._peers[peer]

    def snapshot(self) -> list[PeerStateChanged]:
        """Return the states of all declared servers as events."""
        return [self._build_state_change(owner, peer) for owner, peer in self.list_states()]

    def is_settled(self, agent: str) -> bool:
        """Whether each server of an agent has connected or failed at least once, or is still served
        by the peer it replaces."""
        return all(
            self._peers[peer].was_settled or PeerOwner(agent, name) in self._replaced
            for name, peer in self._declared.get(agent, {}).items()
        )

    def is_awaiting_first_report(self, number: int) -> bool:
        """Whether a start that is still needed has not been reported on yet."""
        peer = self._find_started(number)
        return peer is not None and peer.status is PeerStatus.CONNECTING and not peer.error

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def declare(self, agent: str, servers: Sequence[McpServerConfig]) -> list[PeerEffect]:
        """Set all servers of an agent. Declaring a failed server again retries it."""
        before = self._declared.pop(agent, {})
        now = {server.name: compute_fingerprint(server) for server in servers}
        if now:
            self._declared[agent] = now
        effects: list[PeerEffect] = []
        for server in servers:
            owner = PeerOwner(agent, server.name)
            effects += self._join(owner, server, now[server.name], before.get(server.name))
        for name, peer in before.items():
            if name not in now:
                effects += self._leave(PeerOwner(agent, name), peer)
                effects.append(PeerStateChanged(PeerStatus.DISCONNECTED, agent, name))
        self.version += 1
        return effects

    def release(self, agent: str) -> list[PeerEffect]:
        """Remove an agent that was deleted or renamed."""
        return self.declare(agent, ())

    def _join(
        self, owner: PeerOwner, server: McpServerConfig, id_: str, before: str | None
    ) -> list[PeerEffect]:
        peer = self._peers.get(id_)
        is_new = peer is None
        if peer is None:
            peer = self._peers[id_] = Peer(id_, server)
        peer.owners[owner] = server
        effects: list[PeerEffect] = []
        if is_new or peer.status is PeerStatus.FAILED:
            effects += self._start(peer)
        elif before != id_:
            effects.append(self._build_state_change(owner, peer))
        if before is not None and before != id_:
            if peer.is_offered or peer.status is PeerStatus.FAILED:
                effects += self._leave(owner, before)
            else:
                self._serve_until_replaced(owner, before, effects)
        return effects + self._schedule_idle_check(peer)

    def _serve_until_replaced(
        self, owner: PeerOwner, before: str, effects: list[PeerEffect]
    ) -> None:
        """Let the old peer serve on. After two changes in a row the oldest one does, as only that
        is connected."""
        if owner in self._replaced:
            effects += self._drop(owner, before)
        else:
            self._replaced[owner] = before

    def _leave(self, owner: PeerOwner, peer: str) -> list[PeerEffect]:
        effects = self._drop(owner, peer)
        if (replaced := self._replaced.pop(owner, None)) is not None:
            effects += self._drop(owner, replaced)
        return effects

    def _drop(self, owner: PeerOwner, id_: str) -> list[PeerEffect]:
        peer = self._peers.get(id_)
        if peer is None or self._declared.get(owner.agent, {}).get(owner.name) == id_:
            return []  # declared again meanwhile
        peer.owners.pop(owner, None)
        if peer.owners:
            return []
        del self._peers[id_]
        self.version += 1
        return [StopPeer(peer.number)] if self._started.pop(peer.number, None) else []

    # ── Peers ───────────────────────────────────────────────────────────────────────────────

    def handle_tools(self, number: int, tools: Sequence[McpTool], now: float) -> list[PeerEffect]:
        """A peer has connected, or its tools have changed."""
        peer = self._find_started(number)
        if peer is None:
            return []
        if peer.status is not PeerStatus.CONNECTED:
            peer.connected_at = peer.last_used = now
        peer.status, peer.error, peer.was_settled = PeerStatus.CONNECTED, "", True
        peer.is_idle = False
        peer.tools = tuple(tools)
        self.version += 1
        return [
            *self._build_state_changes(peer),
            *self._release_replaced(peer),
            *self._schedule_idle_check(peer),
        ]

    def handle_authorization(self, number: int, sentence: str) -> list[PeerEffect]:
        """A peer waits for the authorization of a person."""
        peer = self._find_started(number)
        if peer is None:
            return []
        peer.error = sentence
        return self._build_state_changes(peer)

    def handle_lost(
        self, number: int, error: str, now: float, *, is_final: bool = False, is_ours: bool = False
    ) -> list[PeerEffect]:
        """A peer could not be connected, or was lost. With `is_ours` (the host process failed) it
        is always retried."""
        peer = self._find_started(number)
        if peer is None:
            return []
        del self._started[number]
        if peer.status is PeerStatus.CONNECTED and now - peer.connected_at >= STEADY_SECONDS:
            peer.failures = 0
        peer.status, peer.was_settled, peer.is_idle = PeerStatus.FAILED, True, False
        peer.error = mask_secrets(error, peer.server)
        peer.failures += 1
        self.version += 1
        effects: list[PeerEffect] = [
            StopPeer(number),
            *self._build_state_changes(peer),
            *self._release_replaced(peer),
        ]
        if (peer.restarts or is_ours) and not is_final:
            delay = min(FIRST_DELAY * 2 ** min(peer.failures - 1, 16), LONGEST_DELAY)
            effects.append(ScheduleRetry(peer.id, number, delay))
        return effects

    def handle_host_lost(self, error: str, now: float) -> list[PeerEffect]:
        """All peers were lost with the host process."""
        return [
            effect
            for number in list(self._started)
            for effect in self.handle_lost(number, error, now, is_ours=True)
            if not isinstance(effect, StopPeer)
        ]

    def handle_retry_due(self, id_: str, number: int) -> list[PeerEffect]:
        """Retry a peer, unless it was restarted already."""
        peer = self._peers.get(id_)
        if peer is None or peer.status is not PeerStatus.FAILED or peer.number != number:
            return []
        return self._start(peer)

    def retry_failed(self) -> list[PeerEffect]:
        """Start all failed peers."""
        failed = [peer for peer in self._peers.values() if peer.status is PeerStatus.FAILED]
        return [effect for peer in failed for effect in self._start(peer)]

    # ── Use ─────────────────────────────────────────────────────────────────────────────────

    def wake_idle(self, id_: str) -> list[PeerEffect]:
        """Restart an idle peer before a call."""
        peer = self._peers.get(id_)
        return self._start(peer) if peer is not None and peer.is_idle else []

    def check_idle(self, id_: str, now: float) -> list[PeerEffect]:
        """Stop a peer that has not been used for its idle timeout."""
        peer = self._peers.get(id_)
        if peer is None:
            return []
        peer.is_idle_check_due = False
        timeout = peer.idle_timeout
        if timeout is None or peer.status is not PeerStatus.CONNECTED:
            return []
        if peer.running_calls or now - peer.last_used < timeout:
            return self._schedule_idle_check(
                peer, timeout if peer.running_calls else timeout - (now - peer.last_used)
            )
        peer.status, peer.is_idle = PeerStatus.DISCONNECTED, True
        del self._started[peer.number]
        return [StopPeer(peer.number), *self._build_state_changes(peer)]

    def _schedule_idle_check(self, peer: Peer, after: float | None = None) -> list[PeerEffect]:
        timeout = peer.idle_timeout
        if timeout is None or peer.is_idle_check_due or peer.status is not PeerStatus.CONNECTED:
            return []
        peer.is_idle_check_due = True
        return [ScheduleIdleCheck(peer.id, timeout if after is None else after)]

    # ── Shared steps ────────────────────────────────────────────────────────────────────────

    def _find_started(self, number: int) -> Peer | None:
        """Return the peer of a start, or None if that start was abandoned."""
        return self._peers.get(self._started.get(number, ""))

    def _start(self, peer: Peer) -> list[PeerEffect]:
        if peer.number in self._started:
            return []
        if len(self._started) >= self._max_peers:
            peer.status, peer.was_settled = PeerStatus.FAILED, True
            peer.error = (
                f"{self._max_peers} MCP servers are running; "
                "raise mcp_peers in [limits] of config.toml"
            )
            return self._build_state_changes(peer)
        peer.number = next(self._numbers)
        self._started[peer.number] = peer.id
        peer.status, peer.error = PeerStatus.CONNECTING, ""
        return [StartPeer(peer.number, peer.server), *self._build_state_changes(peer)]

    def _release_replaced(self, peer: Peer) -> list[PeerEffect]:
        """Drop the peers that this one replaces."""
        effects: list[PeerEffect] = []
        for owner in list(peer.owners):
            is_current = self._declared.get(owner.agent, {}).get(owner.name) == peer.id
            if is_current and (replaced := self._replaced.pop(owner, None)) is not None:
                effects += self._drop(owner, replaced)
        return effects

    def _build_state_changes(self, peer: Peer) -> list[PeerEffect]:
        return [
            self._build_state_change(owner, peer)
            for owner in peer.owners
            if self._declared.get(owner.agent, {}).get(owner.name) == peer.id
        ]

    def _build_state_change(self, owner: PeerOwner, peer: Peer) -> PeerStateChanged:
        is_connected = peer.status is PeerStatus.CONNECTED
        tools = tuple(tool.name for tool in peer.tools) if is_connected else ()
        return PeerStateChanged(peer.status, owner.agent, owner.name, tools, peer.error)
