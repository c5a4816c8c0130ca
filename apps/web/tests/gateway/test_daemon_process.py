"""The daemon as a separate process, killed with -9 while it works."""

from functools import partial
from pathlib import Path

import pytest

from apps.web.tests.gateway.device_client import (
    check_order,
    list_event_tags,
    list_texts,
    list_turn_statuses,
    open_device,
)
from apps.web.tests.gateway.web_gateway_world import pair_with_device, start_gateway, stop_gateway
from crabtalk_web.gateway import GatewayConfig, WebFolder
from crabtalk_web.relay import RelayConfig, RelayServer
from crabtalk_web.stream import Envelope, ServiceEvent, ToolCallEnd
from tests.crash.launched_daemon import prepare_home
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.model_server import model_server

# What the agent is doing when the daemon is killed, and what is shown of it.
MOMENTS = {
    "turn-start": "!hang",
    "tool-call-start": '!say look {n}\n!tool bash {{"command": "sleep 20"}}',
    "tool-call-end": '!say look {n}\n!tool bash {{"command": "echo first"}}\n!then\n!say b\n!hang',
}


@pytest.mark.timeout(120)
@pytest.mark.req("gateway.daemon_killed")
async def test_turns_of_a_killed_daemon_are_closed_and_the_next_are_complete(
    tmp_path: Path,
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    async with (
        model_server() as model,
        RelayServer(RelayConfig(tmp_path / "relay", port=0, durability="os")) as relay,
        open_device(relay.url) as device,
    ):
        prepare_home(home, model)
        daemon = CrabtalkdProcess(home)
        credentials = await pair_with_device(device, relay.url)
        WebFolder(home).prepare()
        try:
            await daemon.start()
            _, gateway = await start_gateway(home, credentials, GatewayConfig(cwd=str(work)))
            session = await device.wait_for_session()
            for number, (moment, script) in enumerate(MOMENTS.items()):
                await device.send_text(session, script.format(n=number))
                await device.wait_for_envelopes(session, partial(is_at, moment))
                await daemon.kill()
                envelopes = check_order(await device.wait_for_envelopes(session, is_closed))
                assert list_turn_statuses(envelopes)[-1] == "failed"
                lines = [e.ev.text for e in envelopes if isinstance(e.ev, ServiceEvent)]
                assert "The connection to the daemon was lost" in lines[-1]
                await device.send_text(session, f"!say answer {number}")
                await daemon.start()
                await device.wait_for_envelopes(session, partial(has_said, f"answer {number}"))
            envelopes = check_order(await device.wait_for_envelopes(session, is_closed))
            texts = [text for text in list_texts(envelopes) if text != "b"]
            assert texts == ["answer 0", "look 1", "answer 1", "look 2", "answer 2"]
            assert list_turn_statuses(envelopes).count("completed") == len(MOMENTS)
            assert list_texts(envelopes, "user") == []
            results = [e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd)]
            assert sum("first" in result for result in results) == 1
            await stop_gateway(gateway)
        finally:
            await daemon.kill()


def is_at(kind: str, envelopes: list[Envelope]) -> bool:
    return list_event_tags(envelopes)[-1:] == [kind]


def is_closed(envelopes: list[Envelope]) -> bool:
    return is_at("turn-end", envelopes)


def has_said(text: str, envelopes: list[Envelope]) -> bool:
    return text in list_texts(envelopes) and is_closed(envelopes)
