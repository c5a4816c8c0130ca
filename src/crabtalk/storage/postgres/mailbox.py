"""Mailbox: messages and requests between daemons that share a database.

Messages are rows of a table; a notification tells the recipient to fetch them. Notifications can be
lost with the listening connection, so each daemon also polls the table.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from crabtalk.storage.errors import StorageError, StorageUnavailableError

from .database import TRANSIENT_ERRORS, PostgresConnection, PostgresDatabase

log = logging.getLogger(__name__)

# Seconds between polls, and to wait for an answer.
POLL_SECONDS = 1.0
REPLY_TIMEOUT_SECONDS = 5.0
# Seconds before the next attempt to listen.
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
ASK, ANSWER, REFUSAL = "ask ", "answer ", "refusal "

# Only to daemons that exist: no other daemon would remove the message again.
POST = """
WITH posted AS (
    INSERT INTO mail (recipient, sender, kind, body)
    SELECT id, $2, $3, $4 FROM daemons WHERE id = $1 RETURNING recipient
)
SELECT pg_notify($5, 'mail ' || recipient) FROM posted
"""
TAKE = """
WITH taken AS (DELETE FROM mail WHERE recipient = $1 RETURNING id, sender, kind, body)
SELECT * FROM taken ORDER BY id
"""


class PeerRefusedError(Exception):
    """The other daemon refused the request, with a sentence."""


RequestHandler = Callable[[bytes], Awaitable[bytes]]


class Mailbox:
    """`on_other_notice` is called for notices that are not about mail, such as `turn KEY`."""

    def __init__(
        self,
        database: PostgresDatabase,
        daemon: UUID,
        channel: str,
        on_other_notice: Callable[[str], None],
    ) -> None:
        self._database = database
        self._daemon = daemon
        self._channel = channel
        self._on_other_notice = on_other_notice
        self._request_handlers: dict[str, RequestHandler] = {}
        self._message_handlers: dict[str, Callable[[UUID, bytes], None]] = {}
        self._pending_requests: dict[str, asyncio.Future[bytes]] = {}
        self._has_mail = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_listening = False

    def on_request(self, kind: str, handler: RequestHandler) -> None:
        """Set the handler for requests of a kind. It may raise PeerRefusedError."""
        self._request_handlers[kind] = handler

    def on_message(self, kind: str, handler: Callable[[UUID, bytes], None]) -> None:
        """Set the handler for messages of a kind, which get no answer."""
        self._message_handlers[kind] = handler

    def start(self) -> None:
        if not self._tasks:
            self._spawn(self._listen())
            self._spawn(self._poll())

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    async def send(self, recipient: UUID, kind: str, body: bytes = b"") -> None:
        """Raises StorageError."""
        await self._database.change(POST, recipient, self._daemon, kind, body, self._channel)

    async def notify_all(self, notice: str) -> None:
        """Send a short notice to all daemons."""
        await self._database.change("SELECT pg_notify($1, $2)", self._channel, notice)

    async def request(
        self, recipient: UUID, kind: str, body: bytes, *, seconds: float = REPLY_TIMEOUT_SECONDS
    ) -> bytes:
        """Raises PeerRefusedError, StorageError, and StorageUnavailableError without an answer."""
        number = uuid4().hex
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending_requests[number] = answer
        try:
            await self.send(recipient, f"{ASK}{number} {kind}", body)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise StorageUnavailableError(
                "the daemon that has this conversation's turn does not answer; "
                "try again in a moment"
            ) from None
        finally:
            del self._pending_requests[number]

    # ── Receiving ───────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                connection = await self._database.connect()
            except StorageError as error:
                log.info("cannot listen: %s", error)
            else:
                pause = FIRST_PAUSE
                await self._listen_on(connection)
            self.is_listening = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    async def _listen_on(self, connection: PostgresConnection) -> None:
        """Listen until the connection breaks. Queries it now and then to notice a broken one."""
        try:
            await connection.add_listener(self._channel, self._on_notice)
            self.is_listening = True
            self._has_mail.set()  # fetch messages that came while we did not listen
            while not connection.is_closed():
                await asyncio.sleep(POLL_SECONDS)
                await connection.fetchval("SELECT 1")
        except (*TRANSIENT_ERRORS, asyncpg.PostgresError) as error:
            log.info("the listening connection broke: %s", error)
        finally:
            with suppress(Exception):
                connection.terminate()

    def _on_notice(self, _connection: object, _pid: int, _channel: str, notice: object) -> None:
        text = str(notice)
        if text == f"mail {self._daemon}":
            self._has_mail.set()
        elif not text.startswith("mail "):
            self._on_other_notice(text)

    async def _poll(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._has_mail.wait()
            self._has_mail.clear()
            try:
                rows = await self._database.change(TAKE, self._daemon)
            except StorageError as error:
                log.info("the mail was not fetched: %s", error)
                await asyncio.sleep(POLL_SECONDS)
                continue
            for row in rows:
                try:
                    self._dispatch(row["sender"], row["kind"], row["body"])
                except Exception:
                    log.exception("a message of another daemon could not be handled")

    def _dispatch(self, sender: UUID, kind: str, body: bytes) -> None:
        if kind.startswith(ASK):
            _, number, subject = kind.split(" ", 2)
            self._spawn(self._reply(sender, number, subject, body))
        elif kind.startswith((ANSWER, REFUSAL)):
            word, number = kind.split(" ", 1)
            pending = self._pending_requests.get(number)
            if pending is not None and not pending.done():
                if f"{word} " == REFUSAL:
                    pending.set_exception(PeerRefusedError(body.decode(errors="replace")))
                else:
                    pending.set_result(body)
        elif (handler := self._message_handlers.get(kind)) is not None:
            handler(sender, body)

    async def _reply(self, sender: UUID, number: str, kind: str, body: bytes) -> None:
        handler = self._request_handlers.get(kind)
        word = ANSWER
        try:
            answer = await (handler or refuse_unknown)(body)
        except PeerRefusedError as error:
            word, answer = REFUSAL, str(error).encode()
        except Exception as error:
            log.exception("a daemon asked for %s, which failed", kind)
            word, answer = REFUSAL, f"internal error ({type(error).__name__})".encode()
        try:
            await self.send(sender, f"{word}{number}", answer)
        except StorageError as error:
            log.warning("a daemon gets no answer: %s", error)


async def refuse_unknown(_body: bytes) -> bytes:
    raise PeerRefusedError("the daemon that has the turn is of another version and cannot do that")
