"""npm's socket.io-client, which web apps and terminals use, with our server."""

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
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        process = await asyncio.create_subprocess_exec(
            EXECUTABLE,
            str(SCRIPT),
            *(world.url, ada.token, session),
            env={**os.environ, "NODE_PATH": str(NPM)},
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(2 * PATIENCE):
            out, _ = await process.communicate()
        result = json.loads(out)
        assert result["refused"] == "Invalid authentication token"
        assert (result["sent"]["result"], result["sent"]["seq"]) == ("success", 1)
        assert result["message"]["message"]["localId"] == "from node"
        assert result["message"]["message"]["content"] == {"t": "encrypted", "c": "c2VhbGVk"}
        assert result["changed"]["result"] == "success"
        assert (result["late"]["result"], result["late"]["version"]) == ("version-mismatch", 1)
        assert result["unknown"]["result"] == "error"
        assert result["metadata"]["metadata"] == {"value": "c2VhbGVk", "version": 1}
        assert result["registered"] == {"method": f"{session}:echo"}
        assert result["called"] == {"ok": True, "result": "abcdabcd"}
        assert result["large"]["seq"] == 2
        assert len(await ada.read_messages(session)) == 2
