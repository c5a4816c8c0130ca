"""The hub: which sockets are connected, and which of them are told what."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from . import packets
from .client_socket import ClientSocket
from .ids import new_update_id, now_ms
from .limits import RelayLimits


class AccountSockets:
    """The sockets of one account."""

    def __init__(self) -> None:
        self.sockets: set[ClientSocket] = set()
        self.devices: set[ClientSocket] = set()
        self.sessions: defaultdict[str, set[ClientSocket]] = defaultdict(set)
        self.machines: defaultdict[str, set[ClientSocket]] = defaultdict(set)
        # The last to say it can is asked: whoever it replaces may be dead without knowing.
        self.methods: dict[str, list[ClientSocket]] = {}
        # When a session's or machine's socket last came or went.
        self.changed_at: dict[str, float] = {}
        self.method_registered = asyncio.Event()


class SocketHub:
    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._accounts: dict[str, AccountSockets] = {}
        self.count = 0

    def get_account(self, account: str) -> AccountSockets:
        if account not in self._accounts:
            self._accounts[account] = AccountSockets()
        return self._accounts[account]

    def list_sockets(self) -> Iterator[ClientSocket]:
        for house in list(self._accounts.values()):
            yield from list(house.sockets)

    def add(self, socket: ClientSocket) -> None:
        house = self.get_account(socket.account)
        house.sockets.add(socket)
        self.count += 1
        if socket.scope == "user-scoped":
            house.devices.add(socket)
        else:
            rooms = house.sessions if socket.scope == "session-scoped" else house.machines
            rooms[socket.record].add(socket)
            house.changed_at[socket.record] = asyncio.get_running_loop().time()

    def remove(self, socket: ClientSocket) -> None:
        house = self.get_account(socket.account)
        if socket not in house.sockets:
            return
        house.sockets.discard(socket)
        house.devices.discard(socket)
        self.count -= 1
        for rooms in (house.sessions, house.machines):
            if socket in rooms.get(socket.record, ()):
                rooms[socket.record].discard(socket)
                house.changed_at[socket.record] = asyncio.get_running_loop().time()
                if not rooms[socket.record]:
                    del rooms[socket.record]
        for method in list(socket.methods):
            self.unregister_method(socket, method)
        socket.fail_requests()

    def remove_empty_accounts(self) -> None:
        """Forgets those nobody is left of."""
        before = asyncio.get_running_loop().time() - self._limits.rpc_absent
        for account, house in list(self._accounts.items()):
            here = house.sessions.keys() | house.machines.keys()
            for record, at in list(house.changed_at.items()):
                if at < before and record not in here:
                    del house.changed_at[record]
            if not house.sockets and not house.changed_at:
                del self._accounts[account]

    # ── Telling ─────────────────────────────────────────────────────────────────────────────

    def send_update(
        self,
        account: str,
        seq: int,
        body: dict[str, Any],
        *,
        session: str = "",
        machine: str = "",
        devices: bool = True,
        skip: ClientSocket | None = None,
    ) -> None:
        """To the account's devices, and to those that are there for the session or machine."""
        readers = self._find_recipients(account, session, machine, devices=devices)
        if readers:
            update = {"id": new_update_id(), "seq": seq, "body": body, "createdAt": now_ms()}
            send_to_all(readers, packets.encode_event("update", update), skip)

    def send_ephemeral(self, account: str, body: dict[str, Any]) -> None:
        """What is not kept: to devices that are there."""
        readers = self._find_recipients(account)
        if readers:
            send_to_all(readers, packets.encode_event("ephemeral", body), None)

    def is_watched(self, account: str) -> bool:
        return any(socket.is_watched for socket in self._find_recipients(account))

    def disconnect_device(self, device: str) -> None:
        for socket in self.list_sockets():
            if socket.device.id == device:
                socket.close()

    def disconnect_account(self, account: str) -> None:
        house = self._accounts.get(account)
        for socket in list(house.sockets) if house is not None else []:
            socket.close()

    def _find_recipients(
        self, account: str, session: str = "", machine: str = "", *, devices: bool = True
    ) -> set[ClientSocket]:
        house = self._accounts.get(account)
        if house is None:
            return set()
        readers = house.devices if devices else set()
        for rooms, record in ((house.sessions, session), (house.machines, machine)):
            if record and record in rooms:
                readers = readers | rooms[record]
        return readers

    # ── Methods ─────────────────────────────────────────────────────────────────────────────

    def register_method(self, socket: ClientSocket, method: str) -> None:
        house = self.get_account(socket.account)
        able = house.methods.setdefault(method, [])
        if socket in able:
            able.remove(socket)
        able.append(socket)
        socket.methods.add(method)
        house.method_registered.set()
        house.method_registered = asyncio.Event()

    def unregister_method(self, socket: ClientSocket, method: str) -> None:
        socket.methods.discard(method)
        able = self.get_account(socket.account).methods.get(method, [])
        if socket in able:
            able.remove(socket)
            if not able:
                del self.get_account(socket.account).methods[method]


def send_to_all(readers: Iterable[ClientSocket], text: str, skip: ClientSocket | None) -> None:
    for socket in readers:
        if socket is not skip:
            socket.send(text)
