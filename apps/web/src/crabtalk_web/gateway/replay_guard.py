"""Replay protection: which device messages a gateway acts on, and why it refuses the others.

Pure. A `ReplayGuard` is part of a conversation's state, so its knowledge is on disk together with
the message it came from. Messages of one chain are accepted in order, each once, without gaps. A
chain with a fault is closed, and its device begins another one. Messages without a chain are
accepted once each, as far back as hashes are remembered.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

import msgspec

from crabtalk_web.stream import ChainLink

# Hashes of sealed messages that are remembered.
MAX_SEEN = 2000
# Chains of a session. They are never forgotten, because a forgotten one could be replayed.
MAX_CHAINS = 1000
# Names of clients without a chain that are remembered.
MAX_CLIENTS = 16
MAX_CLIENT_NAME = 40

RefusalReason = Literal["repeat", "old", "gap", "fork", "closed", "session", "full"]


class MessageMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a handled message that is remembered.

    `hash` is the hash of its sealed bytes, in base64; `local` is the sender's local id. `client` is
    the name of a client that does not use a chain.
    """

    hash: str
    local: str = ""
    chain: ChainLink | None = None
    client: str = ""
    reason: RefusalReason | Literal[""] = ""  # why it was refused


class ChainHead(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """The last accepted message of a chain."""

    session: str
    chain: str
    device: str
    counter: int
    hash: str
    is_closed: bool = False


class ReplayGuardState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole guard, as the journal stores it."""

    heads: tuple[ChainHead, ...] = ()
    seen: tuple[tuple[str, str], ...] = ()
    clients: tuple[str, ...] = ()
    refused: int = 0


class ReplayGuard:
    def __init__(self, state: ReplayGuardState | None = None) -> None:
        state = state or ReplayGuardState()
        self._heads = {(head.session, head.chain): head for head in state.heads}
        self._seen: OrderedDict[str, str] = OrderedDict(state.seen)
        self.clients = list(state.clients)  # without replay protection
        self.refused = state.refused

    def find_refusal_reason(self, mark: MessageMark, session: str) -> RefusalReason | None:
        """Return why a message must not be acted on; None if it may."""
        if mark.hash in self._seen:
            return "repeat"
        chain = mark.chain
        if chain is None:
            return None
        if chain.session != session:
            return "session"
        head = self._heads.get((session, chain.chain))
        if head is None:
            return self._check_chain_start(chain)
        if head.is_closed:
            return "closed"
        if chain.counter <= head.counter:
            return "old"
        if chain.counter > head.counter + 1:
            return "gap"
        return None if chain.previous == head.hash else "fork"

    def _check_chain_start(self, chain: ChainLink) -> RefusalReason | None:
        if len(self._heads) >= MAX_CHAINS:
            return "full"
        return None if chain.counter == 1 else "gap"

    def is_redelivery(self, mark: MessageMark) -> bool:
        """Return whether a repeat has the same local id, so that it is an ordinary redelivery."""
        return bool(mark.local) and self._seen.get(mark.hash) == mark.local

    def apply(self, mark: MessageMark, session: str) -> None:
        """A message was handled, and accepted unless the mark has a reason."""
        if mark.reason:
            self.refused += 1
        # A refused message of a chain stays refused by its chain. If its hash were added, a relay
        # could deliver old messages of a chain until the hashes of others are forgotten.
        if mark.hash not in self._seen and not mark.reason:
            self._seen[mark.hash] = mark.local
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)
        if mark.chain is not None:
            self._apply_chain(mark, mark.chain, session)
        elif not mark.reason:
            self._name_client(mark.client)

    def _name_client(self, client: str) -> None:
        if client not in self.clients and len(self.clients) < MAX_CLIENTS:
            self.clients.append(client)

    def _apply_chain(self, mark: MessageMark, chain: ChainLink, session: str) -> None:
        key = (session, chain.chain)
        head = self._heads.get(key)
        if not mark.reason:
            self._heads[key] = ChainHead(
                session, chain.chain, chain.device, chain.counter, mark.hash
            )
        elif mark.reason in ("gap", "fork"):
            # The missing message may come later, but its successor was refused already, so the
            # order cannot be restored.
            if head is not None:
                self._heads[key] = msgspec.structs.replace(head, is_closed=True)
            elif len(self._heads) < MAX_CHAINS:
                self._heads[key] = ChainHead(session, chain.chain, chain.device, 0, "", True)

    def learn_marks(self, marks: Iterable[MessageMark], session: str) -> None:
        """Add messages that were acted on before this guard existed, in their order. They are not
        checked; the last message of each chain becomes its head."""
        for mark in marks:
            self.apply(mark, session)

    @property
    def size(self) -> int:
        """The approximate size in a journal, in bytes."""
        return 100 * len(self._seen) + 200 * len(self._heads)

    def to_state(self) -> ReplayGuardState:
        return ReplayGuardState(
            tuple(self._heads.values()),
            tuple(self._seen.items()),
            tuple(self.clients),
            self.refused,
        )
