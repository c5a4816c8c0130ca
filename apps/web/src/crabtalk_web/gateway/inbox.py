"""The inbox: handles the messages of devices in a session, each one once and in order.

A message from the socket counts only if it is the next one; otherwise the missing ones are fetched.
The cursor covers every handled message and is stored in the same journal entry as the result.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from crabtalk_web.sealing import from_base64, to_base64
from crabtalk_web.stream import (
    AnyBody,
    EnvelopeError,
    FileEvent,
    SessionBody,
    TextEvent,
    UserBody,
    derive_id,
    read_body,
    read_chain_link,
)
from crabtalk_web.stream.json_values import parse_json

from .backoff import RetryBackoff
from .conversation_journal import ConversationJournal
from .errors import RelayRefusedError, RelayUnavailableError
from .journal_entries import InboundMessage, MessagesRead
from .outbox import SENT_FROM
from .refusal_notices import RefusalNotices
from .relay_http import RelayHttp
from .replay_guard import MAX_CLIENT_NAME, MessageMark, ReplayGuard
from .session_identity import SessionIdentity

# Files that may wait for the text they belong to.
MAX_FILES = 20
# Live messages that may be queued; beyond this they are fetched later.
MAX_LIVE = 1000
# Messages that may wait for the daemon.
MAX_WAITING = 1000
RECHECK_EVERY = 0.5
# Characters of a sender's local id that are remembered.
MAX_LOCAL_ID = 64
# How many old messages are read back if the journal does not say which ones were acted on.
MAX_LEARNED = 5000

log = logging.getLogger(__name__)


class Inbox:
    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        relay: RelayHttp,
        wake: Callable[[], None],
        refusals: RefusalNotices,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._on_inbound = wake
        self._refusal_notices = refusals
        self._live_messages: list[dict[str, Any]] = []
        self._wakeup = asyncio.Event()
        self._must_fetch = True
        self.is_open = asyncio.Event()
        self.on_session_lost: Callable[[], None] = (
            self.is_open.clear
        )  # the relay does not know the session

    def receive_live(self, message: Any) -> None:
        """Queue a message from the socket."""
        if isinstance(message, dict) and len(self._live_messages) < MAX_LIVE:
            self._live_messages.append(message)
        else:
            self._must_fetch = True
        self._wakeup.set()

    def request_fetch(self) -> None:
        """Fetch soon: a message may have come without a notification."""
        self._must_fetch = True
        self._wakeup.set()

    async def catch_up(self) -> None:
        """Store all messages sent so far in the journal. Raises what the relay raises."""
        await self._fetch_messages()
        await self._journal.flush()

    async def run(self) -> None:
        """Run until cancelled. Messages that are not in the journal by then are handled again."""
        backoff = RetryBackoff()
        while True:
            await self.is_open.wait()
            self._wakeup.clear()
            live, self._live_messages = self._live_messages, []
            for message in live:
                self._handle_live(message)
            if self._is_full:
                await asyncio.sleep(RECHECK_EVERY)
                continue
            if not self._must_fetch:
                await self._wakeup.wait()
                continue
            try:
                await self._fetch_messages()
                backoff.reset()
            except (RelayUnavailableError, RelayRefusedError) as error:
                log.info("cannot fetch messages: %s", error)
                if isinstance(error, RelayRefusedError) and error.status == 404:
                    self.on_session_lost()
                await backoff.wait()

    @property
    def _is_full(self) -> bool:
        """Whether enough messages wait for the daemon: the rest waits at the relay."""
        return len(self._journal.state.inbound) >= MAX_WAITING

    def find_last_gateway_seq(self, latest: Sequence[dict[str, Any]]) -> int:
        """Return the sequence number of the last message that a gateway wrote. `latest` begins with
        the newest."""
        for message in latest:
            body, seq = self._open_message(message)[0], message.get("seq")
            if isinstance(body, SessionBody) and not is_from_person(body) and isinstance(seq, int):
                return seq
        return 0

    def _handle_live(self, message: dict[str, Any]) -> None:
        seq = message.get("seq")
        if seq == self._journal.state.relay_cursor + 1 and not self._is_full:
            self._handle_message(message, seq)
        elif not isinstance(seq, int) or seq > self._journal.state.relay_cursor:
            self._must_fetch = True

    async def _fetch_messages(self) -> None:
        self._must_fetch = False
        try:
            has_more = True
            while has_more and not self._is_full:
                session, cursor = self._journal.state.session, self._journal.state.relay_cursor
                messages, has_more = await self._relay.fetch_after(session, cursor)
                if self._journal.state.session != session:
                    return
                for message in messages:
                    seq = message.get("seq")
                    if isinstance(seq, int) and seq > self._journal.state.relay_cursor:
                        self._handle_message(message, seq)
                has_more = has_more and self._journal.state.relay_cursor > cursor
            self._must_fetch = self._must_fetch or self._is_full
        except BaseException:
            self._must_fetch = True
            raise

    def _handle_message(self, message: dict[str, Any], seq: int) -> None:
        body, mark = self._open_message(message)
        files = self._journal.state.held_files
        if body is None or mark is None:
            # Our own message, another gateway's, or one that cannot be parsed.
            self._journal.append(MessagesRead(seq, files))
        elif self._passes_replay_guard(body, mark, seq):
            self._act_on(body, mark, seq)

    def _passes_replay_guard(self, body: AnyBody, mark: MessageMark, seq: int) -> bool:
        """Return False for a message that must not be acted on; the person is told about it."""
        state = self._journal.state
        guard = state.replay_guard or ReplayGuard()
        reason = guard.find_refusal_reason(mark, state.session)
        if reason is None:
            return True
        if reason == "repeat" and guard.is_redelivery(mark):
            self._journal.append(
                MessagesRead(seq, state.held_files)
            )  # a client that was not sure sent it again
            return False
        # Report first: after a crash a duplicate line is better than a missing one.
        self._refusal_notices.report_refusal(mark, reason, body_text(body))
        refused = msgspec.structs.replace(mark, reason=reason)
        self._journal.append(MessagesRead(seq, state.held_files, mark=refused))
        return False

    def _act_on(self, body: AnyBody, mark: MessageMark, seq: int) -> None:
        files = self._journal.state.held_files
        match body:
            case UserBody():
                text = body.content.text
                is_empty = not text.strip() and not files
                key = self._message_key(mark)
                self._save_inbound(
                    seq, None if is_empty else InboundMessage(seq, text, files, key=key), mark
                )
            case SessionBody(content=envelope):
                match envelope.ev:
                    case TextEvent(text=text):
                        key = self._message_key(mark)
                        inbound = (
                            InboundMessage(seq, text, files, key=key) if text.strip() else None
                        )
                        self._save_inbound(seq, inbound, mark)
                    case FileEvent():
                        held_files = (*files, envelope)[-MAX_FILES:]
                        self._journal.append(MessagesRead(seq, held_files, mark=mark))
                    case _:
                        self._journal.append(MessagesRead(seq, files, mark=mark))

    def _message_key(self, mark: MessageMark) -> str:
        """Return a key made of the session and the sealed bytes: it is the same however often a
        relay delivers the message, and without the journal."""
        return f"{build_key_prefix(self._journal.state.session)}{mark.hash}"

    def _save_inbound(self, seq: int, inbound: InboundMessage | None, mark: MessageMark) -> None:
        if inbound is None:
            self._journal.append(MessagesRead(seq, self._journal.state.held_files, mark=mark))
            return
        self._journal.append(MessagesRead(seq, (), split_guest(inbound), mark))
        self._on_inbound()

    async def learn_history(self, session: str, cursor: int) -> None:
        """Mark the messages up to `cursor` as acted on, for a journal that has no record of them.
        Appended, not flushed. Raises what the relay raises; nothing is appended then."""
        marks: list[MessageMark] = []
        before, count = cursor + 1, 0
        while before > 1 and count < MAX_LEARNED:
            page = await self._relay.fetch_before(session, before)
            for message in page:
                body, mark = self._open_message(message)
                if body is not None and mark is not None:
                    marks.append(mark)
            numbers = [seq for message in page if isinstance(seq := message.get("seq"), int)]
            lowest = min(numbers, default=0)
            if not 0 < lowest < before:
                break
            before, count = lowest, count + len(page)
        guard = ReplayGuard()
        guard.learn_marks(reversed(marks), session)
        state = self._journal.state
        self._journal.append(
            MessagesRead(state.relay_cursor, state.held_files, learned=guard.to_state())
        )

    def _open_message(self, message: dict[str, Any]) -> tuple[AnyBody | None, MessageMark | None]:
        """Return the body, and its mark if a person wrote it."""
        content = message.get("content")
        sealed = content.get("c") if isinstance(content, dict) else None
        plain = self._identity.sealer.open_bytes(sealed) if isinstance(sealed, str) else None
        if not plain or not isinstance(sealed, str):
            return None, None
        try:
            value = parse_json(plain)
            body = read_body(value)
        except EnvelopeError:
            return None, None
        if not isinstance(body, UserBody) and not (
            isinstance(body, SessionBody) and is_from_person(body)
        ):
            return body, None
        local_id = message.get("localId")
        client = "" if (chain := read_chain_link(value)) is not None else client_name(body)
        local_id = local_id[:MAX_LOCAL_ID] if isinstance(local_id, str) else ""
        return body, MessageMark(hash_sealed(sealed), local_id, chain, client)


def build_key_prefix(session: str) -> str:
    """Return the prefix of the keys of all device messages in a session."""
    name = session if len(session.encode()) <= MAX_LOCAL_ID else derive_id(session)
    return f"web:{name}:"


def hash_sealed(sealed: str) -> str:
    """Hash the bytes and not the text, because several texts could decode to the same bytes."""
    return to_base64(hashlib.sha256(from_base64(sealed) or b"").digest())


def client_name(body: UserBody | SessionBody) -> str:
    name = getattr(body.meta, "sent_from", "") or "an app"
    return " ".join(str(name).split())[:MAX_CLIENT_NAME]


def body_text(body: AnyBody) -> str:
    match body:
        case UserBody():
            return body.content.text
        case SessionBody(content=envelope) if isinstance(envelope.ev, TextEvent):
            return envelope.ev.text
    return ""


def is_from_person(body: SessionBody) -> bool:
    """Messages of another client that a gateway copied into the session do not count."""
    sent_from = getattr(body.meta, "sent_from", "")
    return body.content.role == "user" and sent_from != SENT_FROM


def split_guest(inbound: InboundMessage) -> InboundMessage:
    """`@name text` addresses that agent; the daemon decides whether it exists."""
    mention, _, rest = inbound.text.partition(" ")
    if len(mention) < 2 or not mention.startswith("@") or not rest.strip():
        return inbound
    return InboundMessage(inbound.seq, rest.strip(), inbound.files, mention[1:], inbound.key)
