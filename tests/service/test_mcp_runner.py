"""A component as a process: found by its port file, one of each name, and a clean end."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import httpx2
import pytest
from mcp import Client

from crabtalk.service import PortFile
from crabtalk.service.mcp_http import GRACE_SECONDS
from tests.forked_programs import PIPE, ForkedProcess
from tests.service.python_process import ROOT, start_python

# Components are processes with event loops of their own.
pytestmark = pytest.mark.one_loop

PATIENCE = 40
PAGE_TEXT = (ROOT / "docs" / "components.md").read_text(encoding="utf-8")
DICE_CODE = PAGE_TEXT.split("```python\n")[1].split("```")[0]


@asynccontextmanager
async def run_component(
    home: Path, code: str = DICE_CODE, name: str = "dice"
) -> AsyncIterator[ForkedProcess]:
    """Run `code`, and wait for its port file."""
    old = PortFile.for_component(home, name).read_port()
    process = start_python(code, home, stderr=PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            while PortFile.for_component(home, name).read_port() in (None, old):
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.01)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_until_ended(process: ForkedProcess) -> tuple[int | None, str]:
    async with asyncio.timeout(PATIENCE):
        _, output = await process.communicate()
    return process.returncode, output.decode()


@asynccontextmanager
async def open_abandoned_client(home: Path) -> AsyncIterator[Client]:
    """A client whose server may be gone when it closes."""
    try:
        async with Client(build_url(home, "/mcp")) as client:
            yield client
    except* httpx2.TransportError:
        pass


async def wait_for_file(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not path.exists():
            await asyncio.sleep(0.01)


def build_url(home: Path, path: str, name: str = "dice") -> str:
    return f"http://127.0.0.1:{PortFile.for_component(home, name).read_port()}{path}"


async def fetch_health(home: Path) -> object:
    async with (
        aiohttp.ClientSession() as session,
        session.get(build_url(home, "/health")) as response,
    ):
        return await response.json()


@pytest.mark.req("component.page")
@pytest.mark.req("component.mcp")
async def test_the_page_of_code_in_the_docs_is_a_component_whose_tools_can_be_called(
    home: Path,
) -> None:
    environment = {**os.environ, "CRABTALK_HOME": str(home)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DICE_CODE, env=environment)
    try:
        await wait_for_file(home / "run" / "dice.port")
        async with Client(build_url(home, "/mcp")) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["roll"]
            result = await client.call_tool("roll", {"sides": 1, "times": 3})
    finally:
        process.terminate()
        await process.wait()
    assert result.structured_content == {"result": [1, 1, 1]}
    assert process.returncode == 0


@pytest.mark.req("component.port_file")
async def test_the_port_file_is_a_port_on_loopback_and_a_line_end(home: Path) -> None:
    async with run_component(home):
        text = (home / "run" / "dice.port").read_text()
        assert re.fullmatch(r"\d+\n", text)
        table = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{int(text):04X} 00000000:0000 0A" in table  # 127.0.0.1, listening
        assert f" 00000000:{int(text):04X} " not in table
        assert sorted(path.name for path in (home / "run").iterdir()) == ["dice.lock", "dice.port"]
        assert (home / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.req("component.health")
async def test_health_reports_the_name_and_pid(home: Path) -> None:
    async with run_component(home) as process:
        assert await fetch_health(home) == {"name": "dice", "status": "ok", "pid": process.pid}


@pytest.mark.req("component.mcp.origin")
async def test_a_web_page_cannot_call_tools(home: Path) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    async with run_component(home), aiohttp.ClientSession() as session:
        for wrong in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            both = {**headers, **wrong}
            async with session.post(build_url(home, "/mcp"), json=call, headers=both) as response:
                assert response.status in (403, 421)


@pytest.mark.req("component.port_file.removed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_removes_the_port_file_and_ends_it_cleanly(
    home: Path, number: signal.Signals
) -> None:
    async with run_component(home) as process:
        process.send_signal(number)
        code, output = await wait_until_ended(process)
    assert code == 0, output
    assert "dice has stopped" in output
    assert not (home / "run" / "dice.port").exists()


@pytest.mark.req("component.port_file.removed")
async def test_a_port_file_of_another_process_stays(home: Path) -> None:
    async with run_component(home) as process:
        (home / "run" / "dice.port").write_text("1\n")
        process.terminate()
        await wait_until_ended(process)
    assert (home / "run" / "dice.port").read_text() == "1\n"


INITIALIZE_REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "listener", "version": "1"},
    },
}


@pytest.mark.req("component.stop")
async def test_a_connected_client_does_not_keep_it_from_stopping(home: Path) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    async with (
        run_component(home) as process,
        aiohttp.ClientSession(headers=headers) as session,
        session.post(build_url(home, "/mcp"), json=INITIALIZE_REQUEST) as hello,
    ):
        session_id = {"Mcp-Session-Id": hello.headers["Mcp-Session-Id"]}
        async with session.get(build_url(home, "/mcp"), headers=session_id) as listening:
            assert listening.content_type == "text/event-stream"
            process.terminate()
            code, output = await wait_until_ended(process)
    assert code == 0, output


SLOW_CODE = """
import asyncio, pathlib, os
from mcp.server import MCPServer
from crabtalk.service import run_mcp

server = MCPServer("dice")

@server.tool()
async def wait() -> str:
    pathlib.Path(os.environ["CRABTALK_HOME"], "waiting").touch()
    await asyncio.sleep(SECONDS)
    return "done"

run_mcp(server)
"""


@pytest.mark.req("component.stop")
async def test_a_running_call_may_finish(home: Path) -> None:
    code = SLOW_CODE.replace("SECONDS", "1")
    async with run_component(home, code) as process, open_abandoned_client(home) as client:
        await client.list_tools()  # otherwise it asks for their schemas after the call
        call = asyncio.ensure_future(client.call_tool("wait"))
        await wait_for_file(home / "waiting")
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            result = await call
    assert "done" in str(result.content)


@pytest.mark.req("component.stop")
@pytest.mark.clock
async def test_a_second_signal_does_not_wait_for_a_call(home: Path) -> None:
    code = SLOW_CODE.replace("SECONDS", "600")
    async with run_component(home, code) as process, open_abandoned_client(home) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await wait_for_file(home / "waiting")
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            while (home / "run" / "dice.port").exists():
                await asyncio.sleep(0.01)
        start = time.monotonic()
        process.terminate()
        await wait_until_ended(process)
        assert time.monotonic() - start < GRACE_SECONDS
        call.cancel()
        await asyncio.wait([call])


@pytest.mark.req("component.alone")
async def test_a_second_process_of_the_same_name_exits_with_an_error(home: Path) -> None:
    async with run_component(home) as process:
        before = (home / "run" / "dice.port").read_bytes()
        status, output = await wait_until_ended(start_python(DICE_CODE, home, stderr=PIPE))
        assert status == 1
        assert output == f"dice: dice already runs in {home} (pid {process.pid}); stop it first\n"
        assert (home / "run" / "dice.port").read_bytes() == before
        assert await fetch_health(home) == {"name": "dice", "status": "ok", "pid": process.pid}


@pytest.mark.req("component.alone")
async def test_components_with_different_names_run_side_by_side(home: Path) -> None:
    other_code = DICE_CODE.replace('MCPServer("dice")', 'MCPServer("bones")')
    async with run_component(home), run_component(home, other_code, "bones"):
        assert (
            PortFile.for_component(home, "bones").read_port()
            != PortFile.for_component(home, "dice").read_port()
        )


@pytest.mark.req("component.killed")
async def test_killed_and_restarted_it_is_reachable_at_its_new_port(home: Path) -> None:
    async with run_component(home) as process:
        process.kill()
        await process.wait()
        old = PortFile.for_component(home, "dice")
        port = old.read_port()
        assert port is not None  # the killed process left the file behind
        assert not old.is_listening()
    async with run_component(home) as process:
        assert PortFile.for_component(home, "dice").read_port() != port
        assert await fetch_health(home) == {"name": "dice", "status": "ok", "pid": process.pid}
        async with Client(build_url(home, "/mcp")) as client:
            assert (await client.call_tool("roll", {"sides": 1})).structured_content


@pytest.mark.req("component.log")
async def test_its_log_is_in_the_home_and_on_stderr(home: Path) -> None:
    code = DICE_CODE.replace(
        "    run_mcp(server)",
        "    import logging, threading\n"
        "    def talk():\n"
        "        logging.getLogger('dice').info('two\\nlines')\n"
        "    threading.Timer(0.1, talk).start()\n"
        "    run_mcp(server)",
    )
    log = home / "logs" / "dice.log"
    async with run_component(home, code) as process:
        async with asyncio.timeout(PATIENCE):
            while "two" not in log.read_text():
                await asyncio.sleep(0.01)
        process.terminate()
        _, output = await wait_until_ended(process)
    lines = log.read_text().splitlines()
    assert lines == output.splitlines()
    start = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +\S+: ")
    assert all(start.match(line) for line in lines)
    assert any(line.endswith(r"dice: two\nlines") for line in lines)
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("component.log")
async def test_with_stderr_sent_to_the_log_each_line_is_written_once(home: Path) -> None:
    log = home / "logs" / "dice.log"
    log.parent.mkdir(parents=True)
    with log.open("ab") as file:
        process = start_python(DICE_CODE, home, stderr=file.fileno())
    try:
        async with asyncio.timeout(PATIENCE):
            while "is ready" not in log.read_text():
                await asyncio.sleep(0.01)
    finally:
        process.terminate()
        await process.wait()
    assert log.read_text().count("is ready") == 1


@pytest.mark.req("component.name")
@pytest.mark.parametrize("name", ["My Server", "../escape", "crabtalk", ""])
async def test_a_name_that_cannot_be_a_port_file_is_refused(home: Path, name: str) -> None:
    code = DICE_CODE.replace('MCPServer("dice")', f"MCPServer({json.dumps(name or ' ')})")
    status, output = await wait_until_ended(start_python(code, home, stderr=PIPE))
    assert status == 1
    assert "take" in output
    assert "Traceback" not in output
    assert not home.exists()


@pytest.mark.req("component.light")
def test_importing_the_package_loads_neither_the_sdk_nor_a_web_framework() -> None:
    code = "import sys, crabtalk.service; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"mcp", "aiohttp", "starlette", "uvicorn", "pydantic", "msgspec", "xml", "plistlib"}
    assert not heavy & set(loaded)
    assert not any(name.startswith(("crabtalk.daemon", "crabtalk.runtime")) for name in loaded)
