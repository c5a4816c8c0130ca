"""The relay's HTTP API: an empty answer does not count as confirmation."""

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from crabtalk_web.gateway.errors import RelayUnavailableError
from crabtalk_web.gateway.relay_http import RelayHttp

MESSAGES = [{"content": "YQ==", "localId": "a"}, {"content": "Yg==", "localId": "b"}]


def build_application(text: str) -> web.Application:
    """Answers every request with the same value."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@pytest.mark.parametrize(
    "text",
    [
        "<html>Welcome to the hotel</html>",
        "null",
        "[]",
        "{}",
        '{"messages": 7}',
        '{"messages": [1, {"localId": "a"}]}',
    ],
)
@pytest.mark.req("gateway.answers")
async def test_messages_count_as_sent_only_if_the_relay_confirms_them(text: str) -> None:
    async with (
        TestServer(build_application(text)) as server,
        RelayHttp(str(server.make_url("/")), "t") as relay,
    ):
        with pytest.raises(RelayUnavailableError):
            await relay.append_messages("s", MESSAGES)


@pytest.mark.req("gateway.answers")
@pytest.mark.parametrize("session", [None, {}, {"id": ""}, {"id": 7}])
async def test_a_session_without_an_id_is_an_error(session: Any) -> None:
    text = json.dumps({"session": session})
    async with (
        TestServer(build_application(text)) as server,
        RelayHttp(str(server.make_url("/")), "t") as relay,
    ):
        with pytest.raises(RelayUnavailableError):
            await relay.open_session("tag", "", "")
