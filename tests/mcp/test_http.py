"""Servers with the official SDK: over stdio, over streamable HTTP, with a key, with OAuth."""

import asyncio
import json
import stat
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest

from crabtalk.mcp import McpCallError, McpProgress, PortFileWatcher
from crabtalk.storage import McpServerConfig
from tests.mcp.http_server_process import COMMAND, ROOT, is_listening, run_http_server
from tests.mcp.tiny_server import build_png
from tests.mcp.world import PATIENCE, McpWorld, open_world

pytestmark = [pytest.mark.one_loop, pytest.mark.asyncio(loop_scope="module")]


async def try_everything(mcp_world: McpWorld, tmp_path: Path) -> None:
    """Use everything that a server with the SDK offers."""
    assert await mcp_world.call_for_text("add", a=20, b=22) == "42"
    assert json.loads(await mcp_world.call_for_text("tide")) == {"height": 1.5, "rising": True}
    (picture,) = (await mcp_world.call("picture")).pictures
    assert (picture.media_type, picture.data) == ("image/png", build_png())
    failed = await mcp_world.call("fail")
    assert failed.is_error
    assert "no shells left" in failed.text
    received: list[McpProgress] = []
    assert (
        await mcp_world.call_with_progress("walk", received.append, steps=3)
    ).text == "walked 3 steps"
    assert {(one.text, one.total) for one in received} == {("walking", 3)}
    assert (received[0].progress, received[-1].progress) == (0, 2)
    record = tmp_path / "cancelled"
    waiting = asyncio.ensure_future(mcp_world.call("wait", path=str(record)))
    # It has begun when another call that was sent later is complete.
    assert await mcp_world.call_for_text("walk", steps=2) == "walked 2 steps"
    waiting.cancel()
    await mcp_world.wait_until(record.exists)
    await mcp_world.call("grow")
    await mcp_world.wait_until(lambda: "extra" in mcp_world.list_offered())
    assert await mcp_world.call_for_text("extra") == "extra"


@pytest.mark.req("mcp.stdio")
@pytest.mark.req("mcp.results")
@pytest.mark.req("mcp.cancel")
@pytest.mark.req("mcp.tools.changed")
async def test_everything_works_with_a_server_on_the_sdk_over_stdio(
    tmp_path: Path, mcp_world: McpWorld
) -> None:
    env = {"PYTHONPATH": str(ROOT)}
    await mcp_world.connect(McpServerConfig("beach", COMMAND[0], tuple(COMMAND[1:]), env))
    await try_everything(mcp_world, tmp_path)


@pytest.mark.req("mcp.http")
@pytest.mark.req("mcp.cancel")
@pytest.mark.req("mcp.tools.changed")
async def test_everything_works_with_a_server_on_the_sdk_over_http(
    tmp_path: Path, mcp_world: McpWorld
) -> None:
    async with run_http_server() as server:
        await mcp_world.connect(McpServerConfig("beach", url=server.url))
        await try_everything(mcp_world, tmp_path)


@pytest.mark.req("mcp.http.auth")
async def test_the_right_auth_header_is_accepted_and_a_wrong_one_refused(
    mcp_world: McpWorld,
) -> None:
    async with run_http_server("--key", "sesame-seed") as server:
        right, wrong = (
            McpServerConfig("beach", url=server.url, auth=f"Bearer {key}")
            for key in ("sesame-seed", "poppy-seed")
        )
        await mcp_world.connect(right)
        mcp_world.declare(wrong, agent="twin")
        await mcp_world.wait_until(lambda: "failed" in mcp_world.list_event_statuses("twin"))
        assert await mcp_world.call_for_text("add", a=1, b=2) == "3"


@pytest.mark.req("mcp.http.death")
@pytest.mark.req("mcp.failed.reason")
async def test_a_lost_http_server_is_noticed_and_used_again_when_it_is_back(
    tmp_path: Path, mcp_world: McpWorld
) -> None:
    async with run_http_server() as server:
        await mcp_world.connect(McpServerConfig("beach", url=server.url))
        waiting = asyncio.ensure_future(mcp_world.call("wait", path=str(tmp_path / "no")))
        assert await mcp_world.call_for_text("add", a=1, b=2) == "3"
        await server.kill()
        with pytest.raises(McpCallError):
            await waiting
        assert await mcp_world.wait_for_failure()
        await mcp_world.wait_until(lambda: "no server answers at " in mcp_world.find_error())
        async with run_http_server("--port", str(server.port)):
            await mcp_world.wait_until(lambda: mcp_world.list_event_statuses()[-1] == "connected")
            assert await mcp_world.call_for_text("add", a=2, b=2) == "4"


@pytest.mark.req("mcp.http.unheard")
async def test_a_call_that_a_restarted_server_never_received_is_repeated(
    mcp_world: McpWorld,
) -> None:
    async with run_http_server() as server:
        await mcp_world.connect(McpServerConfig("beach", url=server.url))
        with server.restart():
            assert await mcp_world.call_for_text("add", a=2, b=2) == "4"


@pytest.mark.req("mcp.oauth")
async def test_a_person_authorizes_once_and_the_tokens_are_stored(mcp_world: McpWorld) -> None:
    tokens = mcp_world.path / "tokens"
    before = set(tokens.glob("*"))
    async with run_http_server("--oauth") as server:
        declared = McpServerConfig("beach", url=server.url)
        mcp_world.declare(declared)
        await wait_for_authorization(mcp_world)
        assert mcp_world.list_statuses() == ["connecting"]
        sentence = mcp_world.find_error()
        assert sentence.startswith(f"to allow it, open http://127.0.0.1:{server.port}/authorize")
        page = await asyncio.to_thread(visit_page, sentence.removeprefix("to allow it, open "))
        assert "You can close this page." in page
        await mcp_world.wait_until(lambda: mcp_world.list_statuses() == ["connected"])
        assert await mcp_world.call_for_text("add", a=1, b=2) == "3"
        (token_file,) = set(tokens.glob("*")) - before
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(tokens.stat().st_mode) == 0o700
        async with open_world(mcp_world.path) as later:
            await later.connect(declared)
            assert not any(event.error for event in later.events), (
                "no second authorization was requested"
            )


@pytest.mark.req("mcp.oauth")
async def test_a_refusal_is_reported_and_a_forged_redirect_is_ignored(
    mcp_world: McpWorld,
) -> None:
    async with run_http_server("--oauth") as server:
        mcp_world.declare(McpServerConfig("beach", url=server.url))
        question = await wait_for_authorization(mcp_world)
        back, state = question["redirect_uri"][0], question["state"][0]
        for forged in ("?code=x&state=guessed", "?error=no", "?state=" + state, "/../code"):
            with pytest.raises(HTTPError, match="404"):
                await asyncio.to_thread(visit_page, back + forged)
        assert mcp_world.list_statuses() == ["connecting"]
        await asyncio.to_thread(visit_page, f"{back}?error=access_denied&state={state}")
        assert await mcp_world.wait_for_failure() == "it was not allowed: access_denied"


async def wait_for_authorization(mcp_world: McpWorld) -> dict[str, list[str]]:
    """Return the query of the URL a person must open. The redirect port already listens then."""
    await mcp_world.wait_until(lambda: bool(mcp_world.find_error()))
    question = parse_qs(urlsplit(mcp_world.find_error()).query)
    port = urlsplit(question["redirect_uri"][0]).port
    assert port is not None
    assert is_listening(port)
    return question


def visit_page(address: str) -> str:
    """Open a page like a browser, and follow redirects."""
    with urllib.request.urlopen(address, timeout=30) as response:  # noqa: S310
        return str(response.read().decode())


# ── Port files ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.ports")
@pytest.mark.req("mcp.ports.stale")
async def test_components_come_and_go_with_their_port_files(
    tmp_path: Path, mcp_world: McpWorld, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "crabtalk.port").write_text("1\n")
    (run / "words.port").write_text("no port\n")
    (run / "stale.port").write_text("1\n")
    file = run / "beach.port"
    files = PortFileWatcher(tmp_path, mcp_world.mcp)
    await files.scan()
    assert list(mcp_world.mcp.list_states()) == []
    await files.scan()
    warnings = [r.getMessage() for r in caplog.records if "nothing listens" in r.getMessage()]
    assert len(warnings) == 1, "once is enough"
    assert str(run / "stale.port") in warnings[0]
    async with run_http_server() as server:
        file.write_text(f"{server.port}\n")
        await files.scan()
        await mcp_world.wait_until(lambda: mcp_world.list_statuses("") == ["connected"])
        assert await mcp_world.call_for_text("add", a=1, b=2) == "3"
        await server.kill()
    async with run_http_server() as server:
        # Killed and started again, on another port.
        file.write_text(f"{server.port}\n")
        await files.scan()
        await mcp_world.wait_until(
            lambda: "add" in mcp_world.list_offered() and not mcp_world.find_error("")
        )
        await mcp_world.wait_until(lambda: mcp_world.list_statuses("") == ["connected"])
        assert await mcp_world.call_for_text("add", a=3, b=4) == "7"
        file.unlink()
        await files.scan()
        assert list(mcp_world.mcp.list_states()) == []
        assert mcp_world.list_event_statuses("")[-1] == "disconnected"


@pytest.mark.req("mcp.ports.stale")
async def test_a_dead_component_is_dropped_although_its_port_file_remains(
    tmp_path: Path, mcp_world: McpWorld
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    files = PortFileWatcher(tmp_path, mcp_world.mcp)
    async with run_http_server() as server:
        (run / "beach.port").write_text(f"{server.port}\n")
        await files.scan()
        await mcp_world.wait_until(lambda: mcp_world.list_statuses("") == ["connected"])
    await mcp_world.wait_until(lambda: "failed" in mcp_world.list_event_statuses(""))
    async with asyncio.timeout(PATIENCE):
        while mcp_world.list_statuses(""):  # a retry may be running
            await files.scan()
    assert mcp_world.list_event_statuses("")[-1] == "disconnected"


# ── Endless answers ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.results.bounded")
async def test_an_endless_http_answer_is_cut_off(
    mcp_world: McpWorld,
) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
        with suppress(ConnectionError):
            while True:
                writer.write(b"0," * 500_000)
                await writer.drain()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    mcp_world.declare(
        McpServerConfig("flood", url=f"http://127.0.0.1:{port}/mcp", auto_restart=False)
    )
    assert await mcp_world.wait_for_failure() == "an answer of more than 16777216 bytes"
    server.close()
