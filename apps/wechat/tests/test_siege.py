"""Killed at any moment, and cut off by the network, it loses nothing and answers nothing twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.wechat.tests.command import COMMAND
from apps.wechat.tests.ilink_api import TOKEN, Fault
from apps.wechat.tests.world import world
from crabtalk.component.gateway import write_settings
from tests.component.gateway.siege import Report, Town, dig, siege

pytestmark = [pytest.mark.one_loop, pytest.mark.req("wechat.kill")]

CHATS, BURSTS = ("x101", "x102", "x103"), "x200"
CUTS = (Fault(0), Fault(0, is_done=True), Fault(502), Fault(429, retry_after="1"))


async def besieged(path: Path, *, rounds: int, seed: int) -> Report:
    async with world(path, tools={"dig": dig}) as w:
        write_settings(
            w.home / "config" / "wechat.toml",
            {"token": TOKEN, "base_url": w.api.url, "allowed_users": [*CHATS, BURSTS]},
        )

        def cut(chance: random.Random) -> None:
            w.api.fail("sendmessage", chance.choice(CUTS))

        town = Town(
            journal=w.home / "wechat" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: COMMAND.running(w.home),
            says=w.api.says,
            texts=w.api.texts,
            heard=w.heard,
            asked=lambda: w.api.calls["getupdates"],
            is_read=lambda: w.api.is_read,
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
