"""The original command line from npm with our relay: paired by QR code, a whole turn, a call.

It starts its own daemon, which is stopped with it.
"""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import RelayUser, RelayWorld, open_relay_world
from apps.web.tests.sealing.node_process import NPM
from crabtalk_web.sealing import (
    DataSealer,
    approve_with_content_key,
    from_base64,
    parse_link_key,
    to_base64,
    unwrap_key,
)

HAPPY = NPM / ".bin" / "happy"
AGENT = Path(__file__).with_name("acp_agent.py")
PATIENCE = 90
pytestmark = [
    pytest.mark.interop,
    pytest.mark.one_loop,
    pytest.mark.timeout(3 * PATIENCE),
    pytest.mark.skipif(not HAPPY.exists(), reason="happy is not installed from npm: 900 MB"),
]


class HappyTerminal:
    """A terminal for a program, with its output and a way to press keys."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._shown = ""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            self._shown += os.read(self._ours, 65536).decode(errors="replace")
        self._news.set()

    async def wait_for(self, pattern: str) -> "re.Match[str]":
        while (found := re.search(pattern, self._shown)) is None:
            self._news.clear()
            await self._news.wait()
        return found

    async def press(self, keys: bytes) -> None:
        """Press a key once the program reads keys instead of lines: earlier ones would be lost."""
        while termios.tcgetattr(self.theirs)[3] & termios.ICANON:
            await asyncio.sleep(0.02)
        os.write(self._ours, keys)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self.theirs)


def build_environment(world: RelayWorld, home: Path) -> dict[str, str]:
    urls = {"HAPPY_SERVER_URL": world.url, "HAPPY_WEBAPP_URL": world.url}
    return {**os.environ, **urls, "HAPPY_HOME_DIR": str(home), "HOME": str(home), "TERM": "xterm"}


async def pair_happy(world: RelayWorld, ada: RelayUser, home: Path) -> None:
    """`happy auth login`, and a phone that scans the code on its screen."""
    terminal = HappyTerminal()
    process = await asyncio.create_subprocess_exec(
        *(str(HAPPY), "auth", "login"),
        env=build_environment(world, home),
        cwd=home,
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
        start_new_session=True,
    )
    try:
        await terminal.wait_for("(?i)mobile")
        await terminal.press(b"\r")
        key = parse_link_key((await terminal.wait_for(r"happy://terminal\?[\w-]{43}"))[0])
        assert key is not None
        status = await ada.get("/v1/auth/request/status", publicKey=to_base64(key))
        assert status.ok == {"status": "pending", "supportsV2": True}
        response = approve_with_content_key(key, ada.secret.content_keys.public)
        await ada.post("/v1/auth/response", publicKey=to_base64(key), response=response)
        await terminal.wait_for("Authentication successful")
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        terminal.close()


@asynccontextmanager
async def run_happy_agent(world: RelayWorld, home: Path) -> AsyncIterator[None]:
    """`happy acp` with our agent, until the context is left."""
    with (home / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(HAPPY), "acp", "--", sys.executable, str(AGENT)),
            env=build_environment(world, home),
            cwd=home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        # The process starts another one.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(json.loads((home / "daemon.state.json").read_text())["pid"], signal.SIGKILL)


def read_event(body: Any) -> Any:
    return body["content"].get("ev", {}) if body and body["role"] == "session" else {}


@pytest.mark.req("relay.real_cli")
async def test_the_real_command_line_runs_a_turn_through_our_relay(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path / "data") as world:
        ada = await world.create_user()
        phone = await ada.connect()
        home = tmp_path / "happy"
        home.mkdir()
        async with asyncio.timeout(PATIENCE):
            await pair_happy(world, ada, home)
        (device,) = [
            each for each in (await ada.get("/v1/devices")).ok["devices"] if not each["current"]
        ]
        assert (device["kind"], device["client"][:4]) == ("terminal", "cli/")
        async with asyncio.timeout(PATIENCE), run_happy_agent(world, home):
            session_id = await phone.wait_for(
                lambda name, it: name == "update" and it["body"]["t"] == "new-session"
            )
            session = session_id["body"]["id"]
            wrapped = from_base64(session_id["body"]["dataEncryptionKey"])
            assert wrapped is not None
            key = unwrap_key(ada.secret.content_keys.secret, wrapped)
            assert key is not None
            sealer = DataSealer(key)
            assert sealer.open(session_id["body"]["metadata"])["flavor"] == "acp"
            await phone.wait_for_ephemeral("activity", id=session)

            text = {"type": "text", "text": "hello crab"}
            sealed = sealer.seal({"role": "user", "content": text, "meta": {"sentFrom": "web"}})
            message = {"content": sealed, "localId": str(uuid.uuid4())}
            await ada.post(f"/v3/sessions/{session}/messages", messages=[message])

            def is_end(name: str, it: Any) -> bool:
                if name != "update" or it["body"]["t"] != "new-message":
                    return False
                return bool(
                    read_event(sealer.open(it["body"]["message"]["content"]["c"])).get("status")
                )

            await phone.wait_for(is_end)
            read = await ada.read_messages(session)
            assert [each["seq"] for each in read] == list(range(1, len(read) + 1))
            events = [read_event(sealer.open(each["content"]["c"])) for each in read]
            kinds = [each["t"] for each in events if each]
            assert kinds[0] == "turn-start"
            assert {"text", "tool-call-start", "tool-call-end"} <= set(kinds)
            assert {"HELLO CRAB", "Hm."} <= {each.get("text") for each in events}
            assert {"t": "turn-end", "status": "completed"} in events

            call = {"method": f"{session}:abort", "params": sealer.seal({})}
            assert (await phone.call("rpc-call", call))["ok"]
            (machine,) = (await ada.get("/v1/machines")).ok
            assert machine["metadataVersion"] >= 1
