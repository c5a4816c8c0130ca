"""Mcp: the servers agents declared, as hooks and the daemon use them.

It carries out what the bookkeeping (peers.py) decides, through the host (link.py). Nothing here
waits for a server but `call` and `settled`, and both have deadlines.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from crabtalk.runtime import Clock
from crabtalk.storage import Agent, McpServerConfig

from .declarations import compute_fingerprint, mask_secrets
from .host_supervisor import HostSupervisor
from .limits import McpLimits
from .messages import (
    AuthorizationNeeded,
    CallTool,
    CancelCall,
    ClosePeer,
    FromHost,
    HostFrameError,
    McpCallFailure,
    McpCallResult,
    McpProgress,
    OpenPeer,
    PeerLost,
    PeerTools,
)
from .peers import (
    Peer,
    PeerEffect,
    PeerOwner,
    PeerRegistry,
    PeerStateChanged,
    PeerStatus,
    ScheduleIdleCheck,
    ScheduleRetry,
    StartPeer,
    StopPeer,
)
from .toolbox import Toolbox

log = logging.getLogger(__name__)

ProgressCallback = Callable[[McpProgress], None]

# Whose servers are everybody's: those that were found, not declared.
ALL_AGENTS = ""
# What the host has on top of a deadline before it is taken for dead.
GRACE = 5.0
# The same for connecting, when the host may have to be started first, on a busy machine.
START_TIMEOUT = 60.0
NO_LONGER_DECLARED = "the server is no longer declared"
# Characters of what a server says about the progress of a call.
MAX_PROGRESS_LENGTH = 500
# What a server that was just lost has to come back in, for a call it never heard.
RECONNECT_TIMEOUT = 10.0


class McpCallError(Exception):
    """A call came to nothing, and why."""


class McpServerManager:
    """Constructing it touches nothing; the first declared server starts the host."""

    def __init__(
        self,
        tokens: Path,
        *,
        env: Mapping[str, str] | None = None,
        limits: McpLimits | None = None,
        clock: Clock | None = None,
        heard: Callable[[PeerStateChanged], None] | None = None,
    ) -> None:
        self._tokens = tokens
        self.env = dict(env or {})  # of every process that is started from now on
        self._limits = limits or McpLimits()
        self._clock = clock or Clock()
        self._on_state_changed = heard or (lambda happened: None)
        self._peers = PeerRegistry(self._limits.mcp_peers)
        self.host = HostSupervisor(self._handle_message, self._handle_host_death)
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[McpCallResult | McpCallFailure]] = {}
        self._deadlines: dict[int, asyncio.Timeout] = {}
        self._progress_callbacks: dict[int, ProgressCallback] = {}  # of calls
        self._timers: set[asyncio.TimerHandle] = set()
        self._changed = asyncio.Event()
        self._agents_done_waiting: set[str] = set()  # agents that have waited in vain
        self._toolboxes: dict[str, tuple[object, Toolbox]] = {}
        self._logged_failures: dict[PeerOwner, str] = {}  # for failures that were logged
        self._is_closed = False

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def declare(self, agent: str, servers: Sequence[McpServerConfig]) -> None:
        """All the servers an agent has from now on. They are connected in the background."""
        self._agents_done_waiting.discard(agent)
        self._apply_effects(self._peers.declare(agent, servers))

    def release(self, agent: str) -> None:
        self._agents_done_waiting.discard(agent)
        self._toolboxes.pop(agent, None)
        self._apply_effects(self._peers.release(agent))

    def retry_failed(self) -> None:
        """All that failed are tried again now."""
        self._apply_effects(self._peers.retry_failed())

    async def wait_until_settled(self, agent: str) -> None:
        """Waits for servers that are being connected for the first time: not for long, and in
        vain only once for an agent. Cancelled, nothing has happened."""
        if agent in self._agents_done_waiting or self._peers.is_settled(agent):
            return
        try:
            async with asyncio.timeout(self._limits.mcp_wait_seconds):
                await self._wait_for(lambda: self._peers.is_settled(agent))
        except TimeoutError:
            log.info("%s begins without all its MCP servers: some still connect", agent)
            self._agents_done_waiting.add(agent)

    def get_toolbox(self, agent: Agent, taken: Collection[str]) -> Toolbox:
        """What an agent can call now."""
        key = (self._peers.version, agent.tools, agent.skills, frozenset(taken))
        found = self._toolboxes.get(agent.name)
        if found is not None and found[0] == key:
            return found[1]
        serving = self._peers.list_serving(agent.name)
        if not agent.tools and not agent.skills:
            serving += self._peers.list_serving(ALL_AGENTS)
        made = Toolbox(serving, taken, agent.tools)
        self._toolboxes[agent.name] = (key, made)
        return made

    # ── How they are ────────────────────────────────────────────────────────────────────────

    def list_states(self) -> Iterator[tuple[PeerOwner, Peer]]:
        return self._peers.list_states()

    def find_peer(self, server: McpServerConfig) -> Peer | None:
        return self._peers.get(compute_fingerprint(server))

    def snapshot(self) -> list[PeerStateChanged]:
        """What whoever listens from now on has missed."""
        return self._peers.snapshot()

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def call(
        self, peer: str, tool: str, arguments: bytes, progressed: ProgressCallback | None = None
    ) -> McpCallResult:
        """What a tool answers to `arguments`, a JSON object. Raises McpCallError.

        `progressed` hears what the server says meanwhile, about ten times a second at most. The
        last of it comes before the answer, nothing after. Cancelled, the server is told so.
        """
        if len(self._calls) >= self._limits.mcp_calls:
            raise McpCallError(f"{len(self._calls)} calls are under way; try again later")
        if (found := self._peers.get(peer)) is None:
            raise McpCallError(NO_LONGER_DECLARED)

        def watch(word: McpProgress) -> None:
            if progressed is not None and word.text:
                progressed(mask_progress(word, found.server))

        found.begin_call()
        try:
            self._apply_effects(self._peers.wake_idle(peer))
            number = await self._wait_for_connection(peer)
            answer = await self._send_call(number, tool, arguments, watch)
            if isinstance(answer, McpCallFailure) and answer.is_unheard:
                number = await self._wait_for_connection(peer, lost=number)
                answer = await self._send_call(number, tool, arguments, watch)
        finally:
            found.end_call(self._clock.monotonic())
        if isinstance(answer, McpCallFailure):
            # What a server says may repeat what it was told in confidence.
            raise McpCallError(mask_secrets(answer.error, found.server))
        return answer

    async def _wait_for_connection(self, id_: str, *, lost: int = 0) -> int:
        """The number of its start, when it is there. One that was just `lost` comes back: for
        that, having failed is no end."""

        def is_decided() -> bool:
            peer = self._peers.get(id_)
            if peer is None:
                return True
            if peer.status is PeerStatus.CONNECTED:
                return peer.number != lost
            return peer.status is PeerStatus.FAILED and not lost

        patience = RECONNECT_TIMEOUT if lost else self._limits.mcp_connect_seconds + GRACE
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._wait_for(is_decided)
        peer = self._peers.get(id_)
        if peer is None:
            raise McpCallError(NO_LONGER_DECLARED)
        if peer.status is not PeerStatus.CONNECTED:
            raise McpCallError(peer.error or "the server is not connected yet; try again later")
        return peer.number

    async def _send_call(
        self, peer: int, tool: str, arguments: bytes, watch: ProgressCallback
    ) -> McpCallResult | McpCallFailure:
        number = next(self._numbers)
        if self.host.pid is None:
            return McpCallFailure(
                number, "the host process of MCP servers is gone", is_unheard=True
            )
        seconds = float(self._limits.mcp_call_seconds)
        answer: asyncio.Future[McpCallResult | McpCallFailure] = (
            asyncio.get_running_loop().create_future()
        )
        self._calls[number], self._progress_callbacks[number] = answer, watch
        try:
            self.host.send(CallTool(number, peer, tool, arguments, seconds))
            async with asyncio.timeout(seconds + GRACE) as self._deadlines[number]:
                return await answer
        except HostFrameError:
            raise McpCallError("the arguments are too large") from None
        except TimeoutError:
            self.host.kill()
            raise McpCallError("the host process of MCP servers does not answer") from None
        except asyncio.CancelledError:
            self.host.send(CancelCall(number))
            raise
        finally:
            del self._calls[number], self._progress_callbacks[number]
            self._deadlines.pop(number, None)

    # ── What happens ────────────────────────────────────────────────────────────────────────

    def _handle_message(self, message: FromHost) -> None:
        now = self._clock.monotonic()
        match message:
            case PeerTools():
                self._apply_effects(self._peers.handle_tools(message.peer, message.tools, now))
            case PeerLost():
                self._apply_effects(
                    self._peers.handle_lost(
                        message.peer, message.error, now, is_final=message.is_final
                    )
                )
            case AuthorizationNeeded():
                sentence = f"to allow it, open {message.url}"
                self._apply_effects(self._peers.handle_authorization(message.peer, sentence))
            case McpProgress():
                self._handle_progress(message)
            case McpCallResult() | McpCallFailure():
                answer = self._calls.get(message.call)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def _handle_progress(self, message: McpProgress) -> None:
        answer = self._calls.get(message.call)
        if answer is None or answer.done():
            return
        self._progress_callbacks[message.call](message)
        if (deadline := self._deadlines.get(message.call)) is not None and not deadline.expired():
            loop = asyncio.get_running_loop()
            deadline.reschedule(loop.time() + self._limits.mcp_call_seconds + GRACE)

    def _handle_host_death(self, sentence: str) -> None:
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_result(McpCallFailure(number, sentence))
        self._apply_effects(self._peers.handle_host_lost(sentence, self._clock.monotonic()))

    def _apply_effects(self, effects: Sequence[PeerEffect]) -> None:
        """In their order: what is new is started before what is old is stopped."""
        if self._is_closed:
            return
        for effect in effects:
            match effect:
                case StartPeer():
                    self._open_peer(effect)
                case StopPeer():
                    self.host.send(ClosePeer(effect.number))
                case ScheduleRetry():
                    self._schedule(effect.after, self._retry_peer, effect)
                case ScheduleIdleCheck():
                    self._schedule(effect.after, self._check_idle, effect)
                case PeerStateChanged():
                    self._publish(effect)
        self._changed.set()
        self._changed = asyncio.Event()

    def _open_peer(self, start: StartPeer) -> None:
        server = start.server
        timeout = float(self._limits.mcp_connect_seconds)
        if server.url:
            tokens = str(self._tokens / f"{compute_fingerprint(server)}.json")
            order = OpenPeer(start.number, timeout, url=server.url, auth=server.auth, tokens=tokens)
        else:
            env = {**self.env, **server.env}
            order = OpenPeer(start.number, timeout, server.command, server.args, env)
        self.host.send(order)
        self._schedule(timeout + START_TIMEOUT, self._check_overdue, start)

    def _check_overdue(self, start: StartPeer) -> None:
        """The host has a deadline of its own; one that lets it pass hangs."""
        if self._peers.is_awaiting_first_report(start.number):
            log.error("the host of MCP servers says nothing; it is started anew")
            self.host.kill()

    def _retry_peer(self, retry: ScheduleRetry) -> None:
        self._apply_effects(self._peers.handle_retry_due(retry.peer, retry.number))

    def _check_idle(self, look: ScheduleIdleCheck) -> None:
        self._apply_effects(self._peers.check_idle(look.peer, self._clock.monotonic()))

    def _schedule(self, seconds: float, do: Callable[..., None], effect: PeerEffect) -> None:
        def now() -> None:
            self._timers.discard(handle)
            do(effect)

        handle = asyncio.get_running_loop().call_later(seconds, now)
        self._timers.add(handle)

    def _publish(self, happened: PeerStateChanged) -> None:
        self._log_state(happened)
        self._on_state_changed(happened)

    def _log_state(self, happened: PeerStateChanged) -> None:
        """One line for what is news: a server that keeps failing for the same reason is none."""
        owner = PeerOwner(happened.agent, happened.name)
        level = logging.DEBUG if happened.status is PeerStatus.CONNECTING else logging.INFO
        if happened.status is PeerStatus.FAILED:
            is_news = self._logged_failures.get(owner) != happened.error
            self._logged_failures[owner] = happened.error
            level = logging.WARNING if is_news else logging.DEBUG
        elif happened.status is not PeerStatus.CONNECTING:
            self._logged_failures.pop(owner, None)
        of = f" of {happened.agent}" if happened.agent else ""
        why = f": {happened.error}" if happened.error else ""
        log.log(level, "MCP server %s%s: %s%s", happened.name, of, happened.status.value, why)

    async def _wait_for(self, claim: Callable[[], bool]) -> None:
        """Whoever waits has a deadline around it."""
        while not claim():
            await self._changed.wait()

    async def close(self) -> None:
        """Every server is gone; calls under way fail."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_result(McpCallFailure(number, "the daemon is stopping"))
        await self.host.close()


def mask_progress(word: McpProgress, server: McpServerConfig) -> McpProgress:
    """For anybody who watches: as short as a line, and without what is none of their business."""
    text = mask_secrets(word.text, server)
    if len(text) > MAX_PROGRESS_LENGTH:
        text = text[: MAX_PROGRESS_LENGTH - 1] + "…"
    return msgspec.structs.replace(word, text=text)
