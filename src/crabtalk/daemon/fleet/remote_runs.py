"""Following runs of other daemons: the events of a run that this daemon does not have.

The daemon that follows asks again and again for the events after the last one it has; the daemon
that has the run answers with a bounded number of bytes, and waits a moment when there are none yet.
Events that only the log has are read from there by who follows. The run never waits for a reader.
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
# Seconds until an answer is overdue.
REPLY_TIMEOUT_SECONDS = 4.0
# Of one answer; a larger event comes alone.
MAX_REPLY_BYTES = 256 * 1024
# Seconds that the other daemon waits for an event before it answers that there is none.
WAIT_SECONDS = 2.0
# Seconds until a daemon that may have a run is not waited for any more.
LOOKUP_TIMEOUT_SECONDS = 2.0
# Seconds between two questions: so many for one reader, and more when there are many readers, so
# that all of them together ask at most fifty times in a second.
POLL_SECONDS = 0.1
POLL_SECONDS_PER_READER = 0.02
# Readers of other daemons' runs at a time. One more waits for its own turn in line instead.
MAX_READERS = 256
# Seconds after which a reader that asks no more is taken to be gone.
READER_TIMEOUT_SECONDS = 10.0
# Seconds that a turn with a key waits in line before it looks once more who else has the key.
SECOND_LOOKUP_SECONDS = 0.2


class RunLostError(Exception):
    """The other daemon is gone, or has the run no more: the log has what there is of it."""


class FollowRequest(msgspec.Struct, frozen=True, array_like=True):
    """Which run, and where to go on. Without id and key: whatever runs in the conversation."""

    agent: str
    sender: str
    run: str = ""
    key: str = ""
    content_hash: str = ""  # with a key: of the message that the reader wants to say
    after: int = 0
    is_detached: bool = False  # the run shall go on when all readers have left
    seconds: float = 0.0  # to wait for an event
    reader: str = ""  # who asks: each reader counts as a follower


class FollowReply(msgspec.Struct, frozen=True, array_like=True):
    run: str = ""  # empty: this daemon has no such run
    speaker: str = ""
    mode: str = ""
    events: list[bytes] = []  # as StreamEvents
    last: int = 0  # number of the last event there is for now
    dropped: int = 0  # events up to this number are only in the log,
    dropped_messages: int = 0  # in so many messages of the run
    is_over: bool = False
    is_conflict: bool = False  # the key is that of another message


_request_decoder = msgspec.msgpack.Decoder(FollowRequest)
_reply_decoder = msgspec.msgpack.Decoder(FollowReply)


class RemoteRuns:
    """One per daemon: follows runs of others, and answers others about its own."""

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
        than: str = "",
    ) -> "RemoteRun | None":
        """The run as another daemon has it. `than` is the id of a run of ours with the same key: a
        run that waits as ours does is only followed when its id is smaller, so that two daemons
        never follow each other.

        Raises KeyConflictError when the key is that of another message, and StorageError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        if self.readers >= MAX_READERS:
            return None
        question = FollowRequest(
            *pair,
            run,
            key,
            content_hash,
            after=after,
            is_detached=is_detached,
            reader=os.urandom(8).hex(),
        )
        for holder in await self._storage.find_holders(pair, run=run, key=key):
            if than and not holder.is_in_flight and holder.run > than:
                continue
            try:
                answer = await self.request_events(holder.daemon, question, LOOKUP_TIMEOUT_SECONDS)
            except (RunLostError, StorageError) as error:
                log.info("a run of another daemon cannot be followed: %s", error)
                continue
            if answer.is_conflict:
                raise key_conflict_error(key)
            if answer.run:
                return RemoteRun(self, pair, holder.daemon, question, answer)
        return None

    async def find_to_attach(self, request: wire.AttachMsg) -> "RemoteRun | None":
        """The run that a client wants to attach to. Raises StorageError."""
        run, key = request.run_id, request.key
        found = await self.find(
            request.agent, request.sender, run=run, key=key, after=request.after
        )
        if found is not None or not (run or key):
            return found
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        records = await self._storage.find_run(pair, run=run, key=key)
        if not records or find_run_end(records) is not None:
            return None
        # It may have begun since.
        return await self.find(*pair, run=run, key=key, after=request.after)

    async def request_events(
        self, daemon: UUID, question: FollowRequest, seconds: float = REPLY_TIMEOUT_SECONDS
    ) -> FollowReply:
        """Raises RunLostError for an answer that is none, and StorageError."""
        from crabtalk.storage.postgres import PeerRefusedError

        try:
            body = msgspec.msgpack.encode(question)
            data = await self._storage.mailbox.request(daemon, FOLLOW, body, seconds=seconds)
            return _reply_decoder.decode(data)
        except (PeerRefusedError, msgspec.MsgspecError) as error:
            raise RunLostError(str(error)) from None

    async def is_held(self, pair: Pair, daemon: UUID, run: str) -> bool:
        """Whether a daemon that lives has this run, in flight or in line."""
        holders = await self._storage.find_holders(pair, run=run)
        return any(holder.daemon == daemon and holder.run == run for holder in holders)

    async def read_dropped(self, pair: Pair, answer: FollowReply) -> list[wire.StreamEvent]:
        """The events of a run that its daemon has in the log only. Raises StorageError."""
        records = await self._storage.find_run(pair, run=answer.run)
        started = Started(answer.speaker, answer.run, answer.mode)
        events = dropped_events(started, records, answer.dropped_messages)
        return [message for event in events if (message := to_stream_event(event)) is not None]

    async def follow_waiting(
        self, run: Run, follow: Callable[[Run], AsyncGenerator[wire.StreamEvent, None]]
    ) -> AsyncGenerator[wire.StreamEvent, None]:
        """The events of a run of ours with a key. When it waits in line though another daemon has
        begun with the same key, those of that run; ours stays in line in case that daemon dies."""
        looking = asyncio.ensure_future(self._find_again(run))
        try:
            async with aclosing(follow(run)) as own:
                while True:
                    reading = asyncio.ensure_future(anext(own, None))
                    try:
                        await asyncio.wait({reading, looking}, return_when=asyncio.FIRST_COMPLETED)
                        if not reading.done() and looking.result() is None:
                            await asyncio.wait([reading])
                    finally:
                        if not reading.done():
                            reading.cancel()
                            await asyncio.wait([reading])
                    if reading.cancelled():
                        break
                    message = reading.result()
                    if message is None:
                        return
                    yield message
            remote = looking.result()
            if remote is not None:
                with run.count_follower():
                    async with aclosing(remote.events()) as messages:
                        async for message in messages:
                            yield message
                if remote.is_over:
                    return
            async with aclosing(follow(run)) as own:
                async for message in own:
                    yield message
        finally:
            looking.cancel()

    async def _find_again(self, run: Run) -> "RemoteRun | None":
        """Two daemons may have been asked at the same moment, and neither found the other."""
        await asyncio.sleep(SECOND_LOOKUP_SECONDS)
        if run.done is not None or self._daemon.runtime.find_run(*run.pair) is run:
            return None
        content_hash = run.labels[0].content_hash
        try:
            return await self.find(*run.pair, key=run.key, content_hash=content_hash, than=run.id)
        except (KeyConflictError, StorageError) as error:
            log.info("who else has the key of run %s is not known: %s", run.id, error)
            return None

    # ── Being followed ──────────────────────────────────────────────────────────────────────

    async def _serve_events(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._reply_to(_request_decoder.decode(body)))

    async def _reply_to(self, question: FollowRequest) -> FollowReply:
        run = self._find_local_run(question)
        if run is None or run.replay_buffer.is_stored:
            return FollowReply()
        label = next((one for one in run.labels.values() if one.key == question.key), None)
        if question.content_hash and label is not None:
            if label.content_hash != question.content_hash:
                return FollowReply(run.id, is_conflict=True)
            run.is_detached = run.is_detached or question.is_detached
        self._share(run, question.reader)
        transcript = run.replay_buffer
        with suppress(TimeoutError):
            async with asyncio.timeout(min(question.seconds, WAIT_SECONDS)):
                await transcript.wait_for_events(max(question.after, transcript.last_dropped))
        return build_reply(run, question.after)

    def _find_local_run(self, question: FollowRequest) -> Run | None:
        shared = self._shared.get((question.run, question.reader))
        if shared is not None:
            return shared.run
        return self._daemon.runtime.find_run(
            question.agent, question.sender, run_id=question.run, key=question.key
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
    """A run of ours that a client of another daemon reads. It counts as a follower, and the events
    stay for a while after the end, so that the reader can ask for the last of them."""

    def __init__(self, run: Run, leave: Callable[[], None]) -> None:
        self.run = run
        self._on_expired = leave
        run.followers += 1
        run.follow_count += 1
        self.timer = asyncio.get_running_loop().call_later(READER_TIMEOUT_SECONDS, self._expire)

    def renew(self) -> None:
        """Its reader is there."""
        self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(READER_TIMEOUT_SECONDS, self._expire)

    def _expire(self) -> None:
        self.run.followers -= 1
        self._on_expired()


class RemoteRun:
    """A run of another daemon, for one reader."""

    def __init__(
        self,
        following: RemoteRuns,
        pair: Pair,
        daemon: UUID,
        question: FollowRequest,
        first: FollowReply,
    ) -> None:
        self._remote_runs = following
        self._pair = pair
        self._daemon = daemon
        self._request = msgspec.structs.replace(
            question, run=first.run, key="", content_hash="", seconds=WAIT_SECONDS
        )
        self._first_reply = first
        self.run_id = first.run
        self.is_over = False  # its end was read

    async def events(self) -> AsyncGenerator[wire.StreamEvent, None]:
        """Those after the number that was asked for, to the end of the run. When its daemon is
        gone they end without one, and `is_over` is False: the log has what there is of the run.

        Raises StorageError. Closed early, it is as if a follower on the other daemon had left.
        """
        following = self._remote_runs
        after, answer = self._request.after, self._first_reply
        following.readers += 1
        try:
            while True:
                if after < answer.dropped:
                    for message in await following.read_dropped(self._pair, answer):
                        yield message
                for data in answer.events:
                    yield wire.StreamEvent.FromString(data)
                if answer.is_over:
                    self.is_over = True
                    return
                after = max(after, answer.last)
                if answer.events:
                    await asyncio.sleep(
                        max(POLL_SECONDS, POLL_SECONDS_PER_READER * following.readers)
                    )
                answer = await self._request_more(after)
        except RunLostError as error:
            log.info("run %s of another daemon is lost: %s", self.run_id, error)
        finally:
            following.readers -= 1

    async def _request_more(self, after: int) -> FollowReply:
        """Raises RunLostError and StorageError."""
        question = msgspec.structs.replace(self._request, after=after)
        while True:
            try:
                answer = await self._remote_runs.request_events(self._daemon, question)
            except StorageError as error:
                # It may only be late: as long as it renews its lease, it has the run.
                if not await self._remote_runs.is_held(self._pair, self._daemon, self.run_id):
                    raise RunLostError(str(error)) from None
                continue
            if not answer.run:
                raise RunLostError("its daemon has the run no more")
            return answer


def build_reply(run: Run, after: int) -> FollowReply:
    """What there is now, within the bound."""
    transcript = run.replay_buffer
    events: list[bytes] = []
    size = 0
    last = max(after, transcript.last_dropped)
    is_over = False
    while (
        size < MAX_REPLY_BYTES and not is_over and (found := transcript.read_next(last)) is not None
    ):
        number, event = found
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
    """False for a turn that ended before it began: nothing of it is kept, so its key is free."""
    return run.is_started and not done.is_conflict and not (done.is_passing and not done.steps)
