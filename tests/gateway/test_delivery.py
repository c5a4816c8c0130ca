"""Delivery: each message has a key, and the result of a run comes from the run itself."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.client import connect
from crabtalk.gateway import Chat, GatewayError, GatewaySettings, Person, Update
from crabtalk.gateway.daemon_monitor import DAEMON_TOO_OLD, DaemonMonitor
from crabtalk.gateway.gateway_context import MAX_KEY_BYTES, GatewayContext
from crabtalk.gateway.journal import GatewayJournal
from crabtalk.gateway.sender_files import SenderFiles
from crabtalk.protocol import PROTOCOL_VERSION, Server, wire
from crabtalk.runtime import ToolDispatch, ToolError
from crabtalk.transport import RunFiles
from tests.daemon.in_process_daemon import script_tool_calls
from tests.gateway.gateway_world import PIGEON_MODULE, GatewayWorld, open_gateway_world
from tests.gateway.pigeon_server import PigeonServer
from tests.gateway.test_recovery import (
    make_received,
    make_request,
    send_message,
    wait_until_recovered,
    write_journal,
)
from tests.scripted_server import open_listener

pytestmark = pytest.mark.one_loop

# Failures as tools, servers and daemons word them, and one that reads like a success.
FAILURES = (
    "permission denied: report.txt",
    "interrupted: the run was cut off before this call finished",
    "report.txt is not a file under the folder; copy it there",
    "bash failed: exit status 1",
    "timed out after 30 s",
    "mcp: the server github does not answer",
    "Fehler: Datei nicht gefunden",
    "sent",
)


def make_script(failure: str) -> str:
    """Sends a file twice; the first call fails with this text."""
    sends = [("send_file", {"path": "report.txt", "failure": failure})]
    return script_tool_calls(sends, [("send_file", {"path": "report.txt", "failure": ""})])


async def send_file(call: ToolDispatch) -> str:
    (call.cwd / "report.txt").write_text("sand")
    failure = call.arguments.partition('"failure": "')[2].rpartition('"')[0]
    if failure:
        raise ToolError(failure)
    return "interrupted: not at all"  # a success that sounds like a failure


def list_file_captions(service: PigeonServer) -> list[str]:
    return [message.text for message in service.messages if message.file]


@pytest.mark.req("gateways.delivery.errors")
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_file_whose_call_failed_is_not_sent_after_a_restart(
    tmp_path: Path, failure: str
) -> None:
    async with open_gateway_world(tmp_path, tools={"send_file": send_file}) as w:
        text = make_script(failure)
        await send_in_folder(w, text)
        write_journal(w, make_received("u1", text), make_request("u1", text))
        await wait_until_recovered(w)
        assert w.server.texts_in() == ["", "done"]
        assert list_file_captions(w.server) == [""]


async def send_in_folder(w: GatewayWorld, text: str) -> None:
    """Send as a process that died would have, in the sender's own directory like gateway turns."""
    assert w.daemon is not None
    folder = await SenderFiles(w.home, PIGEON_MODULE.Pigeon(None, w.settings)).prepare_directory(
        "pg:7"
    )
    async with w.daemon.client() as client:
        await client.send("crab", text, sender="pg:7", cwd=str(folder), key="pg:7:u1")


@pytest.mark.req("gateways.delivery.errors")
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_call_that_failed_is_shown_as_failed(tmp_path: Path, failure: str) -> None:
    async def dig(call: ToolDispatch) -> str:
        raise ToolError(failure)

    async def sift(call: ToolDispatch) -> str:
        return failure

    async with open_gateway_world(tmp_path, tools={"dig": dig, "sift": sift}) as w, w.run_gateway():
        assert w.daemon is not None
        w.server.add_message("!tool dig {}\n!tool sift {}\n!then\n!wait\n!say Nothing.")
        await w.wait_for_texts("✓ sift ✗ dig")
        w.daemon.model.release()
        await w.wait_for_texts("Nothing.")
        await w.wait_until_idle()


@pytest.mark.req("gateways.delivery.barrier")
async def test_a_restart_begins_no_new_run_to_learn_the_results_of_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_gateway_world(tmp_path) as w:
        assert w.daemon is not None
        await send_message(w, "hello", "u1")
        turn = (make_received("u1", "hello"), make_request("u1", "hello"))
        compaction = (make_received("u2", "/compact"), make_request("u2", "compact", "compact"))
        write_journal(w, *turn, *compaction)
        requests = len(w.daemon.model.requests)
        with caplog.at_level(logging.INFO, "crabtalk.runtime.runtime"):
            await wait_until_recovered(w)
        runs = [record for record in caplog.records if record.getMessage().startswith("run ")]
        assert [record.getMessage() for record in runs] == []
        assert len(w.daemon.model.requests) == requests


@pytest.mark.req("gateways.delivery.keys")
async def test_a_repeated_update_runs_once_even_without_the_journal(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        for _ in range(2):
            async with w.run_gateway():
                w.server.add_message("hello", update="u5")
                await w.server.wait_until(lambda: w.server.texts_in()[-1:] == ["heard: hello"])
                await w.wait_until_idle()
            (w.home / "pigeon" / "journal").unlink()
            w.server.messages.clear()
        assert await w.list_user_messages() == ["hello"]
        assert w.daemon is not None
        assert len(w.daemon.model.requests) == 1


@pytest.mark.req("gateways.delivery.keys")
async def test_a_turn_whose_stream_broke_off_is_followed_again_and_answered_once(
    tmp_path: Path,
) -> None:
    dug, go_on = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        dug.set()
        await go_on.wait()
        return "sand"

    async with (
        open_gateway_world(tmp_path, tools={"dig": dig}) as w,
        run_cuttable_relay(RunFiles.for_home(w.home).socket_path) as cut,
        w.run_gateway(),
    ):
        w.server.add_message("!say I dig.\n!tool dig {}\n!then\n!say Found sand.")
        await dug.wait()
        await w.server.wait_until(lambda: w.server.texts_in() == ["I dig.\n\n⚙ dig"])
        w.server.add_message("deeper")
        await w.server.wait_until(lambda: not w.server.pending)
        cut()
        go_on.set()
        await w.server.wait_until(lambda: "heard: deeper" in "".join(w.server.texts_in()))
        await w.wait_until_idle()
        assert len(await w.list_user_messages()) == 2
        assert "".join(w.server.texts_in()).count("I dig.") == 1


@asynccontextmanager
async def run_cuttable_relay(socket: Path) -> AsyncIterator[Callable[[], None]]:
    """A relay in front of a socket; calling the result cuts all connections, as a network does."""
    behind = socket.with_name("behind.sock")
    socket.rename(behind)
    pumps: set[asyncio.Future[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_daemon = await asyncio.open_unix_connection(behind)
        for item in (pump(reader, to_daemon[1]), pump(to_daemon[0], writer)):
            task = asyncio.ensure_future(item)
            pumps.add(task)
            task.add_done_callback(pumps.discard)

    def cut() -> None:
        for task in pumps:
            task.cancel()

    server = await asyncio.start_unix_server(relay, socket)
    try:
        yield cut
    finally:
        cut()
        server.close()


@given(st.text(max_size=200), st.text(max_size=200))
def test_keys_are_short_and_different_for_each_message(a: str, b: str) -> None:
    one, other = (Update(name, Chat("7"), Person("7", "Ann")) for name in (a, b))
    assert len(make_context().message_key(one).encode()) <= MAX_KEY_BYTES
    assert (make_context().message_key(one) == make_context().message_key(other)) is (a == b)


def make_context() -> GatewayContext:
    service = PIGEON_MODULE.Pigeon(None, GatewaySettings())
    link = DaemonMonitor(connect(home=Path("/nowhere")))
    journal = GatewayJournal(Path("/nowhere/journal"))
    home = SenderFiles(Path("/nowhere"), service)
    return GatewayContext(journal, service, link, home, GatewaySettings(), asyncio.Semaphore())


class OldDaemon(Server):
    """A daemon without support for keys."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=PROTOCOL_VERSION, server_version="0.0.1")


@pytest.mark.req("gateways.delivery.old_daemon")
async def test_a_gateway_does_not_run_with_a_daemon_without_support_for_keys(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        async with open_listener(OldDaemon(), RunFiles.for_home(w.home).socket_path):
            with pytest.raises(GatewayError) as caught:
                async with w.run_gateway():
                    await w.wait_until(lambda: w.task is not None and w.task.done())
        assert str(caught.value) == DAEMON_TOO_OLD
