"""The hub: which sockets are connected, and which of them are told what."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from . import packets
from .ids import now_ms, update_id
from .limits import Limits
from .socket import Socket


class House:
    """The sockets of one account."""

    def __init__(self) -> None:
        self.sockets: set[Socket] = set()
        self.devices: set[Socket] = set()
        self.sessions: defaultdict[str, set[Socket]] = defaultdict(set)
        self.machines: defaultdict[str, set[Socket]] = defaultdict(set)
        # The last to say it can is asked: whoever it replaces may be dead without knowing.
        self.methods: dict[str, list[Socket]] = {}
        # When a session's or machine's socket last came or went.
        self.moved: dict[str, float] = {}
        self.registered = asyncio.Event()


class Hub:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._houses: dict[str, House] = {}
        self.count = 0

    def house(self, account: str) -> House:
        if account not in self._houses:
            self._houses[account] = House()
        return self._houses[account]

    def sockets(self) -> Iterator[Socket]:
        for house in list(self._houses.values()):
            yield from list(house.sockets)

    def join(self, socket: Socket) -> None:
        house = self.house(socket.account)
        house.sockets.add(socket)
        self.count += 1
        if socket.scope == "user-scoped":
            house.devices.add(socket)
        else:
            rooms = house.sessions if socket.scope == "session-scoped" else house.machines
            rooms[socket.record].add(socket)
            house.moved[socket.record] = asyncio.get_running_loop().time()

    def leave(self, socket: Socket) -> None:
        house = self.house(socket.account)
        if socket not in house.sockets:
            return
        house.sockets.discard(socket)
        house.devices.discard(socket)
        self.count -= 1
        for rooms in (house.sessions, house.machines):
            if socket in rooms.get(socket.record, ()):
                rooms[socket.record].discard(socket)
                house.moved[socket.record] = asyncio.get_running_loop().time()
                if not rooms[socket.record]:
                    del rooms[socket.record]
        for method in list(socket.methods):
            self.unregister(socket, method)
        socket.gone()

    def tidy(self) -> None:
        """Forgets those nobody is left of."""
        before = asyncio.get_running_loop().time() - self._limits.rpc_absent
        for account, house in list(self._houses.items()):
            here = house.sessions.keys() | house.machines.keys()
            for record, at in list(house.moved.items()):
                if at < before and record not in here:
                    del house.moved[record]
            if not house.sockets and not house.moved:
                del self._houses[account]

    # ── Telling ─────────────────────────────────────────────────────────────────────────────

    def update(
        self,
        account: str,
        seq: int,
        body: dict[str, Any],
        *,
        session: str = "",
        machine: str = "",
        devices: bool = True,
        skip: Socket | None = None,
    ) -> None:
        """To the account's devices, and to those that are there for the session or machine."""
        readers = self._readers(account, session, machine, devices=devices)
        if readers:
            update = {"id": update_id(), "seq": seq, "body": body, "createdAt": now_ms()}
            tell(readers, packets.event("update", update), skip)

    def ephemeral(self, account: str, body: dict[str, Any]) -> None:
        """What is not kept: to devices that are there."""
        readers = self._readers(account)
        if readers:
            tell(readers, packets.event("ephemeral", body), None)

    def is_watched(self, account: str) -> bool:
        return any(socket.is_watched for socket in self._readers(account))

    def kick(self, device: str) -> None:
        for socket in self.sockets():
            if socket.device.id == device:
                socket.close()

    def kick_account(self, account: str) -> None:
        house = self._houses.get(account)
        for socket in list(house.sockets) if house is not None else []:
            socket.close()

    def _readers(
        self, account: str, session: str = "", machine: str = "", *, devices: bool = True
    ) -> set[Socket]:
        house = self._houses.get(account)
        if house is None:
            return set()
        readers = house.devices if devices else set()
        for rooms, record in ((house.sessions, session), (house.machines, machine)):
            if record and record in rooms:
                readers = readers | rooms[record]
        return readers

    # ── Methods ─────────────────────────────────────────────────────────────────────────────

    def register(self, socket: Socket, method: str) -> None:
        house = self.house(socket.account)
        able = house.methods.setdefault(method, [])
        if socket in able:
            able.remove(socket)
        able.append(socket)
        socket.methods.add(method)
        house.registered.set()
        house.registered = asyncio.Event()

    def unregister(self, socket: Socket, method: str) -> None:
        socket.methods.discard(method)
        able = self.house(socket.account).methods.get(method, [])
        if socket in able:
            able.remove(socket)
            if not able:
                del self.house(socket.account).methods[method]


def tell(readers: Iterable[Socket], text: str, skip: Socket | None) -> None:
    for socket in readers:
        if socket is not skip:
            socket.send(text)
