"""DaemonServer: the daemon's handlers for all requests.

The requests about turns are in this module; the others are in the base classes, by subject.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from crabtalk import __version__
from crabtalk.daemon.daemon import Daemon
from crabtalk.daemon.events.stream_events import to_stream_event, to_token_usage
from crabtalk.policy import parse_mode
from crabtalk.protocol import (
    PROTOCOL_VERSION,
    BadRequestError,
    ConflictError,
    InternalError,
    NotFoundError,
    RequestError,
    UnavailableError,
    wire,
)
from crabtalk.runtime import DEFAULT_SENDER, Done, Event, Run, StopReason
from crabtalk.storage import Pair, hash_content

from .agents import AgentHandlers
from .conversations import ConversationHandlers
from .error_mapping import translate_errors
from .events import EventHandlers
from .mcp_servers import McpHandlers
from .memory_and_search import MemoryAndSearchHandlers
from .permissions import PermissionHandlers

# Optional features that clients may use: docs/protocol.md, Greeting.
FEATURES = ("keys", "attach", "records", "request_id")
if TYPE_CHECKING:
    from crabtalk.daemon.fleet.remote_runs import RemoteRun, RemoteRuns

MAX_SENDER_CHARS = 1024
MAX_PATH_CHARS = 8192
MAX_KEY_BYTES = 128  # bytes
# Seconds that a run with a key goes on after its last follower has left.
RETURN_SECONDS = 30.0


class DaemonServer(
    AgentHandlers,
    ConversationHandlers,
    EventHandlers,
    McpHandlers,
    PermissionHandlers,
    MemoryAndSearchHandlers,
):
    """One per process. Requests without a handler are answered with 501."""

    def __init__(self, daemon: Daemon, *, return_seconds: float = RETURN_SECONDS) -> None:
        super().__init__(daemon)
        self._return_seconds = return_seconds
        if daemon.fleet is not None:
            daemon.fleet.serve(self)
        self._started = time.monotonic()

    # ── The daemon itself ───────────────────────────────────────────────────────────────────

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(
            protocol_version=PROTOCOL_VERSION,
            server_version=__version__,
            features=FEATURES if request.wants_features else (),
        )

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        runtime = await self._daemon.wait_until_opened()
        fleet = self._daemon.fleet
        return wire.DaemonStats(
            uptime_secs=int(time.monotonic() - self._started),
            active_conversations=sum(c.exists for c in runtime.conversations),
            registered_agents=len(runtime.agents),
            active_model=self._daemon.models.active,
            runs=runtime.running_count,
            problems=self._daemon.problems,
            fleet=await fleet.info() if fleet is not None else None,
        )

    async def reload(self, request: wire.ReloadMsg) -> None:
        await self._daemon.wait_until_opened()
        with translate_errors():
            await self._daemon.reload()

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        if request.key:
            async with aclosing(self._stream_keyed(request)) as messages:
                async for message in messages:
                    yield message
            return
        run = await self._start_run(request, detached=request.detach)
        waiting = self._daemon.pending_questions.find_unanswered(run.pair)
        if self._daemon.fleet is not None:
            self._daemon.fleet.show_remote_question(run)
        async with aclosing(run.events()) as events:
            async for event in events:
                if type(event) is Done:
                    check_accepted(run, event)
                if (converted := to_stream_event(event)) is not None:
                    yield converted
                if waiting is not None and (question := to_stream_event(waiting)) is not None:
                    # The previous turn waits for an answer; the client it asked may be gone.
                    yield question
                    waiting = None

    async def _stream_keyed(
        self, request: wire.StreamMsg
    ) -> AsyncGenerator[wire.StreamEvent, None]:
        remote = await self._find_remote_run(request, detached=request.detach)
        if remote is not None:
            with translate_errors():
                async with aclosing(remote.events()) as messages:
                    async for message in messages:
                        yield message
            if remote.is_over:
                return
        # Also when the other daemon died: a key runs only once, so this streams the stored run.
        run = await self._start_run(request, detached=request.detach)
        async with aclosing(self._follow_keyed(run)) as messages:
            async for message in messages:
                yield message

    async def _find_remote_run(
        self, request: wire.StreamMsg | wire.SendMsg, *, detached: bool
    ) -> "RemoteRun | None":
        """The run of this key at another daemon, running or queued."""
        runtime = await self._daemon.wait_until_ready()
        check_key(request.key)
        remote_runs = self._remote_runs
        if remote_runs is None or runtime.find_run(request.agent, request.sender, key=request.key):
            return None
        with translate_errors():
            return await remote_runs.find(
                request.agent,
                request.sender,
                key=request.key,
                content_hash=hash_content(request.content, request.guest),
                is_detached=detached,
            )

    @property
    def _remote_runs(self) -> "RemoteRuns | None":
        """None where no other daemon shares the storage."""
        return self._daemon.fleet.remote_runs if self._daemon.fleet is not None else None

    async def _follow_keyed(self, run: Run) -> AsyncGenerator[wire.StreamEvent, None]:
        """The stream of a run with a key, for each client that sent the key."""
        # The run's own questions are part of its events.
        waiting = self._daemon.pending_questions.find_unanswered(run.pair, besides=run)
        if self._daemon.fleet is not None:
            self._daemon.fleet.show_remote_question(run)
        remote_runs = self._remote_runs
        events = remote_runs.follow_waiting(run, self._follow) if remote_runs else self._follow(run)
        async with aclosing(events) as messages:
            async for message in messages:
                yield message
                if waiting is not None and (question := to_stream_event(waiting)) is not None:
                    yield question
                    waiting = None

    async def _follow(self, run: Run, after: int = 0) -> AsyncGenerator[wire.StreamEvent, None]:
        """A run's events from memory, or from the log if they are no longer in memory. When the
        last follower of a run with a key leaves, the run goes on for a while in case it returns."""
        try:
            async with aclosing(self._daemon.runtime.follow(run, after)) as events:
                async for number, event in events:
                    if type(event) is Done:
                        check_accepted(run, event)
                    if (message := to_stream_event(event)) is not None:
                        if number:
                            message.number = number
                        yield message
        finally:
            if run.key and not run.followers:
                kill_unless_followed(run, self._return_seconds)

    async def attach(self, request: wire.AttachMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        runtime = await self._daemon.wait_until_ready()
        agent, sender = request.agent, request.sender
        run = runtime.find_run(agent, sender, run_id=request.run_id, key=request.key)
        if run is not None:
            async with aclosing(self._follow(run, request.after)) as messages:
                async for message in messages:
                    yield message
            return
        run_id, key = request.run_id, request.key
        remote: RemoteRun | None = None
        if self._remote_runs is not None:
            with translate_errors():
                remote = await self._remote_runs.find_to_attach(request)
        if remote is not None:
            with translate_errors():
                async with aclosing(remote.events()) as messages:
                    async for message in messages:
                        yield message
            if remote.is_over:
                return
            run_id, key = remote.run_id, ""
        stored: list[Event] = []
        if run_id or key:
            with translate_errors():
                stored = await runtime.read_stored_events(agent, sender, run_id=run_id, key=key)
        if not stored:
            raise NotFoundError(describe_missing_run(request))
        for event in stored:
            if (converted := to_stream_event(event)) is not None:
                yield converted

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        runtime = await self._daemon.wait_until_ready()
        with translate_errors():
            if request.guest:
                await self._daemon.load_new_agent(request.guest)
                runtime.build_agent(request.guest)
        if request.key and (remote := await self._find_remote_run(request, detached=True)):
            with translate_errors():
                async with aclosing(remote.events()) as messages:
                    async for _ in messages:
                        pass  # wait for its end; then the log has the outcome
        run = await self._start_run(request, detached=True)
        done = await run.wait()
        if done.is_conflict:
            raise ConflictError(done.error)
        if done.reason is StopReason.ERROR:
            raise (UnavailableError if done.is_passing else InternalError)(done.error)
        if done.reason is StopReason.CANCELLED:
            raise InternalError("the turn was killed; what was said by then is kept")
        return wire.SendResponse(
            agent=done.agent, content=done.text, model=done.model, usage=to_token_usage(done.usage)
        )

    async def _start_run(self, request: wire.StreamMsg | wire.SendMsg, *, detached: bool) -> Run:
        runtime = await self._daemon.wait_until_ready()
        if not request.content.strip():
            raise BadRequestError("the message is empty; say something in content")
        if max(len(request.sender), len(request.origin)) > MAX_SENDER_CHARS:
            raise BadRequestError(
                f"sender is longer than {MAX_SENDER_CHARS} characters; shorten it"
            )
        check_key(request.key)
        cwd = await check_directory(request.cwd) if request.cwd else None
        with translate_errors():
            await self._daemon.load_new_agent(request.agent)
            await self._daemon.load_new_agent(request.guest)
            return runtime.start(
                request.agent,
                request.content,
                sender=request.sender,
                guest=request.guest,
                cwd=cwd,
                tool_choice=request.tool_choice,
                detached=detached,
                attended=isinstance(request, wire.StreamMsg),
                unattended=request.unattended,
                mode=check_mode(request.mode),
                origin=request.origin,
                key=request.key,
            )

    async def kill(self, request: wire.KillMsg) -> None:
        runtime = await self._daemon.wait_until_ready()
        run_id, key = request.run_id, request.key
        run = None
        if run_id or key:
            run = runtime.find_run(request.agent, request.sender, run_id=run_id, key=key)
        if run is not None and request.unless_shared and run.followers > 1:
            return
        # A run that is queued here behind another daemon's turn is cancelled here.
        if run is None and await self._forward_to_owner(wire.ClientMessage(kill=request)):
            return
        with translate_errors():
            await runtime.kill(request.agent, request.sender, run_id=run_id, key=key)

    async def reply_to_ask(self, request: wire.ReplyToAsk) -> None:
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        if self._daemon.pending_questions.submit_reply(
            pair, request.content, request.ask_id, as_owner=request.as_owner
        ):
            return
        if not await self._forward_to_owner(wire.ClientMessage(reply_to_ask=request)):
            raise NotFoundError("nothing is being asked in this conversation")

    async def steer_session(self, request: wire.SteerSessionMsg) -> None:
        runtime = await self._daemon.wait_until_ready()
        if not request.content.strip():
            raise BadRequestError("the message is empty; say something in content")
        check_key(request.key)
        if await self._forward_to_owner(wire.ClientMessage(steer_session=request)):
            return
        with translate_errors():
            await runtime.steer(request.agent, request.content, request.sender, request.key)

    async def compact(self, request: wire.CompactMsg) -> wire.CompactResponse:
        runtime = await self._daemon.wait_until_ready()
        with translate_errors():
            archive = await runtime.compact(request.agent, request.sender, fresh=request.fresh)
        return wire.CompactResponse(summary=archive.summary)


def check_mode(word: str) -> str:
    """Raises BadRequestError for an unknown mode; an empty one stays empty."""
    try:
        return parse_mode(word).label if word else ""
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def check_key(key: str) -> None:
    """Raises BadRequestError for a key that is too long."""
    if len(key.encode()) > MAX_KEY_BYTES:
        raise BadRequestError(f"key is longer than {MAX_KEY_BYTES} bytes; shorten it")


def check_accepted(run: Run, done: Done) -> None:
    """Raises an error if the turn ended before it was accepted."""
    if done.is_conflict:
        raise ConflictError(done.error)
    if done.is_passing and not done.steps:
        raise UnavailableError(done.error)
    if not run.is_started:
        raise to_not_accepted_error(done)


def kill_unless_followed(run: Run, seconds: float) -> None:
    """Kill a run in `seconds` unless a follower returns: unread output costs tokens too."""
    if run.is_detached or run.done is not None or run.task is None:
        return
    follow_count = run.follow_count

    def kill() -> None:
        if not run.is_detached and run.follow_count == follow_count:
            run.kill()

    timer = asyncio.get_running_loop().call_later(seconds, kill)
    run.task.add_done_callback(lambda _: timer.cancel())


def describe_missing_run(request: wire.AttachMsg) -> str:
    if request.run_id or request.key:
        name = f"run {request.run_id[:80]!r}" if request.run_id else f"key {request.key[:80]!r}"
        return f"this conversation has no {name}; say the message first"
    return "nothing runs in this conversation; list_messages has what was said"


def to_not_accepted_error(done: Done) -> RequestError:
    """The error for a turn that ended before anything of it was stored."""
    if done.reason is StopReason.ERROR:
        return InternalError(done.error)
    return UnavailableError("the turn was cancelled before it was accepted; say it again")


async def check_directory(text: str) -> Path:
    """Check that a path from the wire is a directory on the daemon's machine."""
    path = Path(text[:MAX_PATH_CHARS])
    if not path.is_absolute() or "\0" in text:
        raise BadRequestError(f"cwd must be an absolute path, not {text[:80]!r}")
    # Unlike Path.is_dir, it never raises, for example for paths that are too long.
    if not await asyncio.to_thread(os.path.isdir, path):
        raise BadRequestError(f"cwd {text[:80]!r} is no directory on the daemon's machine")
    return path
