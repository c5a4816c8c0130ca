"""A gateway loses and repeats nothing, even if it and its daemon are killed at any moment."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from crabtalk.gateway import write_settings
from tests.gateway.gateway_command import PIGEON_COMMAND
from tests.gateway.kill_scenario import GatewayKillReport, KillScenarioSetup, run_kill_scenario
from tests.gateway.pigeon_server import PigeonFault, run_pigeon_server
from tests.gateway.restartable_daemon import run_restartable_daemon
from tests.model_server import model_server

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.once.kill")]

CHATS, BURSTS = ("101", "102", "103", "104"), "200"
CUTS = (
    PigeonFault(0),
    PigeonFault(0, is_done=True),
    PigeonFault(502),
    PigeonFault(429, seconds=0.1),
)


async def run_with_kills(path: Path, *, rounds: int, seed: int) -> GatewayKillReport:
    async with (
        run_pigeon_server() as service,
        model_server() as model,
        run_restartable_daemon(path, model) as daemon,
    ):
        write_settings(
            daemon.home / "config" / "pigeon.toml",
            {"token": service.token, "base_url": service.url, "allowed_users": [*CHATS, BURSTS]},
        )

        def cut(chance: random.Random) -> None:
            service.inject_faults(chance.choice(("send", "upload")), chance.choice(CUTS))

        def files(chat: str) -> list[tuple[str, bool]]:
            return [
                (m.file[0], bool(m.text)) for m in service.messages_in(chat) if m.file is not None
            ]

        setup = KillScenarioSetup(
            daemon=daemon,
            journal=daemon.home / "pigeon" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: PIGEON_COMMAND.run_gateway(daemon.home),
            says=service.add_message,
            texts=service.texts_in,
            files=files,
            sender="pg:{}".format,
            asked=lambda: service.calls.count("updates"),
            is_read=lambda: not service.pending,
            cut=cut,
        )
        return await run_kill_scenario(setup, rounds=rounds, seed=seed)


@pytest.mark.timeout(180)
async def test_five_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await run_with_kills(tmp_path, rounds=5, seed=12)
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 5
    assert report.words_sent > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_three_hundred_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = await run_with_kills(tmp_path, rounds=300, seed=34)
    record_property("report", str(report))
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 300
