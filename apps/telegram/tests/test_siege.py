"""Killed at any moment, with its daemon, and cut off by the network, it loses nothing."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.telegram.tests.bot_api import Fault, bot_api
from apps.telegram.tests.command import COMMAND
from crabtalk.component.gateway import write_settings
from tests.component.gateway.besieged_daemon import besieged_daemon
from tests.component.gateway.siege import Report, Town, siege
from tests.model_server import model_server

pytestmark = [pytest.mark.one_loop, pytest.mark.req("telegram.kill")]

CHATS, BURSTS = ("101", "102", "103"), "200"
CUTS = (Fault(0), Fault(0, is_done=True), Fault(502), Fault(429, retry_after=1))


async def besieged(path: Path, *, rounds: int, seed: int) -> Report:
    async with bot_api() as api, model_server() as model, besieged_daemon(path, model) as daemon:
        write_settings(
            daemon.home / "config" / "telegram.toml",
            {"token": api.token, "base_url": api.url, "allowed_users": [*CHATS, BURSTS]},
        )

        def cut(chance: random.Random) -> None:
            api.fail(chance.choice(("sendMessage", "sendDocument")), chance.choice(CUTS))

        def files(chat: str) -> list[tuple[str, bool]]:
            return [(m.file[1], bool(m.text)) for m in api.of(chat) if m.file is not None]

        town = Town(
            daemon=daemon,
            journal=daemon.home / "telegram" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: COMMAND.running(daemon.home),
            says=api.says,
            texts=api.texts,
            files=files,
            sender="tg:{}".format,
            asked=lambda: api.calls["getUpdates"],
            is_read=lambda: not api.waiting,
            cut=cut,
        )
        return await siege(town, rounds=rounds, seed=seed)


@pytest.mark.timeout(240)
async def test_three_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await besieged(tmp_path, rounds=3, seed=12)
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 3
    assert report.said >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_three_hundred_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = await besieged(tmp_path, rounds=300, seed=34)
    record_property("report", str(report))
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 300
