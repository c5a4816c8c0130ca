"""The hub: knows which sockets are connected, and sends updates to them."""

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
        # The last socket to register a method is called, because an older one may be dead without
        # knowing.
        self.methods: dict[str, list[ClientSocket]] = {}
        # When a session's or machine's socket last connected or disconnected.
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
        for account_sockets in list(self._accounts.values()):
            yield from list(account_sockets.sockets)

    def add(self, socket: ClientSocket) -> None:
        account_sockets = self.get_account(socket.account)
        account_sockets.sockets.add(socket)
        self.count += 1
        if socket.scope == "user-scoped":
            account_sockets.devices.add(socket)
        else:
            sockets_by_record = (
                account_sockets.sessions
                if socket.scope == "session-scoped"
                else account_sockets.machines
            )
            sockets_by_record[socket.record].add(socket)
            account_sockets.changed_at[socket.record] = asyncio.get_running_loop().time()

    def remove(self, socket: ClientSocket) -> None:
        account_sockets = self.get_account(socket.account)
        if socket not in account_sockets.sockets:
            return
        account_sockets.sockets.discard(socket)
        account_sockets.devices.discard(socket)
        self.count -= 1
        for sockets_by_record in (account_sockets.sessions, account_sockets.machines):
            if socket in sockets_by_record.get(socket.record, ()):
                sockets_by_record[socket.record].discard(socket)
                account_sockets.changed_at[socket.record] = asyncio.get_running_loop().time()
                if not sockets_by_record[socket.record]:
                    del sockets_by_record[socket.record]
        for method in list(socket.methods):
            self.unregister_method(socket, method)
        socket.fail_requests()

    def remove_empty_accounts(self) -> None:
        """Forget accounts without sockets."""
        before = asyncio.get_running_loop().time() - self._limits.rpc_absent
        for account, account_sockets in list(self._accounts.items()):
            connected = account_sockets.sessions.keys() | account_sockets.machines.keys()
            for record, at in list(account_sockets.changed_at.items()):
                if at < before and record not in connected:
                    del account_sockets.changed_at[record]
            if not account_sockets.sockets and not account_sockets.changed_at:
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
        """Send to the account's devices, and to the sockets of that session or machine."""
        readers = self._find_recipients(account, session, machine, devices=devices)
        if readers:
            update = {"id": new_update_id(), "seq": seq, "body": body, "createdAt": now_ms()}
            send_to_all(readers, packets.encode_event("update", update), skip)

    def send_ephemeral(self, account: str, body: dict[str, Any]) -> None:
        """Send an event that is not stored to the connected devices."""
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
        account_sockets = self._accounts.get(account)
        for socket in list(account_sockets.sockets) if account_sockets is not None else []:
            socket.close()

    def _find_recipients(
        self, account: str, session: str = "", machine: str = "", *, devices: bool = True
    ) -> set[ClientSocket]:
        account_sockets = self._accounts.get(account)
        if account_sockets is None:
            return set()
        readers = account_sockets.devices if devices else set()
        for sockets_by_record, record in (
            (account_sockets.sessions, session),
            (account_sockets.machines, machine),
        ):
            if record and record in sockets_by_record:
                readers = readers | sockets_by_record[record]
        return readers

    # ── Methods ─────────────────────────────────────────────────────────────────────────────

    def register_method(self, socket: ClientSocket, method: str) -> None:
        account_sockets = self.get_account(socket.account)
        sockets = account_sockets.methods.setdefault(method, [])
        if socket in sockets:
            sockets.remove(socket)
        sockets.append(socket)
        socket.methods.add(method)
        account_sockets.method_registered.set()
        account_sockets.method_registered = asyncio.Event()

    def unregister_method(self, socket: ClientSocket, method: str) -> None:
        socket.methods.discard(method)
        sockets = self.get_account(socket.account).methods.get(method, [])
        if socket in sockets:
            sockets.remove(socket)
            if not sockets:
                del self.get_account(socket.account).methods[method]


def send_to_all(readers: Iterable[ClientSocket], text: str, skip: ClientSocket | None) -> None:
    for socket in readers:
        if socket is not skip:
            socket.send(text)
