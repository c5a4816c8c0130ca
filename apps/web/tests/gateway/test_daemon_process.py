"""The daemon as a process of its own, killed with -9 while it works."""

from pathlib import Path

import pytest

from apps.web.tests.gateway.phone import endings, in_order, kinds, phone, texts
from apps.web.tests.gateway.world import let_in, started, stopped
from crabtalk_web.gateway import GatewayConfig, Store
from crabtalk_web.relay import Relay, RelayConfig
from crabtalk_web.stream import Envelope, Service, ToolCallEnd
from tests.crash.process import prepare
from tests.daemon.child import Child
from tests.daemon.served import calling
from tests.model_server import model_server

WORKING = '!say to begin with\n!tool bash {"command": "echo first"}\n!then\n!say then\n!hang'


@pytest.mark.timeout(120)
@pytest.mark.req("gateway.daemon_killed")
async def test_a_turn_of_a_daemon_that_was_killed_is_closed_and_the_next_one_is_whole(
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
            await device.say(session, WORKING)
            await device.until(session, lambda found: kinds(found)[-1:] == ["tool-call-end"])
            await daemon.kill()
            envelopes = in_order(await device.until_ended(session))
            assert endings(envelopes) == ["failed"]
            assert "lost" in [e.ev.text for e in envelopes if isinstance(e.ev, Service)][-1]
            assert texts(envelopes)[0] == "to begin with"
            await device.say(session, calling([("bash", {"command": "echo second"})]))
            await daemon.start()
            envelopes = in_order(await device.until(session, is_done))
            assert texts(envelopes)[-1] == "done"
            assert texts(envelopes).count("to begin with") == 1
            assert set(endings(envelopes)[:-1]) == {"failed"}
            assert texts(envelopes, "user") == []
            results = [e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd)]
            assert sum("first" in result for result in results) == 1
            assert sum("second" in result for result in results) == 1
            await stopped(gateway)
        finally:
            await daemon.kill()


def is_done(envelopes: list[Envelope]) -> bool:
    return endings(envelopes)[-1:] == ["completed"]
