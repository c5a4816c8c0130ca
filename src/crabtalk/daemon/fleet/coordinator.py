"""Fleet: coordinates this daemon with the others that share its storage.

A client may ask any of them. A request about a turn of another daemon is forwarded to it, and its
answer is returned. When another daemon changes shared state, it is read again here.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from google.protobuf.message import DecodeError

from crabtalk.protocol import InternalError, RequestError, Server, UnavailableError, wire
from crabtalk.runtime import DEFAULT_SENDER, AskUser, Run
from crabtalk.storage import Pair, StorageError, StorageUnavailableError

from .feed_relay import FeedRelay
from .remote_runs import RemoteRuns
from .stats import collect_fleet_info

if TYPE_CHECKING:
    from crabtalk.daemon.daemon import Daemon
    from crabtalk.storage.postgres import PostgresStorage

log = logging.getLogger(__name__)

REQUEST, QUESTION = "request", "question"
# Seconds a turn waits behind another daemon's before that one is asked for its open question.
QUESTION_DELAY_SECONDS = 0.2
# True while a forwarded request is handled: it is not forwarded again.
_is_forwarded: ContextVar[bool] = ContextVar("is_forwarded", default=False)
_question_decoder = msgspec.msgpack.Decoder(AskUser)
_pair_decoder = msgspec.msgpack.Decoder(tuple[str, str])
_errors_by_code = {kind.code: kind for kind in RequestError.__subclasses__()}


class Fleet:
    def __init__(self, storage: "PostgresStorage") -> None:
        from crabtalk.storage.postgres import PostgresMemoryStore

        self._storage = storage
        self.subscriptions = storage.subscriptions
        self.memory_store = PostgresMemoryStore(storage.database)
        self.relay = FeedRelay(storage)
        self.remote_runs: RemoteRuns | None = None  # set by `join`
        self._daemon: Daemon | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reloading: dict[
            str, bool
        ] = {}  # kind being read again, and whether to read it once more

    def join(self, daemon: "Daemon") -> None:
        """Connect the callbacks of the storage to the daemon. Does no I/O."""
        self._daemon = daemon
        storage = self._storage
        self.remote_runs = RemoteRuns(storage, daemon)
        storage.turn_claims.on_lost = self._on_lease_lost
        storage.on_interrupted = self._on_run_interrupted
        storage.membership.on_change = self._on_change
        storage.membership.on_rejoin = self.relay.announce
        storage.membership.recover = lambda: self._spawn(daemon.runtime.recover())
        storage.membership.count_runs = lambda: daemon.runtime.running_count
        storage.mailbox.on_request(QUESTION, self._serve_question)
        self.relay.join(daemon.feed, daemon.pending_questions)

    def serve(self, server: Server) -> None:
        """Carry out requests that other daemons forward."""

        async def carry_out(body: bytes) -> bytes:
            _is_forwarded.set(True)  # in this task alone
            async for answer in server.dispatch(wire.ClientMessage.FromString(body)):
                return answer.SerializeToString()
            return b""

        self._storage.mailbox.on_request(REQUEST, carry_out)

    async def info(self) -> wire.FleetInfo:
        """The daemons that share this storage, and the state of the database."""
        return await collect_fleet_info(self._storage)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self.remote_runs is not None:
            self.remote_runs.close()
        await self.relay.close()

    # ── Forwarding ──────────────────────────────────────────────────────────────────────────

    async def forward(self, request: wire.ClientMessage) -> bool:
        """Forward to the daemon that runs the conversation's turn; False if no other one does.

        Raises the RequestError that the other daemon answers, and StorageError.
        """
        body = getattr(request, request.WhichOneof("msg") or "")
        pair = Pair(body.agent, body.sender or DEFAULT_SENDER)
        if _is_forwarded.get() or self._runs_here(pair):
            return False
        owner = await self._storage.find_owner(pair)
        if owner is None:
            return False
        answer = await self._request_owner(owner, request)
        if answer.HasField("error"):
            kind = _errors_by_code.get(answer.error.code, InternalError)
            raise kind(answer.error.message)
        return True

    async def _request_owner(self, owner: UUID, request: wire.ClientMessage) -> wire.ServerMessage:
        from crabtalk.storage.postgres import PeerRefusedError

        try:
            data = await self._storage.mailbox.request(owner, REQUEST, request.SerializeToString())
            answer = wire.ServerMessage.FromString(data)
        except PeerRefusedError as error:
            raise UnavailableError(f"the daemon that has the turn says no: {error}") from None
        except DecodeError:
            answer = wire.ServerMessage()
        if answer.WhichOneof("msg") is None:
            raise UnavailableError(
                "the daemon that has the turn answers what cannot be read; "
                "have all daemons run the same version"
            )
        return answer

    def _runs_here(self, pair: Pair) -> bool:
        if self._daemon is None:
            return False
        conversation = self._daemon.runtime.conversations.find(pair)
        return conversation is not None and conversation.run is not None

    # ── Questions ───────────────────────────────────────────────────────────────────────────

    def show_remote_question(self, run: Run) -> None:
        """Show the open question of another daemon's turn in a run that is queued behind it."""
        self._spawn(self._show_remote_question(run))

    async def _show_remote_question(self, run: Run) -> None:
        await asyncio.sleep(QUESTION_DELAY_SECONDS)
        if run.done is not None or self._runs_here(run.pair):
            return
        owner = await self._storage.find_owner(run.pair)
        if owner is None:
            return
        data = await self._storage.mailbox.request(
            owner, QUESTION, msgspec.msgpack.encode(run.pair)
        )
        while not run.is_started and run.done is None:  # noqa: ASYNC110 - rare
            # A stream shows nothing before the start of its turn.
            await asyncio.sleep(QUESTION_DELAY_SECONDS)
        if data and run.done is None:
            run.emit_to_readers(_question_decoder.decode(data))

    async def _serve_question(self, body: bytes) -> bytes:
        if self._daemon is None:
            return b""
        ask = self._daemon.pending_questions.find_unanswered(Pair(*_pair_decoder.decode(body)))
        return msgspec.msgpack.encode(ask) if ask is not None else b""

    # ── Changes by other daemons ────────────────────────────────────────────────────────────

    def _on_lease_lost(self, pair: Pair) -> None:
        """Another daemon has taken over the turn: the run here can store nothing more."""
        conversation = self._daemon.runtime.conversations.find(pair) if self._daemon else None
        if conversation is not None and conversation.run is not None:
            conversation.run.kill()

    def _on_run_interrupted(self, pair: Pair, run: str) -> None:
        """Report the end of a run whose daemon died to the feeds, here and elsewhere."""
        if self._daemon is None:
            return
        message = wire.AgentEventMsg(
            agent=pair.agent,
            sender=pair.sender,
            run_id=run,
            timestamp=self._daemon.clock.now(),
            kind=wire.DONE,
            stop_reason=wire.STOP_REASON_ERROR,
            error="the daemon that ran it was not heard of any more; what was kept by then stays",
        )
        self._daemon.feed.publish_remote(message)
        self.relay.send(self.relay.find_interested(pair), message)

    def _on_change(self, kind: str) -> None:
        if kind in self._reloading:
            self._reloading[kind] = True  # changed again while it is being read
            return
        self._reloading[kind] = True
        self._spawn(self._reload(kind))

    async def _reload(self, kind: str) -> None:
        daemon = self._daemon
        try:
            while daemon is not None and self._reloading[kind]:
                self._reloading[kind] = False
                match kind:
                    case "agents":
                        await daemon.reload_agents()
                    case "subscriptions":
                        await daemon.bus.load()
                    case "interests":
                        await self.relay.refresh()
        finally:
            del self._reloading[kind]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def run_and_log() -> None:
            from crabtalk.storage.postgres import PeerRefusedError

            try:
                await work
            except (StorageUnavailableError, PeerRefusedError) as error:
                log.info("%s", error)
            except (StorageError, msgspec.MsgspecError) as error:
                log.warning("%s", error)
            except Exception:
                log.exception("something between daemons failed")

        task = asyncio.ensure_future(run_and_log())
        self._tasks.add(task)

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # avoids a warning if it was cancelled before it began

        task.add_done_callback(on_done)
