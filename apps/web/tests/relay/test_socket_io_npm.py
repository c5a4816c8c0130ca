"""npm's socket.io-client, which the web's apps and terminals use, against our side of the wire."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from apps.web.tests.relay.relay_world import PATIENCE, open_relay_world
from apps.web.tests.sealing.node_process import EXECUTABLE, NPM

pytestmark = [pytest.mark.interop, pytest.mark.one_loop]
SCRIPT = Path(__file__).with_name("socket_io.cjs")


@pytest.mark.req("relay.socket.npm")
async def test_a_client_from_npm_connects_hears_changes_and_calls(tmp_path: Path) -> None:
    assert EXECUTABLE is not None, "node is not installed"
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        process = await asyncio.create_subprocess_exec(
            EXECUTABLE,
            str(SCRIPT),
            *(there.url, ada.token, session),
            env={**os.environ, "NODE_PATH": str(NPM)},
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(2 * PATIENCE):
            out, _ = await process.communicate()
        told = json.loads(out)
        assert told["refused"] == "Invalid authentication token"
        assert (told["sent"]["result"], told["sent"]["seq"]) == ("success", 1)
        assert told["message"]["message"]["localId"] == "from node"
        assert told["message"]["message"]["content"] == {"t": "encrypted", "c": "c2VhbGVk"}
        assert told["changed"]["result"] == "success"
        assert (told["late"]["result"], told["late"]["version"]) == ("version-mismatch", 1)
        assert told["unknown"]["result"] == "error"
        assert told["metadata"]["metadata"] == {"value": "c2VhbGVk", "version": 1}
        assert told["registered"] == {"method": f"{session}:echo"}
        assert told["called"] == {"ok": True, "result": "abcdabcd"}
        assert told["large"]["seq"] == 2
        assert len(await ada.read_messages(session)) == 2
