"""Gateways and the daemon's policy together: who is asked, and whose files are read."""

from pathlib import Path

import pytest

from crabtalk.protocol import sender_folder
from tests.component.gateway.world import world
from tests.daemon.served import AGENTS, CONFIG, calling

pytestmark = pytest.mark.one_loop

ASKING = {**AGENTS, "crab": 'prompt = "You are crab."\nmode = "ask"\n'}
RUN = calling([("bash", {"command": "touch made-by-crab"})])


@pytest.mark.req("gateways.approval")
async def test_an_owner_of_the_daemon_allows_a_call_in_the_chat(tmp_path: Path) -> None:
    config = CONFIG + '[daemon]\nowners = ["pg:7"]\n'
    async with world(tmp_path, hooks={}, agents=ASKING, config=config) as w, w.running():
        w.loft.says(RUN)
        await w.loft.until(lambda: any(message.buttons for message in w.loft.messages))
        (shown,) = [message for message in w.loft.messages if message.buttons]
        assert shown.is_literal
        assert "touch made-by-crab" in shown.text
        w.loft.presses(shown, "Allow")
        await w.loft.until(lambda: w.loft.texts()[-1] == "done")
        await w.idle()
        assert shown.text.endswith("Answer: Allow")
        assert (sender_folder(w.home, "pg:7") / "made-by-crab").exists()


@pytest.mark.req("trust.gateways.approval.strangers")
@pytest.mark.req("trust.gateways.files")
async def test_a_stranger_reads_its_own_files_and_is_asked_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}, agents=ASKING) as w, w.running():
        w.loft.says("look", files=[("note.txt", b"low water")])
        await w.loft.until(lambda: "note.txt" in "".join(w.loft.texts()))
        await w.idle()
        (path,) = sender_folder(w.home, "pg:7").rglob("note.txt")
        w.loft.says(calling([("read", {"path": str(path)})], [("bash", {"command": "id"})]))
        await w.loft.until(lambda: w.loft.texts()[-1] == "done")
        w.loft.says(calling([("read", {"path": str(path)})]), "8")
        await w.loft.until(lambda: w.loft.texts("8")[-1:] == ["done"])
        await w.idle()
        assert not any(message.buttons for message in w.loft.messages)
        read, ran = [text for role, text in await w.said("pg:7") if role == "tool"]
        assert "low water" in read
        assert ran.startswith(("permission denied:", "tool not available:"))
        (other,) = [text for role, text in await w.said("pg:8") if role == "tool"]
        assert other.startswith("permission denied:")
