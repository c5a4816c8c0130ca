"""The relay cannot read what it stores: no name, title, text or file name is in its files."""

import io
from pathlib import Path

import pytest
from PIL import Image as Pictures

from apps.web.tests.gateway.device_client import list_event_tags, list_texts, open_device
from apps.web.tests.gateway.killable_process import build_gateway_process, build_relay_process
from apps.web.tests.gateway.send_file_tool import WebSendFileHook
from apps.web.tests.gateway.web_gateway_world import pair_with_device
from crabtalk_web.gateway import WebFolder
from tests.daemon.in_process_daemon import run_daemon

CANARIES = {
    "agent": "zcanaryagent",
    "title": "zcanarytitle",
    "asked": "zcanaryasked",
    "answered": "zcanaryanswered",
    "thought": "zcanarythought",
    "tool": "zcanaryargument",
    "file": "zcanaryfile",
    "folder": "zcanaryfolder",
    "inside": "zcanaryinside",
}


@pytest.mark.one_loop
@pytest.mark.req("gateway.canary")
async def test_no_text_or_name_is_readable_at_the_relay(tmp_path: Path) -> None:
    words = CANARIES
    work = tmp_path / words["folder"]
    work.mkdir()
    data = io.BytesIO()
    Pictures.new("RGB", (9, 9)).save(data, "PNG")
    (work / f"{words['file']}.png").write_bytes(data.getvalue())
    (work / f"{words['file']}.txt").write_text(words["inside"] * 50)
    agents = {words["agent"]: 'prompt = "You are a bird."\n'}
    relay = build_relay_process(tmp_path / "relay", tmp_path / "relay.log")
    await relay.start()
    url = await relay.read_line()
    try:
        async with (
            run_daemon(tmp_path, agents=agents, hooks={"sending": WebSendFileHook()}) as daemon,
            daemon.client() as client,
            open_device(url) as device,
        ):
            WebFolder(daemon.home).prepare()
            (await pair_with_device(device, url)).save(WebFolder(daemon.home).credentials_file)
            (daemon.home / "config").mkdir(exist_ok=True)
            (daemon.home / "config" / "web.toml").write_text(f'cwd = "{work}"\n')
            gateway = build_gateway_process(daemon.home, tmp_path / "gateway.log")
            await gateway.start()
            try:
                session = await device.wait_for_session(words["agent"])
                script = "\n".join(
                    [
                        f"!think {words['thought']}",
                        f'!tool recall {{"query": "{words["tool"]}"}}',
                        f'!tool send_file {{"path": "{words["file"]}.png"}}',
                        f'!tool send_file {{"path": "{words["file"]}.txt"}}',
                        f'!tool set_title {{"title": "{words["title"]}"}}',
                        "!then",
                        f"!say {words['answered']}",
                    ]
                )
                await device.send_text(session, f"{words['asked']}\n{script}")
                ref = await device.upload(session, words["inside"].encode())
                event = {"t": "file", "ref": ref, "name": f"{words['file']}.doc", "size": 9}
                await device.send_body(
                    session, {"role": "session", "content": device.build_envelope(event)}
                )
                await device.send_text(session, "!say and that was it")
                envelopes = await device.wait_for_envelopes(
                    session,
                    lambda envelopes: (
                        list_event_tags(envelopes).count("file") == 3
                        and list_event_tags(envelopes).count("turn-end") >= 2
                    ),
                )
                # The text did pass through the relay, sealed.
                assert words["answered"] in list_texts(envelopes)
                titled = await client.list_conversations()
                assert titled.conversations[0].title == words["title"]
            finally:
                await gateway.kill(15)
    finally:
        await relay.kill(15)
    relay_files = [path for path in tmp_path.rglob("*") if path.is_file() and "relay" in str(path)]
    assert any(path.suffix == ".db" for path in relay_files)
    assert any("blobs" in path.parts for path in relay_files)
    for path in relay_files:
        content = path.read_bytes().lower()
        for what, word in words.items():
            assert word.encode() not in content, f"{what} in {path}"
            assert word not in path.name
    log = (tmp_path / "gateway.log").read_text()
    assert words["asked"] not in log
    assert words["answered"] not in log
