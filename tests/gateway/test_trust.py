"""A gateway together with the daemon's policy: who is asked, and whose files are read."""

from pathlib import Path

import pytest

from crabtalk.protocol import get_sender_folder
from tests.daemon.in_process_daemon import AGENTS, CONFIG, script_tool_calls
from tests.gateway.gateway_world import open_gateway_world

pytestmark = pytest.mark.one_loop

ASKING = {**AGENTS, "crab": 'prompt = "You are crab."\nmode = "ask"\n'}
RUN = script_tool_calls([("bash", {"command": "touch made-by-crab"})])


@pytest.mark.req("gateways.approval")
async def test_an_owner_of_the_daemon_allows_a_call_in_the_chat(tmp_path: Path) -> None:
    config = CONFIG + '[daemon]\nowners = ["pg:7"]\n'
    async with (
        open_gateway_world(tmp_path, hooks={}, agents=ASKING, config=config) as w,
        w.run_gateway(),
    ):
        w.server.add_message(RUN)
        await w.server.wait_until(lambda: any(message.buttons for message in w.server.messages))
        (message,) = [message for message in w.server.messages if message.buttons]
        assert message.is_literal
        assert "touch made-by-crab" in message.text
        w.server.press_button(message, "Allow")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        assert message.text.endswith("Answer: Allow")
        assert (get_sender_folder(w.home, "pg:7") / "made-by-crab").exists()


@pytest.mark.req("trust.gateways.approval.strangers")
@pytest.mark.req("trust.gateways.files")
async def test_a_stranger_reads_its_own_files_and_is_asked_nothing(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}, agents=ASKING) as w, w.run_gateway():
        w.server.add_message("look", files=[("note.txt", b"low water")])
        await w.server.wait_until(lambda: "note.txt" in "".join(w.server.texts_in()))
        await w.wait_until_idle()
        (path,) = get_sender_folder(w.home, "pg:7").rglob("note.txt")
        w.server.add_message(
            script_tool_calls([("read", {"path": str(path)})], [("bash", {"command": "id"})])
        )
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        w.server.add_message(script_tool_calls([("read", {"path": str(path)})]), "8")
        await w.server.wait_until(lambda: w.server.texts_in("8")[-1:] == ["done"])
        await w.wait_until_idle()
        assert not any(message.buttons for message in w.server.messages)
        read, ran = [text for role, text in await w.list_messages("pg:7") if role == "tool"]
        assert "low water" in read
        assert ran.startswith(("permission denied:", "tool not available:"))
        (reply,) = [text for role, text in await w.list_messages("pg:8") if role == "tool"]
        assert reply.startswith("permission denied:")
