"""HostPeer: the connection to one server, in the host process.

One task opens and closes the connection, because the SDK requires the same task for both. Each call
has its own task.
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
from crabtalk.mcp.messages import (
    AuthorizationNeeded,
    CallTool,
    FromHost,
    McpCallFailure,
    McpCallResult,
    McpTool,
    OpenPeer,
    PeerLost,
    PeerTools,
    ServerSpawned,
)

from .content import MAX_TOOLS, convert_result, convert_tools
from .http import AnswerTooLargeError, open_http_transport
from .oauth import AUTHORIZATION_TIMEOUT
from .progress import ProgressThrottle
from .server_process import ServerProcess

log = logging.getLogger(__name__)

MAX_PAGES = 100  # of a list of tools
REFRESH_INTERVAL = 0.1  # seconds between two reads of the list, however often it changes
# Limit of a call, however often it throttle progress.
MAX_CALL_SECONDS = 3600.0
# Seconds to find out why a connection was lost, and to close a server.
LOSS_REASON_TIMEOUT = 3.0
CLOSE_TIMEOUT = 5.0
MAX_REASON_LENGTH = 2000

CONNECTION_LOST = "the connection was lost"
NO_LONGER_DECLARED = "the server is no longer declared"
NO_ANSWER_AT = "no server answers at "
# Messages of the SDK for HTTP status 404 and for other error statuses.
SDK_SESSION_TERMINATED = "Session terminated"
SDK_ERROR_RESPONSE = "Server returned an error response"

SendToDaemon = Callable[[FromHost], None]


class PeerLostError(Exception):
    """There is no connection, or it was lost; the text says why."""


class HostPeer:
    def __init__(self, order: OpenPeer, send: SendToDaemon) -> None:
        self._order = order
        self._send = send
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._closing = asyncio.Event()
        self._broken: asyncio.Future[PeerLostError] = asyncio.get_running_loop().create_future()
        self._connecting: asyncio.Timeout | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[types.CallToolResult]] = set()
        self._following: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._tools: tuple[McpTool, ...] = ()  # as last sent to the daemon
        self._stale = False  # whether the list has changed since it was read
        self._status = 0  # of the last HTTP error response
        self._loss_reason = ""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Close the connection. After this only the results of calls are sent: callers wait for
        those."""
        send = self._send
        self._send = lambda message: (
            send(message) if isinstance(message, McpCallResult | McpCallFailure) else None
        )
        self._closing.set()
        _, late = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)

    # ── The connection ──────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        is_final = False
        try:
            await self._serve_connection()
        except asyncio.CancelledError:
            self._loss_reason = CONNECTION_LOST
            if self._closing.is_set():
                raise
        except Exception as error:
            failure = find_root_error(error)
            self._loss_reason = self._describe_error(failure)
            is_final = isinstance(failure, OAuthFlowError)
            if not isinstance(failure, PeerLostError | MCPError | OSError | httpx2.HTTPError):
                log.debug("a peer was lost", exc_info=error)
        if not self._closing.is_set():
            self._send(PeerLost(self._order.peer, self._loss_reason[:MAX_REASON_LENGTH], is_final))

    async def _serve_connection(self) -> None:
        """Connect, and keep the connection until it is closed or lost."""
        async with AsyncExitStack() as stack:
            client, tools = await self._connect(stack)
            self._client, self._tools = client, tools
            stack.callback(self._clear_client)
            self._send(PeerTools(self._order.peer, tools))
            if announces_tool_changes(client):
                self._following = asyncio.ensure_future(self._follow_changes(client))
            stack.push_async_callback(self._stop_following)
            await self._wait_until_lost()

    async def _connect(self, stack: AsyncExitStack) -> tuple[Client, tuple[McpTool, ...]]:
        """Connect before the timeout, unless `close` is called first. `stack` closes the
        connection."""
        task = asyncio.current_task()
        closing = asyncio.ensure_future(self._closing.wait())
        if task is not None:
            closing.add_done_callback(lambda done: None if done.cancelled() else task.cancel())
        try:
            async with asyncio.timeout(self._order.timeout) as self._connecting:
                client = await stack.enter_async_context(self._new_client())
                return client, await self._list_tools(client)
        except TimeoutError:
            sentence = f"no answer within {self._order.timeout:g} s{self._quote_output()}"
            raise PeerLostError(sentence) from None
        finally:
            self._connecting = None
            closing.cancel()

    def _clear_client(self) -> None:
        self._client = None

    async def _stop_following(self) -> None:
        tasks = [task for task in (self._following, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LOSS_REASON_TIMEOUT)

    def _new_client(self) -> Client:
        order = self._order
        transport: Any
        if order.url:
            tokens = Path(order.tokens) if order.tokens else None
            transport = open_http_transport(
                order.url,
                order.auth,
                tokens,
                self._ask_person,
                self._record_status,
                lambda: self._mark_broken(CONNECTION_LOST),
            )
        else:
            send = self._send  # also used while the peer is closing
            self._process = ServerProcess(
                order.command,
                order.args,
                order.env,
                lambda pid: send(ServerSpawned(order.peer, pid)),
            )
            transport = self._process.open_transport()
        return Client(
            transport,
            message_handler=self._handle_message,
            client_info=types.Implementation(name="crabtalk", version=__version__),
            cache=None,
        )

    async def _wait_until_lost(self) -> None:
        """Wait until the peer is closed. Raises PeerLostError if the connection is lost first."""
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
            raise PeerLostError(self._process.describe_end())

    def _ask_person(self, address: str) -> None:
        """Ask for authorization, and extend the timeout: a person takes longer than a machine."""
        if self._connecting is not None:
            now = asyncio.get_running_loop().time()
            self._connecting.reschedule(now + AUTHORIZATION_TIMEOUT + self._order.timeout)
        self._send(AuthorizationNeeded(self._order.peer, address))

    def _record_status(self, status: int) -> None:
        self._status = status

    def _describe_error(self, error: BaseException) -> str:
        """Describe an error on one line of printable characters: terminals show it, and it may
        contain text from the server."""
        printable = (c if c.isprintable() else " " for c in self._find_reason(error))
        return " ".join("".join(printable).split())

    def _find_reason(self, error: BaseException) -> str:
        match error:
            case FileNotFoundError() if self._process is not None:
                return (
                    f"cannot start {self._order.command!r}: it is not there; install it, or write "
                    "its whole path"
                )
            case OSError() if self._process is not None:
                return f"cannot start {self._order.command!r}: {error.strerror or error}"
            case MCPError(code=types.CONNECTION_CLOSED) if self._process is not None:
                return self._process.describe_end()
            case MCPError(message=message) if message == SDK_ERROR_RESPONSE:
                return self._describe_refusal()
            case MCPError():
                return f"{error.message}{self._quote_output()}"
            case httpx2.ConnectError():
                return f"{NO_ANSWER_AT}{strip_url_secrets(self._order.url)}"
            case httpx2.HTTPError():
                return f"{strip_url_secrets(self._order.url)}: {str(error) or type(error).__name__}"
            case PeerLostError() | OAuthFlowError() | AnswerTooLargeError():
                return str(error)
            case ValidationError():
                return f"{describe_invalid_answer(error)}{self._quote_output()}"
        return f"{type(error).__name__}: {error}{self._quote_output()}"

    def _describe_refusal(self) -> str:
        hint = "; check auth in [[mcps]]" if self._status in (401, 403) else ""
        return f"{strip_url_secrets(self._order.url)} answers with HTTP status {self._status}{hint}"

    def _quote_output(self) -> str:
        return self._process.quote_output() if self._process is not None else ""

    # ── Tools ───────────────────────────────────────────────────────────────────────────────

    async def _list_tools(self, client: Client) -> tuple[McpTool, ...]:
        capabilities = client.server_capabilities
        if capabilities.tools is None and client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return ()  # older servers without tools do not know the method
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) >= MAX_TOOLS:
                break
        return convert_tools(tools)

    async def _handle_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._schedule_refresh()

    def _schedule_refresh(self) -> None:
        """Read the list of tools again, once for all changes in the meantime."""
        self._stale = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh_tools())

    async def _refresh_tools(self) -> None:
        while self._stale and (client := self._client) is not None:
            self._stale = False
            try:
                async with asyncio.timeout(self._order.timeout):
                    tools = await self._list_tools(client)
            except Exception as error:
                log.debug("the tools of a peer could not be read anew: %s", find_root_error(error))
                return
            if tools != self._tools:
                self._tools = tools
                self._send(PeerTools(self._order.peer, tools))
            await asyncio.sleep(REFRESH_INTERVAL)

    async def _follow_changes(self, client: Client) -> None:
        """Listen for changes of the tools: newer servers only report them on request.

        When the server stops reporting, its tools are read again, which shows whether it is gone.
        """
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._schedule_refresh()
            except Exception as error:
                log.debug("a peer no longer tells of changes: %s", find_root_error(error))
                if isinstance(find_root_error(error), MCPError):
                    return
            try:
                async with asyncio.timeout(self._order.timeout):
                    await self._list_tools(client)
            except Exception as error:
                self._mark_broken(self._describe_error(find_root_error(error)))
                return
            await asyncio.sleep(1)

    def _mark_broken(self, sentence: str) -> None:
        if not self._broken.done():
            self._broken.set_result(PeerLostError(sentence))

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    def call(self, order: CallTool) -> None:
        task = asyncio.ensure_future(self._run_call(order))
        self._calls[order.call] = task
        task.add_done_callback(lambda done: self._calls.pop(order.call, None))

    def cancel(self, call: int) -> None:
        """Cancel a call at the server. No result is sent."""
        if (task := self._calls.get(call)) is not None:
            task.cancel()

    async def _run_call(self, order: CallTool) -> None:
        client = self._client
        if client is None:
            self._send(McpCallFailure(order.call, "it is not connected", is_unheard=True))
            return
        try:
            result = await self._call_tool(client, order)
            text, pictures = convert_result(result)
        except TimeoutError:
            sentence = f"no answer within {order.timeout:g} s; the call was cancelled"
            self._send(McpCallFailure(order.call, sentence))
        except MCPError as error:
            await self._report_failure(order, error)
        except ValidationError as error:
            self._send(
                McpCallFailure(order.call, describe_invalid_answer(error)[:MAX_REASON_LENGTH])
            )
        except Exception as error:
            self._send(
                McpCallFailure(order.call, f"{type(error).__name__}: {error}"[:MAX_REASON_LENGTH])
            )
        else:
            self._send(McpCallResult(order.call, text, pictures, bool(result.is_error)))

    async def _call_tool(self, client: Client, order: CallTool) -> types.CallToolResult:
        loop = asyncio.get_running_loop()
        latest = loop.time() + max(MAX_CALL_SECONDS, order.timeout)

        throttle = ProgressThrottle(order.call, lambda message: self._send(message))

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            throttle.report(progress, total, message)
            with suppress(RuntimeError):  # the deadline has passed already
                deadline.reschedule(min(loop.time() + order.timeout, latest))

        arguments = json.loads(order.arguments)
        task = asyncio.ensure_future(
            client.call_tool(order.tool, arguments, progress_callback=on_progress)
        )
        try:
            async with asyncio.timeout(order.timeout) as deadline:
                return await asyncio.shield(task)
        finally:
            throttle.close()
            self._abandon(task)

    def _abandon(self, task: asyncio.Task[types.CallToolResult]) -> None:
        """Cancel a call at the server if it still runs, without waiting for the end.

        If the server does not react, the SDK waits for it longer than the daemon waits for us.
        """
        if task.cancel():
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)

    async def _report_failure(self, order: CallTool, error: MCPError) -> None:
        is_alone = len(self._calls) == 1
        is_unheard = False
        sentence = error.message
        if error.code == types.CONNECTION_CLOSED:
            # The task that owns the connection finds out the reason.
            await asyncio.wait([self._task], timeout=LOSS_REASON_TIMEOUT)
            sentence = self._loss_reason or (
                NO_LONGER_DECLARED if self._closing.is_set() else CONNECTION_LOST
            )
            is_unheard = is_alone and sentence.startswith(NO_ANSWER_AT)
        elif error.code == types.INVALID_REQUEST and sentence == SDK_SESSION_TERMINATED:
            is_unheard = True
            self._mark_broken("the server has forgotten us")
        elif sentence == SDK_ERROR_RESPONSE and 400 <= self._status < 500:
            # Servers also return these after a restart, when they do not know our session.
            sentence = self._describe_refusal()
            is_unheard = is_alone and self._status in (400, 404)
            self._mark_broken(sentence)
        self._send(McpCallFailure(order.call, sentence[:MAX_REASON_LENGTH], is_unheard))


def find_root_error(error: BaseException) -> BaseException:
    """Return the most informative error of an exception group."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    reasons = [find_root_error(inner) for inner in error.exceptions]
    return next((reason for reason in reasons if not isinstance(reason, PeerLostError)), reasons[0])


def describe_invalid_answer(error: ValidationError) -> str:
    """Describe the first problem of an invalid answer."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"it answers what is no MCP: {where or error.title}: {first['msg']}"


def announces_tool_changes(client: Client) -> bool:
    tools = client.server_capabilities.tools
    is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and tools is not None and bool(tools.list_changed)


def strip_url_secrets(url: str) -> str:
    """Remove the parts of a URL that may be secret."""
    parts = httpx2.URL(url)
    return str(parts.copy_with(userinfo=b"", query=None, fragment=None))
