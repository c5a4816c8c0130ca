"""Killed at any moment, and cut off by the network, it loses nothing and answers nothing twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.telegram.tests.bot_api import Fault
from apps.telegram.tests.command import COMMAND
from apps.telegram.tests.world import world
from crabtalk.component.gateway import write_settings
from tests.component.gateway.siege import Report, Town, dig, siege

pytestmark = [pytest.mark.one_loop, pytest.mark.req("telegram.kill")]

CHATS, BURSTS = ("101", "102", "103"), "200"
CUTS = (Fault(0), Fault(0, is_done=True), Fault(502), Fault(429, retry_after=1))


async def besieged(path: Path, *, rounds: int, seed: int) -> Report:
    async with world(path, tools={"dig": dig}) as w:
        write_settings(
            w.home / "config" / "telegram.toml",
            {"token": w.api.token, "base_url": w.api.url, "allowed_users": [*CHATS, BURSTS]},
        )

        def cut(chance: random.Random) -> None:
            w.api.fail("sendMessage", chance.choice(CUTS))

        town = Town(
            journal=w.home / "telegram" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: COMMAND.running(w.home),
            says=w.api.says,
            texts=w.api.texts,
            heard=lambda chat: w.heard(f"tg:{chat}"),
            asked=lambda: w.api.calls["getUpdates"],
            is_read=lambda: not w.api.waiting,
            cut=cut,
        )
        return await siege(town, rounds=rounds, seed=seed)


@pytest.mark.timeout(240)
async def test_three_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await besieged(tmp_path, rounds=3, seed=12)
    assert report.is_clean, report
    assert report.kills == 3
    assert report.said >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = await besieged(tmp_path, rounds=200, seed=34)
    record_property("report", str(report))
    assert report.is_clean, report
    assert report.kills == 200
