"""A crowd: two hundred chats at once through one gateway, a process, again and again."""

import os
import time
from pathlib import Path

import pytest

from crabtalk.component.gateway import write_settings
from tests.component.gateway.command import PIGEON
from tests.component.gateway.world import World, world

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.crowd")]

PEOPLE = [str(number) for number in range(1000, 1200)]
# Of two hundred turns each: so many until all is loaded, and then to be compared.
BEFORE, ROUNDS = 5, 20


async def ask_all(w: World, number: int) -> float:
    """Seconds until the last of them is answered."""
    w.loft.messages.clear()
    began = time.monotonic()
    for person in PEOPLE:
        w.loft.says(f"!say {number}", person)
    await w.loft.until(lambda: len(w.loft.messages) == len(PEOPLE))
    took = time.monotonic() - began
    await w.until(lambda: not w.loft.waiting)
    assert all(w.loft.texts(person) == [str(number)] for person in PEOPLE)
    return took


def resident(pid: int) -> float:
    """Megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.clock
async def test_two_hundred_chats_at_once_neither_slow_it_down_nor_make_it_grow(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        w.loft.redeliver = 600.0
        write_settings(
            w.home / "config" / "pigeon.toml",
            {"token": w.loft.token, "base_url": w.loft.url, "allowed_users": PEOPLE},
        )
        async with PIGEON.running(w.home) as process:
            for number in range(BEFORE):
                await ask_all(w, number)
            before = resident(process.pid)
            took = [await ask_all(w, BEFORE + number) for number in range(ROUNDS)]
            assert resident(process.pid) - before < 8
    half = ROUNDS // 2
    assert sorted(took[half:])[half // 2] < 2 * sorted(took[:half])[half // 2]
