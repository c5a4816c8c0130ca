"""Server: dispatch calls the method of each request, and sends every outcome as a message."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.protocol import (
    ROUTES,
    NotFoundError,
    ReplyShape,
    RequestError,
    Route,
    Server,
    UnavailableError,
    wire,
)

REQUESTS = wire.ClientMessage.DESCRIPTOR.fields_by_name
REPLIES = wire.ServerMessage.DESCRIPTOR.fields_by_name
UNARY = [route for route in ROUTES.values() if route.shape is ReplyShape.ONE]
STREAMING = [route for route in ROUTES.values() if route.shape is not ReplyShape.ONE]

each_route = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
each_unary = pytest.mark.parametrize("route", UNARY, ids=lambda route: route.request)
each_streaming = pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.request)


class PayloadServer(Server):
    """Answers any request with `payloads`, then fails with `error` if there is one.

    A unary method returns the first payload. `calls` records the methods and requests.
    """

    def __init__(self, payloads: list[Any], error: Exception | None = None) -> None:
        self.payloads = payloads
        self.error = error
        self.calls: list[tuple[str, Any]] = []


def make_payload_method(route: Route) -> Any:
    async def one(self: PayloadServer, request: Any) -> Any:
        self.calls.append((route.request, request))
        if self.error is not None:
            raise self.error
        return self.payloads[0]

    async def many(self: PayloadServer, request: Any) -> AsyncGenerator[Any, None]:
        self.calls.append((route.request, request))
        for payload in self.payloads:
            yield payload
        if self.error is not None:
            raise self.error

    return one if route.shape is ReplyShape.ONE else many


for scripted_route in ROUTES.values():
    setattr(PayloadServer, scripted_route.request, make_payload_method(scripted_route))


def find_payload_type(field: FieldDescriptor) -> type[Any]:
    return bytes if field.message_type is None else GetMessageClass(field.message_type)


def make_sample(field: FieldDescriptor, text: str) -> Any:
    """A payload for `field` with `text` in the first field that can hold it."""
    if field.message_type is None:
        return text.encode() if field.type == field.TYPE_BYTES else text
    content: dict[str, Any] = {}
    for inner in field.message_type.fields:
        if inner.message_type is not None or inner.type == inner.TYPE_STRING:
            value = make_sample(inner, text)
            content[inner.name] = [value] if inner.is_repeated else value
            break
    return find_payload_type(field)(**content)


def make_request(route: Route, text: str = "") -> wire.ClientMessage:
    content: Any = {route.request: make_sample(REQUESTS[route.request], text)}
    return wire.ClientMessage(**content)


def wrap_reply(route: Route, payload: Any) -> wire.ServerMessage:
    content: Any = {route.reply: payload}
    return wire.ServerMessage(**content)


async def collect_replies(server: Server, message: wire.ClientMessage) -> list[wire.ServerMessage]:
    return [reply async for reply in server.dispatch(message)]


async def get_only_error(server: Server, message: wire.ClientMessage) -> wire.ErrorMsg:
    (reply,) = await collect_replies(server, message)
    assert reply.WhichOneof("msg") == "error"
    return reply.error


# ── One method per request ──────────────────────────────────────────────────────────────────


@pytest.mark.req("dispatch.server_method_per_request")
@each_route
def test_each_request_has_a_method_with_the_types_of_the_protocol(route: Route) -> None:
    method = getattr(Server, route.request)
    assert list(inspect.signature(method).parameters) == ["self", "request"]
    hints = get_type_hints(method)
    assert hints["request"] is find_payload_type(REQUESTS[route.request])
    reply = NoneType if route.reply == "pong" else find_payload_type(REPLIES[route.reply])
    if route.shape is ReplyShape.ONE:
        assert inspect.iscoroutinefunction(method)
        assert hints["return"] is reply
    else:
        assert get_origin(hints["return"]) is AsyncGenerator
        assert get_args(hints["return"]) == (reply, None)


@pytest.mark.req("dispatch.server_method_per_request")
def test_a_server_has_no_public_method_besides_its_requests_and_dispatch() -> None:
    public = {name for name in vars(Server) if not name.startswith("_")}
    assert public == {"dispatch", "answer", *ROUTES}


# ── Routing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("dispatch.one_function")
@each_route
async def test_a_request_reaches_its_own_method_and_no_other(route: Route) -> None:
    server = PayloadServer([make_sample(REPLIES[route.reply], "answer")])
    await collect_replies(server, make_request(route, "question"))
    assert server.calls == [(route.request, make_sample(REQUESTS[route.request], "question"))]


@pytest.mark.req("dispatch.unary_one")
@each_unary
async def test_a_unary_request_is_answered_with_exactly_what_its_method_returned(
    route: Route,
) -> None:
    payload = make_sample(REPLIES[route.reply], "answer")
    assert await collect_replies(PayloadServer([payload]), make_request(route)) == [
        wrap_reply(route, payload)
    ]


@pytest.mark.req("dispatch.unary_one")
@pytest.mark.parametrize(
    "route", [route for route in UNARY if route.reply == "pong"], ids=lambda route: route.request
)
async def test_a_method_that_returns_nothing_is_answered_with_pong(route: Route) -> None:
    pong = wire.ServerMessage(pong=wire.Pong())
    assert await collect_replies(PayloadServer([None]), make_request(route)) == [pong]


@pytest.mark.req("dispatch.unary_one")
async def test_an_empty_extension_is_an_answer() -> None:
    (reply,) = await collect_replies(PayloadServer([b""]), make_request(ROUTES["extension"]))
    assert reply.WhichOneof("msg") == "extension"


@pytest.mark.req("dispatch.stream_many")
@pytest.mark.parametrize("count", [0, 1, 100])
@each_streaming
async def test_a_stream_is_answered_with_each_of_its_items_in_order(
    route: Route, count: int
) -> None:
    payloads = [make_sample(REPLIES[route.reply], str(n)) for n in range(count)]
    expected = [wrap_reply(route, payload) for payload in payloads]
    assert await collect_replies(PayloadServer(payloads), make_request(route)) == expected


@pytest.mark.req("dispatch.stream_many")
async def test_an_item_of_a_stream_is_sent_before_the_next_is_made() -> None:
    made: list[str] = []

    class Slow(Server):
        async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
            for content in ("one", "two"):
                made.append(content)
                yield wire.StreamEvent(chunk=wire.StreamChunk(content=content))

    replies = Slow().dispatch(make_request(ROUTES["stream"]))
    seen = [(reply.stream.chunk.content, list(made)) async for reply in replies]
    assert seen == [("one", ["one"]), ("two", ["one", "two"])]


OUTCOMES = st.sampled_from([None, NotFoundError, ValueError])


@pytest.mark.req("dispatch.one_function")
@given(route=st.sampled_from(list(ROUTES.values())), count=st.integers(1, 4), outcome=OUTCOMES)
@settings(deadline=None)
async def test_dispatch_is_answer_with_message_wrappers(
    route: Route, count: int, outcome: type[Exception] | None
) -> None:
    payloads = [make_sample(REPLIES[route.reply], str(n)) for n in range(count)]
    server = PayloadServer(payloads, outcome("a reason") if outcome else None)
    unwrapped: list[Any] = [
        {field: value} async for field, value in server.answer(make_request(route))
    ]
    assert unwrapped
    assert await collect_replies(server, make_request(route)) == [
        wire.ServerMessage(**fields) for fields in unwrapped
    ]


# ── Requests that are not offered ───────────────────────────────────────────────────────────


@pytest.mark.req("dispatch.unknown_is_error")
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("42 00", id="number 8, reserved"),
        pytest.param("ba 3e 02 68 69", id="number 999, from a newer client"),
        pytest.param("08 01", id="number 1 of another type"),
    ],
)
async def test_a_message_without_a_known_request_gets_one_error_400(content: str) -> None:
    error = await get_only_error(
        PayloadServer([]), wire.ClientMessage.FromString(bytes.fromhex(content))
    )
    assert error.code == 400
    assert "no request" in error.message


@pytest.mark.req("dispatch.unknown_is_error")
@pytest.mark.parametrize("name", sorted(set(ROUTES) - {"ping", "get_config"}))
async def test_a_request_the_server_does_not_offer_gets_one_error_501_that_names_it(
    name: str,
) -> None:
    error = await get_only_error(Server(), make_request(ROUTES[name]))
    assert error == wire.ErrorMsg(code=501, message=f"this server does not offer {name}")


@pytest.mark.req("wire.get_config.gone")
async def test_get_config_is_gone() -> None:
    error = await get_only_error(Server(), wire.ClientMessage(get_config=wire.GetConfig()))
    assert error.code == 410
    assert "config.toml" in error.message


@pytest.mark.req("dispatch.unary_one")
async def test_ping_is_answered_with_pong_by_any_server() -> None:
    pong = wire.ServerMessage(pong=wire.Pong())
    assert await collect_replies(Server(), wire.ClientMessage(ping=wire.Ping())) == [pong]


# ── Failure ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.errors.http_codes")
@pytest.mark.parametrize(
    "error", [NotFoundError("no agent 'zoe'"), UnavailableError("later"), RequestError("broken")]
)
@each_unary
async def test_a_request_error_is_answered_with_its_code_and_sentence(
    route: Route, error: RequestError
) -> None:
    answer = await get_only_error(PayloadServer([], error), make_request(route))
    assert answer == wire.ErrorMsg(code=error.code, message=str(error))


@pytest.mark.req("wire.errors.http_codes")
@pytest.mark.parametrize("count", [0, 1, 3])
@each_streaming
async def test_a_stream_that_fails_is_answered_with_its_items_so_far_then_one_error(
    route: Route, count: int
) -> None:
    payloads = [make_sample(REPLIES[route.reply], str(n)) for n in range(count)]
    error = wire.ErrorMsg(code=404, message="no agent 'zoe'")
    assert await collect_replies(
        PayloadServer(payloads, NotFoundError(error.message)), make_request(route)
    ) == [
        *[wrap_reply(route, payload) for payload in payloads],
        wire.ServerMessage(error=error),
    ]


@each_route
async def test_an_unexpected_exception_is_500_with_its_type_and_logged_with_its_traceback(
    route: Route, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("sk-secret in /home/bo")
    answer = await get_only_error(PayloadServer([], error), make_request(route))
    assert answer.code == 500
    assert "ValueError" in answer.message
    assert "secret" not in answer.message
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert "ValueError: sk-secret in /home/bo" in caplog.text
    assert "Traceback" in caplog.text


# ── Cancellation ────────────────────────────────────────────────────────────────────────────


class WaitingServer(Server):
    """Methods that wait for ever, and record how far they got."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.steps: list[str] = []

    async def wait(self) -> None:
        self.steps.append("waiting")
        self.waiting.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.steps.append("cancelled")
            raise
        finally:
            self.steps.append("cleaned up")

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        await self.wait()
        return wire.SendResponse()

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        try:
            yield wire.StreamEvent(start=wire.StreamStart(agent="crab"))
            yield wire.StreamEvent(chunk=wire.StreamChunk(content="so far"))
            await self.wait()
            yield wire.StreamEvent(end=wire.StreamEnd(agent="crab"))
        finally:
            self.steps.append("stream closed")


@pytest.mark.req("dispatch.cancellation_propagates")
@pytest.mark.parametrize(
    ("name", "emitted", "steps"),
    [
        ("send", [], ["waiting", "cancelled", "cleaned up"]),
        ("stream", ["start", "chunk"], ["waiting", "cancelled", "cleaned up", "stream closed"]),
    ],
)
async def test_cancelling_the_task_that_waits_on_dispatch_cancels_the_method_at_its_await(
    name: str, emitted: list[str], steps: list[str]
) -> None:
    server = WaitingServer()
    generator = server.dispatch(make_request(ROUTES[name]))
    for event in emitted:
        assert (await anext(generator)).stream.WhichOneof("event") == event
    task = asyncio.ensure_future(anext(generator))
    await server.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.steps == steps
    with pytest.raises(StopAsyncIteration):
        await anext(generator)


@pytest.mark.req("dispatch.cancellation_propagates")
@pytest.mark.parametrize("entry", ["dispatch", "answer"])
async def test_closing_the_generator_closes_the_method_behind_it(entry: str) -> None:
    server = WaitingServer()
    generator = getattr(server, entry)(make_request(ROUTES["stream"]))
    await anext(generator)
    assert server.steps == []
    await generator.aclose()
    assert server.steps == ["stream closed"]
    with pytest.raises(StopAsyncIteration):
        await anext(generator)


async def test_closing_the_generator_before_its_first_item_runs_nothing() -> None:
    server = PayloadServer([])
    await server.dispatch(make_request(ROUTES["stream"])).aclose()
    assert server.calls == []


class FailingCleanupServer(Server):
    """Its stream fails during clean-up."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        try:
            yield wire.StreamEvent(start=wire.StreamStart())
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            raise OSError("clean-up failed")


@pytest.mark.req("dispatch.cancellation_propagates")
async def test_a_clean_up_that_fails_is_logged_and_closing_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generator = FailingCleanupServer().dispatch(make_request(ROUTES["stream"]))
    await anext(generator)
    await generator.aclose()
    assert "stream failed while it was being closed" in caplog.text
    assert "clean-up failed" in caplog.text


@pytest.mark.req("dispatch.cancellation_propagates")
async def test_a_clean_up_that_fails_does_not_swallow_the_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FailingCleanupServer()
    generator = server.dispatch(make_request(ROUTES["stream"]))
    await anext(generator)
    task = asyncio.ensure_future(anext(generator))
    await server.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "clean-up failed" in caplog.text


async def test_a_method_without_an_answer_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forgetful(Server):
        async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
            return None  # type: ignore[return-value]

    (reply,) = [r async for r in Forgetful().dispatch(make_request(ROUTES["list_agents"]))]
    assert reply.error.code == 500
    assert "list_agents must return what agent_list holds" in caplog.text


@pytest.mark.parametrize("entry", ["dispatch", "answer"])
async def test_a_method_whose_work_is_cancelled_gets_an_answer(entry: str) -> None:
    class Waiter(Server):
        async def send(self, request: wire.SendMsg) -> wire.SendResponse:
            work = asyncio.ensure_future(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(work.cancel)
            await work
            raise AssertionError("the work was cancelled")

    (reply,) = [r async for r in getattr(Waiter(), entry)(make_request(ROUTES["send"]))]
    error = reply.error if entry == "dispatch" else reply[1]
    assert error == wire.ErrorMsg(code=500, message="send was cancelled")
