"""SyncClient: a blocking Client for scripts that have no event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from .client import Client, connect
from .errors import ConnectionClosedError

P = ParamSpec("P")
T = TypeVar("T")


def make_blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncClient", P], T]:
    """Make the blocking form of a coroutine method."""

    def blocking(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    blocking.__name__, blocking.__doc__ = method.__name__, method.__doc__
    return blocking


def make_blocking_iterator(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["SyncClient", P], Generator[T, None, None]]:
    """Make the blocking form of a streaming method."""

    def blocking(
        self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        stream = method(self._client, *args, **kwargs)

        async def step() -> T | None:
            return await anext(stream, None)

        try:
            while (item := self._run(step())) is not None:
                yield item
        finally:
            if not self._closed:  # closing the client has already closed its streams
                self._run(stream.aclose())

    blocking.__name__, blocking.__doc__ = method.__name__, method.__doc__
    return blocking


class SyncClient:
    """A Client that blocks. Use it from one thread: it has its own event loop.

    Use it as `with connect_sync() as c:`. Ctrl+C in a call cancels that call. Each method has the
    parameters of the Client's method, and does the same: a message with a key survives the loss of
    its connection, and the call blocks meanwhile. Closing the generator that `stream` returns, as
    leaving its loop early does, cancels the run.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._closed = False
        # With a factory the runner does not replace the thread's current event loop.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def __enter__(self) -> "SyncClient":
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._closed = True
            self._runner.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run(self._client.__aexit__(kind, error, traceback))
        finally:
            self._closed = True
            self._runner.close()

    def _run(self, awaitable: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            awaitable.close()
            raise ConnectionClosedError("this client is closed")
        try:
            return self._runner.run(awaitable)
        except asyncio.CancelledError:
            # Only Ctrl+C cancels here. One that comes just as the runner installs its handler for
            # it ends up as a CancelledError.
            raise KeyboardInterrupt from None

    request = make_blocking(Client.request)
    request_stream = make_blocking_iterator(Client.request_stream)

    hello = make_blocking(Client.hello)
    ping = make_blocking(Client.ping)
    get_config = make_blocking(Client.get_config)
    reload = make_blocking(Client.reload)
    get_stats = make_blocking(Client.get_stats)
    extension = make_blocking(Client.extension)

    send = make_blocking(Client.send)
    stream = make_blocking_iterator(Client.stream)
    stream_events = make_blocking_iterator(Client.stream_events)
    attach = make_blocking_iterator(Client.attach)
    reply_to_ask = make_blocking(Client.reply_to_ask)
    steer_session = make_blocking(Client.steer_session)
    kill = make_blocking(Client.kill)
    compact = make_blocking(Client.compact)

    list_active_conversations = make_blocking(Client.list_active_conversations)
    list_conversations = make_blocking(Client.list_conversations)
    get_conversation_history = make_blocking(Client.get_conversation_history)
    delete_conversation = make_blocking(Client.delete_conversation)
    list_messages = make_blocking(Client.list_messages)
    list_records = make_blocking(Client.list_records)
    list_archives = make_blocking(Client.list_archives)
    search_sessions = make_blocking(Client.search_sessions)
    search_memory = make_blocking(Client.search_memory)
    list_memory = make_blocking(Client.list_memory)
    replace_memory = make_blocking(Client.replace_memory)
    set_title = make_blocking(Client.set_title)
    set_mode = make_blocking(Client.set_mode)
    explain_agent = make_blocking(Client.explain_agent)

    list_agents = make_blocking(Client.list_agents)
    get_agent = make_blocking(Client.get_agent)
    create_agent = make_blocking(Client.create_agent)
    update_agent = make_blocking(Client.update_agent)
    delete_agent = make_blocking(Client.delete_agent)
    rename_agent = make_blocking(Client.rename_agent)
    list_skills = make_blocking(Client.list_skills)
    list_models = make_blocking(Client.list_models)
    set_active_model = make_blocking(Client.set_active_model)

    list_mcps = make_blocking(Client.list_mcps)
    upsert_mcp = make_blocking(Client.upsert_mcp)
    delete_mcp = make_blocking(Client.delete_mcp)
    subscribe_mcp_events = make_blocking_iterator(Client.subscribe_mcp_events)

    subscribe_events = make_blocking_iterator(Client.subscribe_events)
    subscribe_event = make_blocking(Client.subscribe_event)
    unsubscribe_event = make_blocking(Client.unsubscribe_event)
    list_subscriptions = make_blocking(Client.list_subscriptions)
    publish_event = make_blocking(Client.publish_event)


def connect_sync(*args: Any, **kwargs: Any) -> SyncClient:
    """`connect` for scripts: the same arguments, to be used as `with connect_sync() as c:`."""
    return SyncClient(connect(*args, **kwargs))
