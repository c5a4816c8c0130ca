"""Killed at any moment, a gateway loses nothing and answers nothing twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from crabtalk.component.gateway import write_settings
from tests.component.gateway.command import PIGEON
from tests.component.gateway.loft import Fault
from tests.component.gateway.siege import Report, Town, dig, siege
from tests.component.gateway.world import world

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.once.kill")]

CHATS, BURSTS = ("101", "102", "103", "104"), "200"
CUTS = (Fault(0), Fault(0, is_done=True), Fault(502), Fault(429, seconds=0.1))


async def besieged(path: Path, *, rounds: int, seed: int) -> Report:
    async with world(path, tools={"dig": dig}) as w:
        write_settings(
            w.home / "config" / "pigeon.toml",
            {"token": w.loft.token, "base_url": w.loft.url, "allowed_users": [*CHATS, BURSTS]},
        )

        async def heard(chat: str) -> list[str]:
            try:
                return await w.heard(f"pg:{chat}")
            except ServerError:  # it has not begun
                return []

        def cut(chance: random.Random) -> None:
            w.loft.fail("send", chance.choice(CUTS))

        town = Town(
            journal=w.home / "pigeon" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: PIGEON.running(w.home),
            says=w.loft.says,
            texts=w.loft.texts,
            heard=heard,
            asked=lambda: w.loft.calls.count("updates"),
            is_read=lambda: not w.loft.waiting,
            cut=cut,
        )
        return await siege(town, rounds=rounds, seed=seed)


@pytest.mark.timeout(180)
async def test_five_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await besieged(tmp_path, rounds=5, seed=12)
    assert report.is_clean, report
    assert report.kills == 5
    assert report.said > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_two_hundred_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = await besieged(tmp_path, rounds=200, seed=34)
    record_property("report", str(report))
    assert report.is_clean, report
    assert report.kills == 200
