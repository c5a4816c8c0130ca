"""DaemonServer: what the daemon answers to each request.

The turns are here; what belongs to a noun of its own is in the part named after it.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from crabtalk import __version__
from crabtalk.policy import parse_mode
from crabtalk.protocol import (
    PROTOCOL_VERSION,
    BadRequestError,
    InternalError,
    NotFoundError,
    RequestError,
    UnavailableError,
    wire,
)
from crabtalk.runtime import DEFAULT_SENDER, Done, Run, StopReason
from crabtalk.storage import Pair

from .agents_server import AgentsServer
from .conversations_server import ConversationsServer
from .daemon import Daemon
from .events_server import EventsServer
from .mcp_server import McpServer
from .permissions_server import PermissionsServer
from .recall_server import RecallServer
from .refusals import answered
from .stream_events import stream_event, token_usage

LONGEST_SENDER = 1024
LONGEST_PATH = 8192


class DaemonServer(
    AgentsServer, ConversationsServer, EventsServer, McpServer, PermissionsServer, RecallServer
):
    """One per process. What no part overrides answers 501."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon)
        if daemon.fleet is not None:
            daemon.fleet.serve(self)
        self._started = time.monotonic()

    # ── The daemon itself ───────────────────────────────────────────────────────────────────

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=PROTOCOL_VERSION, server_version=__version__)

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        runtime = await self._daemon.opened()
        fleet = self._daemon.fleet
        return wire.DaemonStats(
            uptime_secs=int(time.monotonic() - self._started),
            active_conversations=sum(c.exists for c in runtime.conversations),
            registered_agents=len(runtime.agents),
            active_model=self._daemon.models.active,
            runs=runtime.running,
            problems=self._daemon.problems,
            fleet=await fleet.info() if fleet is not None else None,
        )

    async def reload(self, request: wire.ReloadMsg) -> None:
        await self._daemon.opened()
        with answered():
            await self._daemon.reload()

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        run = await self._start(request, detached=request.detach)
        waiting = self._daemon.asks.pending(run.pair)
        if self._daemon.fleet is not None:
            self._daemon.fleet.look_for_question(run)
        async with aclosing(run.events()) as events:
            async for event in events:
                if type(event) is Done and event.is_passing and not event.steps:
                    raise UnavailableError(event.error)
                if type(event) is Done and not run.is_started:
                    raise not_accepted(event)
                if (message := stream_event(event)) is not None:
                    yield message
                if waiting is not None and (again := stream_event(waiting)) is not None:
                    # The turn before this one waits for an answer; whoever asked may be gone.
                    yield again
                    waiting = None

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        runtime = await self._daemon.ready()
        with answered():
            if request.guest:
                await self._daemon.find_agent(request.guest)
                runtime.agent(request.guest)
        run = await self._start(request, detached=True)
        done = await run.wait()
        if done.reason is StopReason.ERROR:
            raise (UnavailableError if done.is_passing else InternalError)(done.error)
        if done.reason is StopReason.CANCELLED:
            raise InternalError("the turn was killed; what was said by then is kept")
        return wire.SendResponse(
            agent=done.agent, content=done.text, model=done.model, usage=token_usage(done.usage)
        )

    async def _start(self, request: wire.StreamMsg | wire.SendMsg, *, detached: bool) -> Run:
        runtime = await self._daemon.ready()
        if not request.content.strip():
            raise BadRequestError("the message is empty; say something in content")
        if max(len(request.sender), len(request.origin)) > LONGEST_SENDER:
            raise BadRequestError(f"sender is longer than {LONGEST_SENDER} characters; shorten it")
        cwd = await directory(request.cwd) if request.cwd else None
        with answered():
            await self._daemon.find_agent(request.agent)
            await self._daemon.find_agent(request.guest)
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
                mode=checked_mode(request.mode),
                origin=request.origin,
            )

    async def kill(self, request: wire.KillMsg) -> None:
        runtime = await self._daemon.ready()
        if await self._is_passed_on(wire.ClientMessage(kill=request)):
            return
        with answered():
            await runtime.kill(request.agent, request.sender)

    async def reply_to_ask(self, request: wire.ReplyToAsk) -> None:
        pair = Pair(request.agent, request.sender or DEFAULT_SENDER)
        if self._daemon.asks.reply(
            pair, request.content, request.ask_id, as_owner=request.as_owner
        ):
            return
        if not await self._is_passed_on(wire.ClientMessage(reply_to_ask=request)):
            raise NotFoundError("nothing is being asked in this conversation")

    async def steer_session(self, request: wire.SteerSessionMsg) -> None:
        runtime = await self._daemon.ready()
        if not request.content.strip():
            raise BadRequestError("the message is empty; say something in content")
        if await self._is_passed_on(wire.ClientMessage(steer_session=request)):
            return
        with answered():
            await runtime.steer(request.agent, request.content, request.sender)

    async def compact(self, request: wire.CompactMsg) -> wire.CompactResponse:
        runtime = await self._daemon.ready()
        with answered():
            archive = await runtime.compact(request.agent, request.sender, fresh=request.fresh)
        return wire.CompactResponse(summary=archive.summary)


def checked_mode(word: str) -> str:
    """Raises BadRequestError for what is no mode; empty is none."""
    try:
        return parse_mode(word).word if word else ""
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def not_accepted(done: Done) -> RequestError:
    """The error for a turn of which nothing was kept, so that it never started."""
    if done.reason is StopReason.ERROR:
        return InternalError(done.error)
    return UnavailableError("the turn was cancelled before it was accepted; say it again")


async def directory(text: str) -> Path:
    """A working directory from the wire: it must be one, here, whatever the client's is."""
    path = Path(text[:LONGEST_PATH])
    if not path.is_absolute() or "\0" in text:
        raise BadRequestError(f"cwd must be an absolute path, not {text[:80]!r}")
    # Unlike Path's, it never raises: a path too long, or out of reach, is no directory either.
    if not await asyncio.to_thread(os.path.isdir, path):
        raise BadRequestError(f"cwd {text[:80]!r} is no directory on the daemon's machine")
    return path
