"""RemoteRuns: streams the events of runs in other daemons, and serves events of its own runs.

The reading daemon polls for the events after the last one it has. The daemon with the run answers
with a bounded number of bytes, and waits a moment if there are no new events. The reading daemon
reads events that are only in the log from there. The run never waits for a reader.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from crabtalk.daemon.events.stream_events import to_stream_event
from crabtalk.protocol import wire
from crabtalk.runtime import (
    DEFAULT_SENDER,
    Done,
    KeyConflictError,
    Run,
    Started,
    dropped_events,
    find_run_end,
    key_conflict_error,
)
from crabtalk.storage import Pair, StorageError

if TYPE_CHECKING:
    from crabtalk.daemon.daemon import Daemon
    from crabtalk.storage.postgres import PostgresStorage

log = logging.getLogger(__name__)

FOLLOW = "follow"
# Seconds to wait for an answer.
REPLY_TIMEOUT_SECONDS = 4.0
# Bytes of events in one answer; a larger event comes alone.
MAX_REPLY_BYTES = 256 * 1024
# Seconds that the other daemon waits for an event before it answers without one.
WAIT_SECONDS = 2.0
# Seconds to wait for a daemon that may have a run.
LOOKUP_TIMEOUT_SECONDS = 2.0
# Seconds between two requests: the first for few readers, the second per reader if there are many,
# so that all readers together send at most fifty requests in a second.
POLL_SECONDS = 0.1
POLL_SECONDS_PER_READER = 0.02
# Concurrent readers of other daemons' runs. A further client's message is queued here instead.
MAX_READERS = 256
# Seconds after which a reader that sends no more requests counts as gone.
READER_TIMEOUT_SECONDS = 10.0
# Seconds that a turn with a key is queued before it looks again for other daemons with the key.
SECOND_LOOKUP_SECONDS = 0.2


class RunLostError(Exception):
    """The other daemon is gone or no longer has the run; the log has all that was stored."""


class FollowRequest(msgspec.Struct, frozen=True, array_like=True):
    """Which run, and after which event. Without id and key: the conversation's current run."""

    agent: str
    sender: str
    run: str = ""
    key: str = ""
    content_hash: str = ""  # with a key: of the message that the reader's client sent
    after: int = 0
    is_detached: bool = False  # the run goes on after all readers have left
    seconds: float = 0.0  # to wait for an event
    reader: str = ""  # id of the reader: each counts as a follower


class FollowReply(msgspec.Struct, frozen=True, array_like=True):
    run: str = ""  # empty: this daemon has no such run
    speaker: str = ""
    mode: str = ""
    events: list[bytes] = []  # as StreamEvents
    last: int = 0  # number of the last event there is for now
    dropped: int = 0  # events up to this number are only in the log,
    dropped_messages: int = 0  # in so many messages of the run
    is_over: bool = False
    is_conflict: bool = False  # the key belongs to another message


_request_decoder = msgspec.msgpack.Decoder(FollowRequest)
_reply_decoder = msgspec.msgpack.Decoder(FollowReply)


class RemoteRuns:
    """One per daemon."""

    def __init__(self, storage: "PostgresStorage", daemon: "Daemon") -> None:
        self._storage = storage
        self._daemon = daemon
        self._shared: dict[tuple[str, str], SharedRun] = {}  # by run id and reader
        self.readers = 0
        storage.mailbox.on_request(FOLLOW, self._serve_events)

    # ── Following ───────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        agent: str,
        sender: str,
        *,
        run: str = "",
        key: str = "",
        content_hash: str = "",
        after: int = 0,
        is_detached: bool = False,
        own_run: str = "",
    ) -> "RemoteRun | None":
        """Find a run in another daemon. `own_run` is the id of our run with the same key: if the
        other run is queued too, it is only followed if its id is smaller, so that two daemons never
        follow each other.

        Raises KeyConflictError if the key belongs to another message, and StorageError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        if self.readers >= MAX_READERS:
            return None
        request = FollowRequest(
            *pair,
            run,
            key,
            content_hash,
            after=after,
            is_detached=is_detached,
            reader=os.urandom(8).hex(),
        )
        for holder in await self._storage.find_holders(pair, run=run, key=key):
            if own_run and not holder.is_in_flight and holder.run > own_run:
                continue
            try:
                answer = await self.request_events(holder.daemon, request, LOOKUP_TIMEOUT_SECONDS)
            except (RunLostError, StorageError) as error:
                log.info("a run of another daemon cannot be followed: %s", error)
                continue
            if answer.is_conflict:
                raise key_conflict_error(key)
            if answer.run:
                return RemoteRun(self, pair, holder.daemon, request, answer)
        return None

    async def find_to_attach(self, request: wire.AttachMsg) -> "RemoteRun | None":
        """Find the run that a client wants to attach to. Raises StorageError."""
        run, key = request.run_id, request.key
        remote = await self.find(
            request.agent, request.sender, run=run, key=key, after=request.after
        )
        if remote is not None or not (run or key):
            return remote
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        records = await self._storage.find_run(pair, run=run, key=key)
        if not records or find_run_end(records) is not None:
            return None
        # It may have begun since the first lookup.
        return await self.find(*pair, run=run, key=key, after=request.after)

    async def request_events(
        self, daemon: UUID, request: FollowRequest, seconds: float = REPLY_TIMEOUT_SECONDS
    ) -> FollowReply:
        """Raises RunLostError for an invalid answer, and StorageError."""
        from crabtalk.storage.postgres import PeerRefusedError

        try:
            body = msgspec.msgpack.encode(request)
            data = await self._storage.mailbox.request(daemon, FOLLOW, body, seconds=seconds)
            return _reply_decoder.decode(data)
        except (PeerRefusedError, msgspec.MsgspecError) as error:
            raise RunLostError(str(error)) from None

    async def is_held(self, pair: Pair, daemon: UUID, run: str) -> bool:
        """Whether a daemon that is alive has this run, running or queued."""
        holders = await self._storage.find_holders(pair, run=run)
        return any(holder.daemon == daemon and holder.run == run for holder in holders)

    async def read_dropped(self, pair: Pair, answer: FollowReply) -> list[wire.StreamEvent]:
        """Read the events that the run's daemon has only in the log. Raises StorageError."""
        records = await self._storage.find_run(pair, run=answer.run)
        started = Started(answer.speaker, answer.run, answer.mode)
        events = dropped_events(started, records, answer.dropped_messages)
        return [message for event in events if (message := to_stream_event(event)) is not None]

    async def follow_waiting(
        self, run: Run, follow: Callable[[Run], AsyncGenerator[wire.StreamEvent, None]]
    ) -> AsyncGenerator[wire.StreamEvent, None]:
        """The events of our run with a key. If it is still queued and another daemon has a run with
        the same key, the events of that run; ours stays queued in case that daemon dies."""
        lookup = asyncio.ensure_future(self._find_again(run))
        try:
            async with aclosing(follow(run)) as own_events:
                while True:
                    next_message = asyncio.ensure_future(anext(own_events, None))
                    try:
                        await asyncio.wait(
                            {next_message, lookup}, return_when=asyncio.FIRST_COMPLETED
                        )
                        if not next_message.done() and lookup.result() is None:
                            await asyncio.wait([next_message])
                    finally:
                        if not next_message.done():
                            next_message.cancel()
                            await asyncio.wait([next_message])
                    if next_message.cancelled():
                        break
                    message = next_message.result()
                    if message is None:
                        return
                    yield message
            remote = lookup.result()
            if remote is not None:
                with run.count_follower():
                    async with aclosing(remote.events()) as messages:
                        async for message in messages:
                            yield message
                if remote.is_over:
                    return
            async with aclosing(follow(run)) as own_events:
                async for message in own_events:
                    yield message
        finally:
            lookup.cancel()

    async def _find_again(self, run: Run) -> "RemoteRun | None":
        """Look again: two daemons may have got the key at the same moment and missed each other."""
        await asyncio.sleep(SECOND_LOOKUP_SECONDS)
        if run.done is not None or self._daemon.runtime.find_run(*run.pair) is run:
            return None
        content_hash = run.labels[0].content_hash
        try:
            return await self.find(
                *run.pair, key=run.key, content_hash=content_hash, own_run=run.id
            )
        except (KeyConflictError, StorageError) as error:
            log.info("who else has the key of run %s is not known: %s", run.id, error)
            return None

    # ── Serving ─────────────────────────────────────────────────────────────────────────────

    async def _serve_events(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._reply_to(_request_decoder.decode(body)))

    async def _reply_to(self, request: FollowRequest) -> FollowReply:
        run = self._find_local_run(request)
        if run is None or run.replay_buffer.is_stored:
            return FollowReply()
        labels = run.labels.values()
        label = next((label for label in labels if label.key == request.key), None)
        if request.content_hash and label is not None:
            if label.content_hash != request.content_hash:
                return FollowReply(run.id, is_conflict=True)
            run.is_detached = run.is_detached or request.is_detached
        self._share(run, request.reader)
        transcript = run.replay_buffer
        with suppress(TimeoutError):
            async with asyncio.timeout(min(request.seconds, WAIT_SECONDS)):
                await transcript.wait_for_events(max(request.after, transcript.last_dropped))
        return build_reply(run, request.after)

    def _find_local_run(self, request: FollowRequest) -> Run | None:
        shared = self._shared.get((request.run, request.reader))
        if shared is not None:
            return shared.run
        return self._daemon.runtime.find_run(
            request.agent, request.sender, run_id=request.run, key=request.key
        )

    def _share(self, run: Run, reader: str) -> None:
        name = run.id, reader
        if name not in self._shared:
            self._shared[name] = SharedRun(run, lambda: self._unshare(name))
        self._shared[name].renew()

    def _unshare(self, name: tuple[str, str]) -> None:
        from crabtalk.daemon.handlers.daemon_server import RETURN_SECONDS, kill_unless_followed

        run = self._shared.pop(name).run
        if run.key and not run.followers:
            kill_unless_followed(run, RETURN_SECONDS)

    def close(self) -> None:
        for shared in self._shared.values():
            shared.timer.cancel()
        self._shared.clear()


class SharedRun:
    """A run of ours with a reader in another daemon. The reader counts as a follower. The run stays
    here for a while after its end, so that the reader can ask for the last events."""

    def __init__(self, run: Run, on_expired: Callable[[], None]) -> None:
        self.run = run
        self._on_expired = on_expired
        run.followers += 1
        run.follow_count += 1
        self.timer = asyncio.get_running_loop().call_later(READER_TIMEOUT_SECONDS, self._expire)

    def renew(self) -> None:
        """Restart the timeout, because the reader sent a request."""
        self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(READER_TIMEOUT_SECONDS, self._expire)

    def _expire(self) -> None:
        self.run.followers -= 1
        self._on_expired()


class RemoteRun:
    """A run of another daemon, for one reader."""

    def __init__(
        self,
        remote_runs: RemoteRuns,
        pair: Pair,
        daemon: UUID,
        request: FollowRequest,
        first: FollowReply,
    ) -> None:
        self._remote_runs = remote_runs
        self._pair = pair
        self._daemon = daemon
        self._request = msgspec.structs.replace(
            request, run=first.run, key="", content_hash="", seconds=WAIT_SECONDS
        )
        self._first_reply = first
        self.run_id = first.run
        self.is_over = False  # its last event was read

    async def events(self) -> AsyncGenerator[wire.StreamEvent, None]:
        """The events after the requested number, up to the end of the run. If its daemon dies, they
        stop before the end and `is_over` is False; the log has all that was stored.

        Raises StorageError. Closing it early counts as a follower that leaves.
        """
        remote_runs = self._remote_runs
        after, answer = self._request.after, self._first_reply
        remote_runs.readers += 1
        try:
            while True:
                if after < answer.dropped:
                    for message in await remote_runs.read_dropped(self._pair, answer):
                        yield message
                for data in answer.events:
                    yield wire.StreamEvent.FromString(data)
                if answer.is_over:
                    self.is_over = True
                    return
                after = max(after, answer.last)
                if answer.events:
                    await asyncio.sleep(
                        max(POLL_SECONDS, POLL_SECONDS_PER_READER * remote_runs.readers)
                    )
                answer = await self._request_more(after)
        except RunLostError as error:
            log.info("run %s of another daemon is lost: %s", self.run_id, error)
        finally:
            remote_runs.readers -= 1

    async def _request_more(self, after: int) -> FollowReply:
        """Raises RunLostError and StorageError."""
        request = msgspec.structs.replace(self._request, after=after)
        while True:
            try:
                answer = await self._remote_runs.request_events(self._daemon, request)
            except StorageError as error:
                # The answer may only be late: a daemon that renews its lease still has the run.
                if not await self._remote_runs.is_held(self._pair, self._daemon, self.run_id):
                    raise RunLostError(str(error)) from None
                continue
            if not answer.run:
                raise RunLostError("its daemon has the run no more")
            return answer


def build_reply(run: Run, after: int) -> FollowReply:
    """The events there are now, up to the size limit."""
    transcript = run.replay_buffer
    events: list[bytes] = []
    size = 0
    last = max(after, transcript.last_dropped)
    is_over = False
    while (
        size < MAX_REPLY_BYTES
        and not is_over
        and (numbered_event := transcript.read_next(last)) is not None
    ):
        number, event = numbered_event
        is_over = isinstance(event, Done)
        if isinstance(event, Done) and not was_accepted(run, event):
            return FollowReply()
        last = number
        if (message := to_stream_event(event)) is not None:
            message.number = number
            events.append(message.SerializeToString())
            size += len(events[-1])
    return FollowReply(
        run.id,
        run.speaker,
        run.effective_mode,
        events,
        last,
        transcript.last_dropped,
        transcript.dropped_messages,
        is_over,
    )


def was_accepted(run: Run, done: Done) -> bool:
    """False for a turn that ended before it began: nothing of it is stored, so its key is free."""
    return run.is_started and not done.is_conflict and not (done.is_passing and not done.steps)
