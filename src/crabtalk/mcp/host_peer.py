"""A peer, in the host: one server, owned by one task from its first word to its last.

The SDK wants a connection to be closed by the task that opened it. Calls are tasks of their own.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.auth import OAuthFlowError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from crabtalk import __version__

from .host_content import MOST_TOOLS, answer_of, tools_of
from .host_http import TooLargeError, http_transport
from .host_oauth import PATIENCE
from .host_process import ServerProcess
from .host_progress import Reports
from .messages import (
    Asking,
    Call,
    FromHost,
    Lost,
    McpTool,
    NoResult,
    Offers,
    Open,
    Result,
    Spawned,
)

log = logging.getLogger(__name__)

MOST_PAGES = 100  # of a list of tools
BREATH = 0.1  # between two readings of it, however often it changes
# However much progress a call makes.
LONGEST_CALL = 3600.0
# For what is left to say once a connection is lost, and for letting go of a server.
LAST_WORDS = 3.0
LETTING_GO = 5.0
LONGEST_REASON = 2000

LOST = "the connection was lost"
LET_GO = "the server is no longer declared"
NOBODY = "nobody answers at "
# What the SDK says of an answer with status 404, and of other answers that are none.
FORGOTTEN = "Session terminated"
REFUSED = "Server returned an error response"

Tell = Callable[[FromHost], None]


class LostError(Exception):
    """Why there is no connection, or no longer, in a sentence."""


class HostPeer:
    def __init__(self, order: Open, tell: Tell) -> None:
        self._order = order
        self._tell = tell
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._closing = asyncio.Event()
        self._broken: asyncio.Future[LostError] = asyncio.get_running_loop().create_future()
        self._connecting: asyncio.Timeout | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[types.CallToolResult]] = set()
        self._following: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._tools: tuple[McpTool, ...] = ()  # as last told
        self._stale = False  # they have changed since they were asked for
        self._status = 0  # of the last answer over HTTP that was none
        self._loss = ""
        self._task = asyncio.ensure_future(self._own())

    async def close(self) -> None:
        """Nothing is left of it, and nothing more is told but that and what came of its calls:
        somebody waits for those."""
        tell = self._tell
        self._tell = lambda word: tell(word) if isinstance(word, Result | NoResult) else None
        self._closing.set()
        _, late = await asyncio.wait([self._task], timeout=LETTING_GO)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=LETTING_GO)

    # ── The connection ──────────────────────────────────────────────────────────────────────

    async def _own(self) -> None:
        is_final = False
        try:
            await self._live()
        except asyncio.CancelledError:
            self._loss = LOST
            if self._closing.is_set():
                raise
        except Exception as error:
            failure = reason_of(error)
            self._loss = self._sentence(failure)
            is_final = isinstance(failure, OAuthFlowError)
            if not isinstance(failure, LostError | MCPError | OSError | httpx2.HTTPError):
                log.debug("a peer was lost", exc_info=error)
        if not self._closing.is_set():
            self._tell(Lost(self._order.peer, self._loss[:LONGEST_REASON], is_final))

    async def _live(self) -> None:
        """From the first word to the last."""
        async with AsyncExitStack() as stack:
            client, tools = await self._connect(stack)
            self._client, self._tools = client, tools
            stack.callback(self._forget)
            self._tell(Offers(self._order.peer, tools))
            if changes_are_told(client):
                self._following = asyncio.ensure_future(self._follow(client))
            stack.push_async_callback(self._stop_following)
            await self._lasting()

    async def _connect(self, stack: AsyncExitStack) -> tuple[Client, tuple[McpTool, ...]]:
        """In time, and not if nobody wants it any more. `stack` says goodbye."""
        me = asyncio.current_task()
        closing = asyncio.ensure_future(self._closing.wait())
        if me is not None:
            closing.add_done_callback(lambda done: None if done.cancelled() else me.cancel())
        try:
            async with asyncio.timeout(self._order.timeout) as self._connecting:
                client = await stack.enter_async_context(self._new_client())
                return client, await self._list(client)
        except TimeoutError:
            sentence = f"no answer within {self._order.timeout:g} s{self._last_words()}"
            raise LostError(sentence) from None
        finally:
            self._connecting = None
            closing.cancel()

    def _forget(self) -> None:
        self._client = None

    async def _stop_following(self) -> None:
        tasks = [task for task in (self._following, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)

    def _new_client(self) -> Client:
        order = self._order
        transport: Any
        if order.url:
            tokens = Path(order.tokens) if order.tokens else None
            transport = http_transport(
                order.url,
                order.auth,
                tokens,
                self._ask,
                self._refused,
                lambda: self._break(LOST),
            )
        else:
            tell = self._tell  # also when it is being let go of
            self._process = ServerProcess(
                order.command,
                order.args,
                order.env,
                lambda pid: tell(Spawned(order.peer, pid)),
            )
            transport = self._process.transport()
        return Client(
            transport,
            message_handler=self._hear,
            client_info=types.Implementation(name="crabtalk", version=__version__),
            cache=None,
        )

    async def _lasting(self) -> None:
        """Until somebody has enough of it."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._closing.wait())]
        if self._process is not None:
            waits.append(asyncio.ensure_future(self._process.ended.wait()))
        try:
            await asyncio.wait([*waits, self._broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._closing.is_set():
            return
        if self._broken.done():
            raise self._broken.result()
        if self._process is not None:
            raise LostError(self._process.epitaph())

    def _ask(self, address: str) -> None:
        """A person is not held to the machine's time-out."""
        if self._connecting is not None:
            now = asyncio.get_running_loop().time()
            self._connecting.reschedule(now + PATIENCE + self._order.timeout)
        self._tell(Asking(self._order.peer, address))

    def _refused(self, status: int) -> None:
        self._status = status

    def _sentence(self, error: BaseException) -> str:
        """On one line, whatever a server has put into it: it is shown on terminals."""
        shown = (c if c.isprintable() else " " for c in self._reason(error))
        return " ".join("".join(shown).split())

    def _reason(self, error: BaseException) -> str:
        match error:
            case FileNotFoundError() if self._process is not None:
                return (
                    f"cannot start {self._order.command!r}: it is not there; install it, or write "
                    "its whole path"
                )
            case OSError() if self._process is not None:
                return f"cannot start {self._order.command!r}: {error.strerror or error}"
            case MCPError(code=types.CONNECTION_CLOSED) if self._process is not None:
                return self._process.epitaph()
            case MCPError(message=message) if message == REFUSED:
                return self._refusal()
            case MCPError():
                return f"{error.message}{self._last_words()}"
            case httpx2.ConnectError():
                return f"{NOBODY}{place(self._order.url)}"
            case httpx2.HTTPError():
                return f"{place(self._order.url)}: {str(error) or type(error).__name__}"
            case LostError() | OAuthFlowError() | TooLargeError():
                return str(error)
            case ValidationError():
                return f"{no_mcp(error)}{self._last_words()}"
        return f"{type(error).__name__}: {error}{self._last_words()}"

    def _refusal(self) -> str:
        hint = "; check auth in [[mcps]]" if self._status in (401, 403) else ""
        return f"{place(self._order.url)} answers with HTTP status {self._status}{hint}"

    def _last_words(self) -> str:
        return self._process.last_words() if self._process is not None else ""

    # ── Tools ───────────────────────────────────────────────────────────────────────────────

    async def _list(self, client: Client) -> tuple[McpTool, ...]:
        capabilities = client.server_capabilities
        if capabilities.tools is None and client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return ()  # it would not know the question
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= MOST_TOOLS:
                break
        return tools_of(found)

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._refresh()

    def _refresh(self) -> None:
        """Reads the list anew, once however often it changes meanwhile."""
        self._stale = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._relist())

    async def _relist(self) -> None:
        while self._stale and (client := self._client) is not None:
            self._stale = False
            try:
                async with asyncio.timeout(self._order.timeout):
                    tools = await self._list(client)
            except Exception as error:
                log.debug("the tools of a peer could not be read anew: %s", reason_of(error))
                return
            if tools != self._tools:
                self._tools = tools
                self._tell(Offers(self._order.peer, tools))
            await asyncio.sleep(BREATH)

    async def _follow(self, client: Client) -> None:
        """Newer servers tell of changes to those only who listen. One that stops telling is asked
        for its tools once more: if it is gone, that is how we know."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._refresh()
            except Exception as error:
                log.debug("a peer no longer tells of changes: %s", reason_of(error))
                if isinstance(reason_of(error), MCPError):
                    return
            try:
                async with asyncio.timeout(self._order.timeout):
                    await self._list(client)
            except Exception as error:
                self._break(self._sentence(reason_of(error)))
                return
            await asyncio.sleep(1)

    def _break(self, sentence: str) -> None:
        if not self._broken.done():
            self._broken.set_result(LostError(sentence))

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    def call(self, order: Call) -> None:
        task = asyncio.ensure_future(self._carry_out(order))
        self._calls[order.call] = task
        task.add_done_callback(lambda done: self._calls.pop(order.call, None))

    def cancel(self, call: int) -> None:
        """The server is told; nobody is told what came of it."""
        if (task := self._calls.get(call)) is not None:
            task.cancel()

    async def _carry_out(self, order: Call) -> None:
        client = self._client
        if client is None:
            self._tell(NoResult(order.call, "it is not connected", is_unheard=True))
            return
        try:
            result = await self._ask_server(client, order)
            text, pictures = answer_of(result)
        except TimeoutError:
            sentence = f"no answer within {order.timeout:g} s; the call was cancelled"
            self._tell(NoResult(order.call, sentence))
        except MCPError as error:
            await self._failed(order, error)
        except ValidationError as error:
            self._tell(NoResult(order.call, no_mcp(error)[:LONGEST_REASON]))
        except Exception as error:
            self._tell(NoResult(order.call, f"{type(error).__name__}: {error}"[:LONGEST_REASON]))
        else:
            self._tell(Result(order.call, text, pictures, bool(result.is_error)))

    async def _ask_server(self, client: Client, order: Call) -> types.CallToolResult:
        loop = asyncio.get_running_loop()
        latest = loop.time() + max(LONGEST_CALL, order.timeout)

        reports = Reports(order.call, lambda word: self._tell(word))

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            reports.hear(progress, total, message)
            with suppress(RuntimeError):  # it is over already
                deadline.reschedule(min(loop.time() + order.timeout, latest))

        given = json.loads(order.arguments)
        asking = asyncio.ensure_future(
            client.call_tool(order.tool, given, progress_callback=progressed)
        )
        try:
            async with asyncio.timeout(order.timeout) as deadline:
                return await asyncio.shield(asking)
        finally:
            reports.close()
            self._abandon(asking)

    def _abandon(self, asking: asyncio.Task[types.CallToolResult]) -> None:
        """Tells the server to stop, if it still goes on. One that does not hear makes the SDK wait
        for longer than the daemon believes that there is anybody here."""
        if asking.cancel():
            self._abandoned.add(asking)
            asking.add_done_callback(self._abandoned.discard)

    async def _failed(self, order: Call, error: MCPError) -> None:
        is_alone = len(self._calls) == 1
        is_unheard = False
        sentence = error.message
        if error.code == types.CONNECTION_CLOSED:
            # Why is known in a moment, when its owner has looked.
            await asyncio.wait([self._task], timeout=LAST_WORDS)
            sentence = self._loss or (LET_GO if self._closing.is_set() else LOST)
            is_unheard = is_alone and sentence.startswith(NOBODY)
        elif error.code == types.INVALID_REQUEST and sentence == FORGOTTEN:
            is_unheard = True
            self._break("the server has forgotten us")
        elif sentence == REFUSED and 400 <= self._status < 500:
            # Servers also say so when they were started anew and do not know us.
            sentence = self._refusal()
            is_unheard = is_alone and self._status in (400, 404)
            self._break(sentence)
        self._tell(NoResult(order.call, sentence[:LONGEST_REASON], is_unheard))


def reason_of(error: BaseException) -> BaseException:
    """Of several things that went wrong because of each other, the one that says most."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    reasons = [reason_of(one) for one in error.exceptions]
    return next((one for one in reasons if not isinstance(one, LostError)), reasons[0])


def no_mcp(error: ValidationError) -> str:
    """What is wrong with an answer, first of all."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"it answers what is no MCP: {where or error.title}: {first['msg']}"


def changes_are_told(client: Client) -> bool:
    tools = client.server_capabilities.tools
    is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and tools is not None and bool(tools.list_changed)


def place(url: str) -> str:
    """Without what may be a secret in it."""
    parts = httpx2.URL(url)
    return str(parts.copy_with(userinfo=b"", query=None, fragment=None))
