"""Fleet: this daemon among those that share its storage.

A client may ask any of them. What is about a turn that another daemon has is passed on to it, as
the request it is, and its answer is the answer; what others change is read anew here.
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
# Seconds a turn waits for another daemon's before that one is asked whether it waits for a person.
QUESTION_DELAY_SECONDS = 0.2
# What another daemon passed on is carried out here, or nowhere.
_is_forwarded: ContextVar[bool] = ContextVar("is_passed_on", default=False)
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
        self.remote_runs: RemoteRuns | None = None  # once it has joined
        self._daemon: Daemon | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reloading: dict[str, bool] = {}  # what is being read anew, and whether once more

    def join(self, daemon: "Daemon") -> None:
        """From now on. Nothing is connected yet."""
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
        """Carries out what others pass on."""

        async def carry_out(body: bytes) -> bytes:
            _is_forwarded.set(True)  # in this task alone
            async for answer in server.dispatch(wire.ClientMessage.FromString(body)):
                return answer.SerializeToString()
            return b""

        self._storage.mailbox.on_request(REQUEST, carry_out)

    async def info(self) -> wire.FleetInfo:
        """Who shares this storage, and how it fares."""
        return await collect_fleet_info(self._storage)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self.remote_runs is not None:
            self.remote_runs.close()
        await self.relay.close()

    # ── Passing on ──────────────────────────────────────────────────────────────────────────

    async def forward(self, request: wire.ClientMessage) -> bool:
        """To whoever has the turn of the conversation it names; False when that is nobody else.

        Raises the RequestError the other one answers with, and StorageError.
        """
        named = getattr(request, request.WhichOneof("msg") or "")
        pair = Pair(named.agent, named.sender or DEFAULT_SENDER)
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
        """A turn that waits behind another daemon's shows what that one asks its person."""
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
        while not run.is_started and run.done is None:  # noqa: ASYNC110 - hardly ever
            await asyncio.sleep(
                QUESTION_DELAY_SECONDS
            )  # nothing is shown of a turn before its start
        if data and run.done is None:
            run.emit_to_readers(_question_decoder.decode(data))

    async def _serve_question(self, body: bytes) -> bytes:
        if self._daemon is None:
            return b""
        ask = self._daemon.pending_questions.find_unanswered(Pair(*_pair_decoder.decode(body)))
        return msgspec.msgpack.encode(ask) if ask is not None else b""

    # ── What others did ─────────────────────────────────────────────────────────────────────

    def _on_lease_lost(self, pair: Pair) -> None:
        """The turn is another daemon's: what runs here could keep nothing of it."""
        conversation = self._daemon.runtime.conversations.find(pair) if self._daemon else None
        if conversation is not None and conversation.run is not None:
            conversation.run.kill()

    def _on_run_interrupted(self, pair: Pair, run: str) -> None:
        """Whoever follows a run is told that it is over, also when its daemon cannot."""
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

    def _on_change(self, what: str) -> None:
        if what in self._reloading:
            self._reloading[what] = True  # changed again while it is being read
            return
        self._reloading[what] = True
        self._spawn(self._reload(what))

    async def _reload(self, what: str) -> None:
        daemon = self._daemon
        try:
            while daemon is not None and self._reloading[what]:
                self._reloading[what] = False
                match what:
                    case "agents":
                        await daemon.reload_agents()
                    case "subscriptions":
                        await daemon.bus.load()
                    case "interests":
                        await self.relay.refresh()
        finally:
            del self._reloading[what]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def told() -> None:
            from crabtalk.storage.postgres import PeerRefusedError

            try:
                await work
            except (StorageUnavailableError, PeerRefusedError) as error:
                log.info("%s", error)
            except (StorageError, msgspec.MsgspecError) as error:
                log.warning("%s", error)
            except Exception:
                log.exception("something between daemons failed")

        task = asyncio.ensure_future(told())
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # cancelled before it began, it would wait to be for ever

        task.add_done_callback(over)
