"""It loses nothing, even if it and its daemon are killed and the network cuts its messages."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.telegram.tests.bot_api_server import TelegramFault, run_bot_api
from apps.telegram.tests.telegram_command import TELEGRAM_COMMAND
from crabtalk.gateway import write_settings
from tests.gateway.kill_scenario import GatewayKillReport, KillScenarioSetup, run_kill_scenario
from tests.gateway.restartable_daemon import run_restartable_daemon
from tests.model_server import model_server

pytestmark = [pytest.mark.one_loop, pytest.mark.req("telegram.kill")]

CHATS, BURSTS = ("101", "102", "103"), "200"
CUTS = (
    TelegramFault(0),
    TelegramFault(0, is_done=True),
    TelegramFault(502),
    TelegramFault(429, retry_after=1),
)


async def run_with_kills(path: Path, *, rounds: int, seed: int) -> GatewayKillReport:
    async with (
        run_bot_api() as api,
        model_server() as model,
        run_restartable_daemon(path, model) as daemon,
    ):
        write_settings(
            daemon.home / "config" / "telegram.toml",
            {"token": api.token, "base_url": api.url, "allowed_users": [*CHATS, BURSTS]},
        )

        def cut(chance: random.Random) -> None:
            api.inject_faults(chance.choice(("sendMessage", "sendDocument")), chance.choice(CUTS))

        def files(chat: str) -> list[tuple[str, bool]]:
            return [(m.file[1], bool(m.text)) for m in api.messages_in(chat) if m.file is not None]

        setup = KillScenarioSetup(
            daemon=daemon,
            journal=daemon.home / "telegram" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: TELEGRAM_COMMAND.run_gateway(daemon.home),
            says=api.add_message,
            texts=api.texts_in,
            files=files,
            sender="tg:{}".format,
            asked=lambda: api.calls["getUpdates"],
            is_read=lambda: not api.pending,
            cut=cut,
        )
        return await run_kill_scenario(setup, rounds=rounds, seed=seed)


@pytest.mark.timeout(240)
async def test_three_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await run_with_kills(tmp_path, rounds=3, seed=12)
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 3
    assert report.words_sent >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_three_hundred_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = await run_with_kills(tmp_path, rounds=300, seed=34)
    record_property("report", str(report))
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 300
