"""SyncClient: the same client for scripts that have no event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from .client import Client, connect
from .errors import ConnectionClosedError

P = ParamSpec("P")
T = TypeVar("T")


def call(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncClient", P], T]:
    """The blocking form of a method that returns once."""

    def blocking(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    blocking.__name__, blocking.__doc__ = method.__name__, method.__doc__
    return blocking


def iterate(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["SyncClient", P], Generator[T, None, None]]:
    """The blocking form of a method that streams."""

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
            if not self._closed:  # closing the client has closed its streams
                self._run(stream.aclose())

    blocking.__name__, blocking.__doc__ = method.__name__, method.__doc__
    return blocking


class SyncClient:
    """A Client that blocks. For one thread: it brings an event loop of its own.

    Use it as `with connect_sync() as c:`. Ctrl+C in a call cancels that call. Each method has the
    parameters of the Client's, and does the same: a message with a key outlives its connection
    here too, and the call blocks meanwhile. Closing the generator that `stream` returns, which is
    what leaving its loop early does, cancels the run.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._closed = False
        # Named, so that a loop of the thread's own is left in place.
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
            # Nobody but Ctrl+C cancels here, and one that comes just as the runner begins to
            # listen for it is told as this.
            raise KeyboardInterrupt from None

    request = call(Client.request)
    request_stream = iterate(Client.request_stream)

    hello = call(Client.hello)
    ping = call(Client.ping)
    get_config = call(Client.get_config)
    reload = call(Client.reload)
    get_stats = call(Client.get_stats)
    extension = call(Client.extension)

    send = call(Client.send)
    stream = iterate(Client.stream)
    stream_events = iterate(Client.stream_events)
    attach = iterate(Client.attach)
    reply_to_ask = call(Client.reply_to_ask)
    steer_session = call(Client.steer_session)
    kill = call(Client.kill)
    compact = call(Client.compact)

    list_active_conversations = call(Client.list_active_conversations)
    list_conversations = call(Client.list_conversations)
    get_conversation_history = call(Client.get_conversation_history)
    delete_conversation = call(Client.delete_conversation)
    list_messages = call(Client.list_messages)
    list_records = call(Client.list_records)
    list_archives = call(Client.list_archives)
    search_sessions = call(Client.search_sessions)
    search_memory = call(Client.search_memory)
    list_memory = call(Client.list_memory)
    replace_memory = call(Client.replace_memory)
    set_title = call(Client.set_title)
    set_mode = call(Client.set_mode)
    explain_agent = call(Client.explain_agent)

    list_agents = call(Client.list_agents)
    get_agent = call(Client.get_agent)
    create_agent = call(Client.create_agent)
    update_agent = call(Client.update_agent)
    delete_agent = call(Client.delete_agent)
    rename_agent = call(Client.rename_agent)
    list_skills = call(Client.list_skills)
    list_models = call(Client.list_models)
    set_active_model = call(Client.set_active_model)

    list_mcps = call(Client.list_mcps)
    upsert_mcp = call(Client.upsert_mcp)
    delete_mcp = call(Client.delete_mcp)
    subscribe_mcp_events = iterate(Client.subscribe_mcp_events)

    subscribe_events = iterate(Client.subscribe_events)
    subscribe_event = call(Client.subscribe_event)
    unsubscribe_event = call(Client.unsubscribe_event)
    list_subscriptions = call(Client.list_subscriptions)
    publish_event = call(Client.publish_event)


def connect_sync(*args: Any, **kwargs: Any) -> SyncClient:
    """`connect` for scripts: the same arguments, to be used as `with connect_sync() as c:`."""
    return SyncClient(connect(*args, **kwargs))
