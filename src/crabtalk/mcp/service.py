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
from crabtalk.storage import Agent, McpServer

from .declaration import fingerprint, without_secrets
from .limits import McpLimits
from .link import Link
from .messages import (
    Asking,
    Call,
    Cancel,
    Close,
    FrameError,
    FromHost,
    Lost,
    NoResult,
    Offers,
    Open,
    Progress,
    Result,
)
from .peers import Effect, Happened, Look, Owner, Peer, Peers, Retry, Start, Status, Stop
from .toolbox import Toolbox

log = logging.getLogger(__name__)

Progressed = Callable[[Progress], None]

# Whose servers are everybody's: those that were found, not declared.
EVERYBODY = ""
# What the host has on top of a deadline before it is taken for dead.
GRACE = 5.0
# The same for connecting, when the host may have to be started first, on a busy machine.
STARTING = 60.0
GONE = "the server is no longer declared"
# Characters of what a server says about the progress of a call.
LONGEST_WORDS = 500
# What a server that was just lost has to come back in, for a call it never heard.
COMING_BACK = 10.0


class McpCallError(Exception):
    """A call came to nothing, and why."""


class Mcp:
    """Constructing it touches nothing; the first declared server starts the host."""

    def __init__(
        self,
        tokens: Path,
        *,
        env: Mapping[str, str] | None = None,
        limits: McpLimits | None = None,
        clock: Clock | None = None,
        heard: Callable[[Happened], None] | None = None,
    ) -> None:
        self._tokens = tokens
        self.env = dict(env or {})  # of every process that is started from now on
        self._limits = limits or McpLimits()
        self._clock = clock or Clock()
        self._heard = heard or (lambda happened: None)
        self._peers = Peers(self._limits.mcp_peers)
        self.link = Link(self._hear, self._host_died)
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Result | NoResult]] = {}
        self._deadlines: dict[int, asyncio.Timeout] = {}
        self._watchers: dict[int, Progressed] = {}  # of calls
        self._timers: set[asyncio.TimerHandle] = set()
        self._news = asyncio.Event()
        self._impatient: set[str] = set()  # agents that have waited in vain
        self._boxes: dict[str, tuple[object, Toolbox]] = {}
        self._reasons: dict[Owner, str] = {}  # for failures that were logged
        self._is_closed = False

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def declare(self, agent: str, servers: Sequence[McpServer]) -> None:
        """All the servers an agent has from now on. They are connected in the background."""
        self._impatient.discard(agent)
        self._do(self._peers.declare(agent, servers))

    def release(self, agent: str) -> None:
        self._impatient.discard(agent)
        self._boxes.pop(agent, None)
        self._do(self._peers.release(agent))

    def retry(self) -> None:
        """All that failed are tried again now."""
        self._do(self._peers.retry())

    async def settled(self, agent: str) -> None:
        """Waits for servers that are being connected for the first time: not for long, and in
        vain only once for an agent. Cancelled, nothing has happened."""
        if agent in self._impatient or self._peers.is_settled(agent):
            return
        try:
            async with asyncio.timeout(self._limits.mcp_wait_seconds):
                await self._until(lambda: self._peers.is_settled(agent))
        except TimeoutError:
            log.info("%s begins without all its MCP servers: some still connect", agent)
            self._impatient.add(agent)

    def toolbox(self, agent: Agent, taken: Collection[str]) -> Toolbox:
        """What an agent can call now."""
        key = (self._peers.version, agent.tools, agent.skills, frozenset(taken))
        found = self._boxes.get(agent.name)
        if found is not None and found[0] == key:
            return found[1]
        serving = self._peers.serving(agent.name)
        if not agent.tools and not agent.skills:
            serving += self._peers.serving(EVERYBODY)
        made = Toolbox(serving, taken, agent.tools)
        self._boxes[agent.name] = (key, made)
        return made

    # ── How they are ────────────────────────────────────────────────────────────────────────

    def states(self) -> Iterator[tuple[Owner, Peer]]:
        return self._peers.states()

    def state(self, server: McpServer) -> Peer | None:
        return self._peers.get(fingerprint(server))

    def present(self) -> list[Happened]:
        """What whoever listens from now on has missed."""
        return self._peers.present()

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def call(
        self, peer: str, tool: str, arguments: bytes, progressed: Progressed | None = None
    ) -> Result:
        """What a tool answers to `arguments`, a JSON object. Raises McpCallError.

        `progressed` hears what the server says meanwhile, about ten times a second at most. The
        last of it comes before the answer, nothing after. Cancelled, the server is told so.
        """
        if len(self._calls) >= self._limits.mcp_calls:
            raise McpCallError(f"{len(self._calls)} calls are under way; try again later")
        if (found := self._peers.get(peer)) is None:
            raise McpCallError(GONE)

        def watch(word: Progress) -> None:
            if progressed is not None and word.text:
                progressed(shown(word, found.server))

        found.begun()
        try:
            self._do(self._peers.wanted(peer))
            number = await self._connected(peer)
            answer = await self._ask(number, tool, arguments, watch)
            if isinstance(answer, NoResult) and answer.is_unheard:
                number = await self._connected(peer, lost=number)
                answer = await self._ask(number, tool, arguments, watch)
        finally:
            found.ended(self._clock.seconds())
        if isinstance(answer, NoResult):
            # What a server says may repeat what it was told in confidence.
            raise McpCallError(without_secrets(answer.error, found.server))
        return answer

    async def _connected(self, id_: str, *, lost: int = 0) -> int:
        """The number of its start, when it is there. One that was just `lost` comes back: for
        that, having failed is no end."""

        def is_decided() -> bool:
            peer = self._peers.get(id_)
            if peer is None:
                return True
            if peer.status is Status.CONNECTED:
                return peer.number != lost
            return peer.status is Status.FAILED and not lost

        patience = COMING_BACK if lost else self._limits.mcp_connect_seconds + GRACE
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._until(is_decided)
        peer = self._peers.get(id_)
        if peer is None:
            raise McpCallError(GONE)
        if peer.status is not Status.CONNECTED:
            raise McpCallError(peer.error or "the server is not connected yet; try again later")
        return peer.number

    async def _ask(
        self, peer: int, tool: str, arguments: bytes, watch: Progressed
    ) -> Result | NoResult:
        number = next(self._numbers)
        if self.link.pid is None:
            return NoResult(number, "the host process of MCP servers is gone", is_unheard=True)
        seconds = float(self._limits.mcp_call_seconds)
        answer: asyncio.Future[Result | NoResult] = asyncio.get_running_loop().create_future()
        self._calls[number], self._watchers[number] = answer, watch
        try:
            self.link.send(Call(number, peer, tool, arguments, seconds))
            async with asyncio.timeout(seconds + GRACE) as self._deadlines[number]:
                return await answer
        except FrameError:
            raise McpCallError("the arguments are too large") from None
        except TimeoutError:
            self.link.kill()
            raise McpCallError("the host process of MCP servers does not answer") from None
        except asyncio.CancelledError:
            self.link.send(Cancel(number))
            raise
        finally:
            del self._calls[number], self._watchers[number]
            self._deadlines.pop(number, None)

    # ── What happens ────────────────────────────────────────────────────────────────────────

    def _hear(self, message: FromHost) -> None:
        now = self._clock.seconds()
        match message:
            case Offers():
                self._do(self._peers.offers(message.peer, message.tools, now))
            case Lost():
                self._do(
                    self._peers.lost(message.peer, message.error, now, is_final=message.is_final)
                )
            case Asking():
                sentence = f"to allow it, open {message.url}"
                self._do(self._peers.asking(message.peer, sentence))
            case Progress():
                self._progressed(message)
            case Result() | NoResult():
                answer = self._calls.get(message.call)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def _progressed(self, message: Progress) -> None:
        answer = self._calls.get(message.call)
        if answer is None or answer.done():
            return
        self._watchers[message.call](message)
        if (deadline := self._deadlines.get(message.call)) is not None and not deadline.expired():
            loop = asyncio.get_running_loop()
            deadline.reschedule(loop.time() + self._limits.mcp_call_seconds + GRACE)

    def _host_died(self, sentence: str) -> None:
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_result(NoResult(number, sentence))
        self._do(self._peers.host_lost(sentence, self._clock.seconds()))

    def _do(self, effects: Sequence[Effect]) -> None:
        """In their order: what is new is started before what is old is stopped."""
        if self._is_closed:
            return
        for effect in effects:
            match effect:
                case Start():
                    self._open(effect)
                case Stop():
                    self.link.send(Close(effect.number))
                case Retry():
                    self._later(effect.after, self._due, effect)
                case Look():
                    self._later(effect.after, self._unused, effect)
                case Happened():
                    self._tell(effect)
        self._news.set()
        self._news = asyncio.Event()

    def _open(self, start: Start) -> None:
        server = start.server
        timeout = float(self._limits.mcp_connect_seconds)
        if server.url:
            tokens = str(self._tokens / f"{fingerprint(server)}.json")
            order = Open(start.number, timeout, url=server.url, auth=server.auth, tokens=tokens)
        else:
            env = {**self.env, **server.env}
            order = Open(start.number, timeout, server.command, server.args, env)
        self.link.send(order)
        self._later(timeout + STARTING, self._overdue, start)

    def _overdue(self, start: Start) -> None:
        """The host has a deadline of its own; one that lets it pass hangs."""
        if self._peers.is_unheard_of(start.number):
            log.error("the host of MCP servers says nothing; it is started anew")
            self.link.kill()

    def _due(self, retry: Retry) -> None:
        self._do(self._peers.due(retry.peer, retry.number))

    def _unused(self, look: Look) -> None:
        self._do(self._peers.unused(look.peer, self._clock.seconds()))

    def _later(self, seconds: float, do: Callable[..., None], effect: Effect) -> None:
        def now() -> None:
            self._timers.discard(handle)
            do(effect)

        handle = asyncio.get_running_loop().call_later(seconds, now)
        self._timers.add(handle)

    def _tell(self, happened: Happened) -> None:
        self._note(happened)
        self._heard(happened)

    def _note(self, happened: Happened) -> None:
        """One line for what is news: a server that keeps failing for the same reason is none."""
        owner = Owner(happened.agent, happened.name)
        level = logging.DEBUG if happened.status is Status.CONNECTING else logging.INFO
        if happened.status is Status.FAILED:
            is_news = self._reasons.get(owner) != happened.error
            self._reasons[owner] = happened.error
            level = logging.WARNING if is_news else logging.DEBUG
        elif happened.status is not Status.CONNECTING:
            self._reasons.pop(owner, None)
        of = f" of {happened.agent}" if happened.agent else ""
        why = f": {happened.error}" if happened.error else ""
        log.log(level, "MCP server %s%s: %s%s", happened.name, of, happened.status.value, why)

    async def _until(self, claim: Callable[[], bool]) -> None:
        """Whoever waits has a deadline around it."""
        while not claim():
            await self._news.wait()

    async def close(self) -> None:
        """Every server is gone; calls under way fail."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_result(NoResult(number, "the daemon is stopping"))
        await self.link.close()


def shown(word: Progress, server: McpServer) -> Progress:
    """For anybody who watches: as short as a line, and without what is none of their business."""
    text = without_secrets(word.text, server)
    if len(text) > LONGEST_WORDS:
        text = text[: LONGEST_WORDS - 1] + "…"
    return msgspec.structs.replace(word, text=text)
