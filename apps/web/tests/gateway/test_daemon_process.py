"""The daemon as a process of its own, killed with -9 while it works."""

from functools import partial
from pathlib import Path

import pytest

from apps.web.tests.gateway.phone import endings, in_order, kinds, phone, texts
from apps.web.tests.gateway.world import let_in, started, stopped
from crabtalk_web.gateway import GatewayConfig, Store
from crabtalk_web.relay import Relay, RelayConfig
from crabtalk_web.stream import Envelope, Service, ToolCallEnd
from tests.crash.process import prepare
from tests.daemon.child import Child
from tests.model_server import model_server

# What the agent is at, and what has come of it when the daemon is killed.
MOMENTS = {
    "turn-start": "!hang",
    "tool-call-start": '!say look {n}\n!tool bash {{"command": "sleep 20"}}',
    "tool-call-end": '!say look {n}\n!tool bash {{"command": "echo first"}}\n!then\n!say b\n!hang',
}


@pytest.mark.timeout(120)
@pytest.mark.req("gateway.daemon_killed")
async def test_turns_of_a_daemon_that_was_killed_are_closed_and_the_next_ones_are_whole(
    tmp_path: Path,
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    async with (
        model_server() as model,
        Relay(RelayConfig(tmp_path / "relay", port=0, durability="os")) as relay,
        phone(relay.url) as device,
    ):
        prepare(home, model)
        daemon = Child(home)
        credentials = await let_in(device, relay.url)
        Store(home).prepare()
        try:
            await daemon.start()
            _, gateway = await started(home, credentials, GatewayConfig(cwd=str(work)))
            session = await device.session()
            for number, (moment, script) in enumerate(MOMENTS.items()):
                await device.say(session, script.format(n=number))
                await device.until(session, partial(is_at, moment))
                await daemon.kill()
                envelopes = in_order(await device.until(session, is_closed))
                assert endings(envelopes)[-1] == "failed"
                lines = [e.ev.text for e in envelopes if isinstance(e.ev, Service)]
                assert "The connection to the daemon was lost" in lines[-1]
                await device.say(session, f"!say answer {number}")
                await daemon.start()
                await device.until(session, partial(has_said, f"answer {number}"))
            envelopes = in_order(await device.until(session, is_closed))
            said = [text for text in texts(envelopes) if text != "b"]
            assert said == ["answer 0", "look 1", "answer 1", "look 2", "answer 2"]
            assert endings(envelopes).count("completed") == len(MOMENTS)
            assert texts(envelopes, "user") == []
            results = [e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd)]
            assert sum("first" in result for result in results) == 1
            await stopped(gateway)
        finally:
            await daemon.kill()


def is_at(kind: str, envelopes: list[Envelope]) -> bool:
    return kinds(envelopes)[-1:] == [kind]


def is_closed(envelopes: list[Envelope]) -> bool:
    return is_at("turn-end", envelopes)


def has_said(text: str, envelopes: list[Envelope]) -> bool:
    return text in texts(envelopes) and is_closed(envelopes)
