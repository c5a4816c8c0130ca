"""McpServerManager: the servers that agents declare, for hooks and the daemon.

It applies the effects that the PeerRegistry (peers.py) returns, through the host process
(host_supervisor.py). Only `call` and `wait_until_settled` wait for a server; both have deadlines.
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

# The owner of servers that all agents may use: those that were discovered, not declared.
ALL_AGENTS = ""
# Seconds the host may exceed a deadline before it is considered dead.
GRACE = 5.0
# The same for connecting: on a busy machine the host may have to be started first.
START_TIMEOUT = 60.0
NO_LONGER_DECLARED = "the server is no longer declared"
# Characters of a progress message.
MAX_PROGRESS_LENGTH = 500
# Seconds to wait for a server that was just lost, for a call it never received.
RECONNECT_TIMEOUT = 10.0


class McpCallError(Exception):
    """A call failed; the text says why."""


class McpServerManager:
    """Starts the host process when the first server is declared. The constructor has no effects."""

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
        self.env = dict(env or {})  # for server processes that are started from now on
        self._limits = limits or McpLimits()
        self._clock = clock or Clock()
        self._on_state_changed = heard or (lambda change: None)
        self._peers = PeerRegistry(self._limits.mcp_peers)
        self.host = HostSupervisor(self._handle_message, self._handle_host_death)
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[McpCallResult | McpCallFailure]] = {}
        self._deadlines: dict[int, asyncio.Timeout] = {}
        self._progress_callbacks: dict[int, ProgressCallback] = {}  # by call
        self._timers: set[asyncio.TimerHandle] = set()
        self._changed = asyncio.Event()
        self._agents_done_waiting: set[str] = set()  # agents whose wait timed out
        self._toolboxes: dict[str, tuple[object, Toolbox]] = {}
        self._logged_failures: dict[PeerOwner, str] = {}  # the last error logged for each server
        self._is_closed = False

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def declare(self, agent: str, servers: Sequence[McpServerConfig]) -> None:
        """Set all servers of an agent. They are connected in the background."""
        self._agents_done_waiting.discard(agent)
        self._apply_effects(self._peers.declare(agent, servers))

    def release(self, agent: str) -> None:
        self._agents_done_waiting.discard(agent)
        self._toolboxes.pop(agent, None)
        self._apply_effects(self._peers.release(agent))

    def retry_failed(self) -> None:
        """Retry all failed servers now."""
        self._apply_effects(self._peers.retry_failed())

    async def wait_until_settled(self, agent: str) -> None:
        """Wait for servers that connect for the first time, at most `mcp_wait_seconds`.

        After one timeout an agent does not wait again. Cancelling this has no side effects.
        """
        if agent in self._agents_done_waiting or self._peers.is_settled(agent):
            return
        try:
            async with asyncio.timeout(self._limits.mcp_wait_seconds):
                await self._wait_for(lambda: self._peers.is_settled(agent))
        except TimeoutError:
            log.info("%s begins without all its MCP servers: some still connect", agent)
            self._agents_done_waiting.add(agent)

    def get_toolbox(self, agent: Agent, taken: Collection[str]) -> Toolbox:
        """Return the server tools an agent can call now."""
        key = (self._peers.version, agent.tools, agent.skills, frozenset(taken))
        cached = self._toolboxes.get(agent.name)
        if cached is not None and cached[0] == key:
            return cached[1]
        serving = self._peers.list_serving(agent.name)
        if not agent.tools and not agent.skills:
            serving += self._peers.list_serving(ALL_AGENTS)
        toolbox = Toolbox(serving, taken, agent.tools)
        self._toolboxes[agent.name] = (key, toolbox)
        return toolbox

    # ── States ──────────────────────────────────────────────────────────────────────────────

    def list_states(self) -> Iterator[tuple[PeerOwner, Peer]]:
        return self._peers.list_states()

    def find_peer(self, server: McpServerConfig) -> Peer | None:
        return self._peers.get(compute_fingerprint(server))

    def snapshot(self) -> list[PeerStateChanged]:
        """Return the current states as events, for a new subscriber."""
        return self._peers.snapshot()

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def call(
        self, peer: str, tool: str, arguments: bytes, on_progress: ProgressCallback | None = None
    ) -> McpCallResult:
        """Call a tool with `arguments`, a JSON object. Raises McpCallError.

        `on_progress` gets the server's progress messages, about ten per second at most, and none
        after the result. When this is cancelled, the server receives a cancellation.
        """
        if len(self._calls) >= self._limits.mcp_calls:
            raise McpCallError(f"{len(self._calls)} calls are under way; try again later")
        if (known := self._peers.get(peer)) is None:
            raise McpCallError(NO_LONGER_DECLARED)

        def report(progress: McpProgress) -> None:
            if on_progress is not None and progress.text:
                on_progress(mask_progress(progress, known.server))

        known.begin_call()
        try:
            self._apply_effects(self._peers.wake_idle(peer))
            number = await self._wait_for_connection(peer)
            answer = await self._send_call(number, tool, arguments, report)
            if isinstance(answer, McpCallFailure) and answer.is_unheard:
                number = await self._wait_for_connection(peer, lost=number)
                answer = await self._send_call(number, tool, arguments, report)
        finally:
            known.end_call(self._clock.monotonic())
        if isinstance(answer, McpCallFailure):
            # A server's error may repeat credentials it was given.
            raise McpCallError(mask_secrets(answer.error, known.server))
        return answer

    async def _wait_for_connection(self, id_: str, *, lost: int = 0) -> int:
        """Wait until a peer is connected and return the number of its connection.

        If connection `lost` was just lost, keep waiting for a new one even in the status FAILED.
        """

        def is_decided() -> bool:
            peer = self._peers.get(id_)
            if peer is None:
                return True
            if peer.status is PeerStatus.CONNECTED:
                return peer.number != lost
            return peer.status is PeerStatus.FAILED and not lost

        seconds = RECONNECT_TIMEOUT if lost else self._limits.mcp_connect_seconds + GRACE
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait_for(is_decided)
        peer = self._peers.get(id_)
        if peer is None:
            raise McpCallError(NO_LONGER_DECLARED)
        if peer.status is not PeerStatus.CONNECTED:
            raise McpCallError(peer.error or "the server is not connected yet; try again later")
        return peer.number

    async def _send_call(
        self, peer: int, tool: str, arguments: bytes, report: ProgressCallback
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
        self._calls[number], self._progress_callbacks[number] = answer, report
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

    # ── Events and effects ──────────────────────────────────────────────────────────────────

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
        """Apply effects in order: new peers are started before old ones are stopped."""
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
            message = OpenPeer(
                start.number, timeout, url=server.url, auth=server.auth, tokens=tokens
            )
        else:
            env = {**self.env, **server.env}
            message = OpenPeer(start.number, timeout, server.command, server.args, env)
        self.host.send(message)
        self._schedule(timeout + START_TIMEOUT, self._check_overdue, start)

    def _check_overdue(self, start: StartPeer) -> None:
        """Kill the host if it has not reported on a peer in time: it hangs."""
        if self._peers.is_awaiting_first_report(start.number):
            log.error("the host of MCP servers says nothing; it is started anew")
            self.host.kill()

    def _retry_peer(self, retry: ScheduleRetry) -> None:
        self._apply_effects(self._peers.handle_retry_due(retry.peer, retry.number))

    def _check_idle(self, check: ScheduleIdleCheck) -> None:
        self._apply_effects(self._peers.check_idle(check.peer, self._clock.monotonic()))

    def _schedule(self, seconds: float, action: Callable[..., None], effect: PeerEffect) -> None:
        def run() -> None:
            self._timers.discard(handle)
            action(effect)

        handle = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(handle)

    def _publish(self, change: PeerStateChanged) -> None:
        self._log_state(change)
        self._on_state_changed(change)

    def _log_state(self, change: PeerStateChanged) -> None:
        """Log a change. Repeated failures for the same reason are only logged for debugging."""
        owner = PeerOwner(change.agent, change.name)
        level = logging.DEBUG if change.status is PeerStatus.CONNECTING else logging.INFO
        if change.status is PeerStatus.FAILED:
            is_news = self._logged_failures.get(owner) != change.error
            self._logged_failures[owner] = change.error
            level = logging.WARNING if is_news else logging.DEBUG
        elif change.status is not PeerStatus.CONNECTING:
            self._logged_failures.pop(owner, None)
        agent = f" of {change.agent}" if change.agent else ""
        error = f": {change.error}" if change.error else ""
        log.log(level, "MCP server %s%s: %s%s", change.name, agent, change.status.value, error)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds. It has no deadline of its own: callers set one."""
        while not condition():
            await self._changed.wait()

    async def close(self) -> None:
        """Stop all servers. Running calls fail."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_result(McpCallFailure(number, "the daemon is stopping"))
        await self.host.close()


def mask_progress(progress: McpProgress, server: McpServerConfig) -> McpProgress:
    """Shorten a progress message and mask credentials in it: clients show it."""
    text = mask_secrets(progress.text, server)
    if len(text) > MAX_PROGRESS_LENGTH:
        text = text[: MAX_PROGRESS_LENGTH - 1] + "…"
    return msgspec.structs.replace(progress, text=text)
