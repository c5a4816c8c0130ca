"""Peers: who declared which server, what state each is in, and what is to be done about it.

Bookkeeping only. Each method is something that happened; it returns what follows, for somebody
else to carry out. One peer serves everybody who declared the same.
"""

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from crabtalk.storage import McpServer

from .declaration import fingerprint, without_secrets
from .messages import McpTool

# Seconds before a peer that was lost is tried again: doubled each time, up to the longest.
FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0
# Connected for so many, it counts as well again.
STEADY = 30.0


class Status(Enum):
    UNKNOWN = "unknown"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    FAILED = "failed"
    DISCONNECTED = "disconnected"


class Owner(NamedTuple):
    """Who declared a server: an agent, and what it calls it."""

    agent: str
    name: str


# ── What follows ───────────────────────────────────────────────────────────────────────────────


class Start(msgspec.Struct, frozen=True):
    number: int
    server: McpServer


class Stop(msgspec.Struct, frozen=True):
    number: int


class Retry(msgspec.Struct, frozen=True):
    """Say `due` with both, after so many seconds."""

    peer: str
    number: int
    after: float


class Look(msgspec.Struct, frozen=True):
    """Say `unused` with it, after so many seconds."""

    peer: str
    after: float


class Happened(msgspec.Struct, frozen=True):
    """To be told to whoever listens. `error` of one that is connecting says what it waits for."""

    status: Status
    agent: str
    name: str
    tools: tuple[str, ...] = ()
    error: str = ""


Effect = Start | Stop | Retry | Look | Happened


class Peer(msgspec.Struct):
    """One server, as the daemon sees it."""

    id: str
    server: McpServer  # as its first owner declared it
    owners: dict[Owner, McpServer] = {}
    status: Status = Status.UNKNOWN
    error: str = ""
    tools: tuple[McpTool, ...] = ()  # as last heard
    number: int = 0  # of its latest start
    is_idle: bool = False  # stopped for want of use
    was_settled: bool = False  # has been connected or failed since it was declared
    failures: int = 0
    since: float = 0.0  # connected
    used: float = 0.0
    calls: int = 0  # under way
    is_watched: bool = False  # for want of use

    @property
    def is_offered(self) -> bool:
        """Whether its tools can be called."""
        return self.status is Status.CONNECTED or self.is_idle

    @property
    def restarts(self) -> bool:
        return any(server.auto_restart for server in self.owners.values())

    @property
    def idle_timeout(self) -> float | None:
        """The longest of its owners'; None as soon as one of them wants it kept."""
        longest = 0.0
        for server in self.owners.values():
            if server.idle_timeout is None:
                return None
            longest = max(longest, server.idle_timeout)
        return longest

    def begun(self) -> None:
        """A call is under way."""
        self.calls += 1

    def ended(self, now: float) -> None:
        self.calls -= 1
        self.used = now


class Peers:
    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._peers: dict[str, Peer] = {}
        self._declared: dict[str, dict[str, str]] = {}  # agent, name, peer; as declared
        self._fading: dict[Owner, str] = {}  # serves until its successor has been connected
        self._started: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self.version = 0  # of everything an agent's tools follow from

    # ── What there is ───────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, peer: str) -> Peer | None:
        return self._peers.get(peer)

    def serving(self, agent: str) -> list[tuple[str, Peer]]:
        """An agent's peers by the names it gave them, as declared. While a changed declaration is
        being connected, what it replaces."""
        found = []
        for name, current in self._declared.get(agent, {}).items():
            peer = self._peers[current]
            before = self._peers.get(self._fading.get(Owner(agent, name), ""))
            found.append((name, before if before is not None and before.is_offered else peer))
        return found

    def states(self) -> Iterator[tuple[Owner, Peer]]:
        """Everything that is declared, and how it is."""
        for agent, names in self._declared.items():
            for name, peer in names.items():
                yield Owner(agent, name), self._peers[peer]

    def present(self) -> list[Happened]:
        """The same, for whoever has missed it."""
        return [self._state_for(owner, peer) for owner, peer in self.states()]

    def is_settled(self, agent: str) -> bool:
        """Whether each of its servers has been connected, or has failed, at least once, or is
        stood in for meanwhile."""
        return all(
            self._peers[peer].was_settled or Owner(agent, name) in self._fading
            for name, peer in self._declared.get(agent, {}).items()
        )

    def is_unheard_of(self, number: int) -> bool:
        """Whether nothing was said of a start yet, though it is still wanted."""
        peer = self._running(number)
        return peer is not None and peer.status is Status.CONNECTING and not peer.error

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def declare(self, agent: str, servers: Sequence[McpServer]) -> list[Effect]:
        """All an agent has from now on. One that failed is tried again by being declared again."""
        before = self._declared.pop(agent, {})
        now = {server.name: fingerprint(server) for server in servers}
        if now:
            self._declared[agent] = now
        effects: list[Effect] = []
        for server in servers:
            owner = Owner(agent, server.name)
            effects += self._join(owner, server, now[server.name], before.get(server.name))
        for name, peer in before.items():
            if name not in now:
                effects += self._leave(Owner(agent, name), peer)
                effects.append(Happened(Status.DISCONNECTED, agent, name))
        self.version += 1
        return effects

    def release(self, agent: str) -> list[Effect]:
        """It is no more, or is called something else by now."""
        return self.declare(agent, ())

    def _join(self, owner: Owner, server: McpServer, id_: str, before: str | None) -> list[Effect]:
        peer = self._peers.get(id_)
        is_new = peer is None
        if peer is None:
            peer = self._peers[id_] = Peer(id_, server)
        peer.owners[owner] = server
        effects: list[Effect] = []
        if is_new or peer.status is Status.FAILED:
            effects += self._start(peer)
        elif before != id_:
            effects.append(self._state_for(owner, peer))
        if before is not None and before != id_:
            if peer.is_offered or peer.status is Status.FAILED:
                effects += self._leave(owner, before)
            else:
                self._fade(owner, before, effects)
        return effects + self._look(peer)

    def _fade(self, owner: Owner, before: str, effects: list[Effect]) -> None:
        """The one before serves on. Changed twice in a row, the oldest does: it is connected."""
        if owner in self._fading:
            effects += self._drop(owner, before)
        else:
            self._fading[owner] = before

    def _leave(self, owner: Owner, peer: str) -> list[Effect]:
        effects = self._drop(owner, peer)
        if (faded := self._fading.pop(owner, None)) is not None:
            effects += self._drop(owner, faded)
        return effects

    def _drop(self, owner: Owner, id_: str) -> list[Effect]:
        peer = self._peers.get(id_)
        if peer is None or self._declared.get(owner.agent, {}).get(owner.name) == id_:
            return []  # declared again meanwhile
        peer.owners.pop(owner, None)
        if peer.owners:
            return []
        del self._peers[id_]
        self.version += 1
        return [Stop(peer.number)] if self._started.pop(peer.number, None) else []

    # ── Peers ───────────────────────────────────────────────────────────────────────────────

    def offers(self, number: int, tools: Sequence[McpTool], now: float) -> list[Effect]:
        """It is connected, or says anew what it offers."""
        peer = self._running(number)
        if peer is None:
            return []
        if peer.status is not Status.CONNECTED:
            peer.since = peer.used = now
        peer.status, peer.error, peer.was_settled = Status.CONNECTED, "", True
        peer.is_idle = False
        peer.tools = tuple(tools)
        self.version += 1
        return [*self._tell(peer), *self._settle(peer), *self._look(peer)]

    def asking(self, number: int, sentence: str) -> list[Effect]:
        """A person is needed."""
        peer = self._running(number)
        if peer is None:
            return []
        peer.error = sentence
        return self._tell(peer)

    def lost(
        self, number: int, error: str, now: float, *, is_final: bool = False, is_ours: bool = False
    ) -> list[Effect]:
        """It could not be connected, or is no more. What is our own fault is always mended."""
        peer = self._running(number)
        if peer is None:
            return []
        del self._started[number]
        if peer.status is Status.CONNECTED and now - peer.since >= STEADY:
            peer.failures = 0
        peer.status, peer.was_settled, peer.is_idle = Status.FAILED, True, False
        peer.error = without_secrets(error, peer.server)
        peer.failures += 1
        self.version += 1
        effects: list[Effect] = [Stop(number), *self._tell(peer), *self._settle(peer)]
        if (peer.restarts or is_ours) and not is_final:
            delay = min(FIRST_DELAY * 2 ** min(peer.failures - 1, 16), LONGEST_DELAY)
            effects.append(Retry(peer.id, number, delay))
        return effects

    def host_lost(self, error: str, now: float) -> list[Effect]:
        """All of them at once."""
        return [
            effect
            for number in list(self._started)
            for effect in self.lost(number, error, now, is_ours=True)
            if not isinstance(effect, Stop)
        ]

    def due(self, id_: str, number: int) -> list[Effect]:
        """Time to try again, unless that has been done."""
        peer = self._peers.get(id_)
        if peer is None or peer.status is not Status.FAILED or peer.number != number:
            return []
        return self._start(peer)

    def retry(self) -> list[Effect]:
        """All that failed, at once."""
        failed = [peer for peer in self._peers.values() if peer.status is Status.FAILED]
        return [effect for peer in failed for effect in self._start(peer)]

    # ── Use ─────────────────────────────────────────────────────────────────────────────────

    def wanted(self, id_: str) -> list[Effect]:
        """Somebody is about to call it: one that was stopped for want of use comes back."""
        peer = self._peers.get(id_)
        return self._start(peer) if peer is not None and peer.is_idle else []

    def unused(self, id_: str, now: float) -> list[Effect]:
        """Whether it still is of use."""
        peer = self._peers.get(id_)
        if peer is None:
            return []
        peer.is_watched = False
        timeout = peer.idle_timeout
        if timeout is None or peer.status is not Status.CONNECTED:
            return []
        if peer.calls or now - peer.used < timeout:
            return self._look(peer, timeout if peer.calls else timeout - (now - peer.used))
        peer.status, peer.is_idle = Status.DISCONNECTED, True
        del self._started[peer.number]
        return [Stop(peer.number), *self._tell(peer)]

    def _look(self, peer: Peer, after: float | None = None) -> list[Effect]:
        timeout = peer.idle_timeout
        if timeout is None or peer.is_watched or peer.status is not Status.CONNECTED:
            return []
        peer.is_watched = True
        return [Look(peer.id, timeout if after is None else after)]

    # ── Steps all of them take ──────────────────────────────────────────────────────────────

    def _running(self, number: int) -> Peer | None:
        """None for what is said of a start that was given up."""
        return self._peers.get(self._started.get(number, ""))

    def _start(self, peer: Peer) -> list[Effect]:
        if peer.number in self._started:
            return []
        if len(self._started) >= self._most:
            peer.status, peer.was_settled = Status.FAILED, True
            peer.error = (
                f"{self._most} MCP servers are running; raise mcp_peers in [limits] of config.toml"
            )
            return self._tell(peer)
        peer.number = next(self._numbers)
        self._started[peer.number] = peer.id
        peer.status, peer.error = Status.CONNECTING, ""
        return [Start(peer.number, peer.server), *self._tell(peer)]

    def _settle(self, peer: Peer) -> list[Effect]:
        """What it replaces is not needed any more."""
        effects: list[Effect] = []
        for owner in list(peer.owners):
            is_current = self._declared.get(owner.agent, {}).get(owner.name) == peer.id
            if is_current and (faded := self._fading.pop(owner, None)) is not None:
                effects += self._drop(owner, faded)
        return effects

    def _tell(self, peer: Peer) -> list[Effect]:
        return [
            self._state_for(owner, peer)
            for owner in peer.owners
            if self._declared.get(owner.agent, {}).get(owner.name) == peer.id
        ]

    def _state_for(self, owner: Owner, peer: Peer) -> Happened:
        is_connected = peer.status is Status.CONNECTED
        tools = tuple(tool.name for tool in peer.tools) if is_connected else ()
        return Happened(peer.status, owner.agent, owner.name, tools, peer.error)
