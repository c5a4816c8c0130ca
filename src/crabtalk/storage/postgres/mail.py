"""Mail: what daemons that share a database tell each other.

A notice says that there is something; what it is stands in a table, from which its recipient takes
it. Notices may be lost with the connection that listens, so everybody also looks now and then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from crabtalk.storage.errors import StorageError, StorageUnavailableError

from .database import PASSING, Connection, Database

log = logging.getLogger(__name__)

# Seconds between looks, and until an answer is not waited for any more.
LOOK = 1.0
ANSWER_SECONDS = 5.0
# Pauses before the next attempt to listen.
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
ASK, ANSWER, REFUSAL = "ask ", "answer ", "refusal "

# To one that is there: nobody would ever take it out again otherwise.
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


class RefusedError(Exception):
    """The other daemon says no, with a sentence."""


Answering = Callable[[bytes], Awaitable[bytes]]


class Mail:
    """`hear` is told of notices that are not about mail, such as `turn KEY`."""

    def __init__(
        self, database: Database, daemon: UUID, channel: str, hear: Callable[[str], None]
    ) -> None:
        self._database = database
        self._daemon = daemon
        self._channel = channel
        self._hear = hear
        self._answering: dict[str, Answering] = {}
        self._taking: dict[str, Callable[[UUID, bytes], None]] = {}
        self._asked: dict[str, asyncio.Future[bytes]] = {}
        self._something = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_listening = False

    def answer(self, kind: str, answering: Answering) -> None:
        """How questions of a kind are answered here. It may raise RefusedError."""
        self._answering[kind] = answering

    def take(self, kind: str, taking: Callable[[UUID, bytes], None]) -> None:
        """What is done with letters of a kind, which nobody waits for."""
        self._taking[kind] = taking

    def start(self) -> None:
        if not self._tasks:
            self._own(self._listen())
            self._own(self._look())

    def _own(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    async def post(self, recipient: UUID, kind: str, body: bytes = b"") -> None:
        """Raises StorageError."""
        await self._database.change(POST, recipient, self._daemon, kind, body, self._channel)

    async def tell(self, notice: str) -> None:
        """All daemons, at once, something short."""
        await self._database.change("SELECT pg_notify($1, $2)", self._channel, notice)

    async def ask(
        self, recipient: UUID, kind: str, body: bytes, *, seconds: float = ANSWER_SECONDS
    ) -> bytes:
        """Raises RefusedError, StorageError, and StorageUnavailableError without an answer."""
        number = uuid4().hex
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            await self.post(recipient, f"{ASK}{number} {kind}", body)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise StorageUnavailableError(
                "the daemon that has this conversation's turn does not answer; "
                "try again in a moment"
            ) from None
        finally:
            del self._asked[number]

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

    async def _listen_on(self, connection: Connection) -> None:
        """Until it breaks. An idle one is tried now and then: a broken one says nothing."""
        try:
            await connection.add_listener(self._channel, self._noticed)
            self.is_listening = True
            self._something.set()  # something may have come while nobody listened
            while not connection.is_closed():
                await asyncio.sleep(LOOK)
                await connection.fetchval("SELECT 1")
        except (*PASSING, asyncpg.PostgresError) as error:
            log.info("listens no more: %s", error)
        finally:
            with suppress(Exception):
                connection.terminate()

    def _noticed(self, _connection: object, _pid: int, _channel: str, notice: object) -> None:
        text = str(notice)
        if text == f"mail {self._daemon}":
            self._something.set()
        elif not text.startswith("mail "):
            self._hear(text)

    async def _look(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._something.wait()
            self._something.clear()
            try:
                letters = await self._database.change(TAKE, self._daemon)
            except StorageError as error:
                log.info("the mail was not fetched: %s", error)
                await asyncio.sleep(LOOK)
                continue
            for row in letters:
                try:
                    self._open(row["sender"], row["kind"], row["body"])
                except Exception:
                    log.exception("a letter could not be read")

    def _open(self, sender: UUID, kind: str, body: bytes) -> None:
        if kind.startswith(ASK):
            _, number, subject = kind.split(" ", 2)
            self._own(self._give_answer(sender, number, subject, body))
        elif kind.startswith((ANSWER, REFUSAL)):
            word, number = kind.split(" ", 1)
            waiting = self._asked.get(number)
            if waiting is not None and not waiting.done():
                if f"{word} " == REFUSAL:
                    waiting.set_exception(RefusedError(body.decode(errors="replace")))
                else:
                    waiting.set_result(body)
        elif (taking := self._taking.get(kind)) is not None:
            taking(sender, body)

    async def _give_answer(self, sender: UUID, number: str, kind: str, body: bytes) -> None:
        answering = self._answering.get(kind)
        word = ANSWER
        try:
            answer = await (answering or unknown)(body)
        except RefusedError as error:
            word, answer = REFUSAL, str(error).encode()
        except Exception as error:
            log.exception("a daemon asked for %s, which failed", kind)
            word, answer = REFUSAL, f"internal error ({type(error).__name__})".encode()
        try:
            await self.post(sender, f"{word}{number}", answer)
        except StorageError as error:
            log.warning("a daemon gets no answer: %s", error)


async def unknown(_body: bytes) -> bytes:
    raise RefusedError("the daemon that has the turn is of another version and cannot do that")
