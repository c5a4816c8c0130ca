"""Load: two hundred chats at once through one gateway process, several times."""

import os
import time
from pathlib import Path

import pytest

from crabtalk.gateway import write_settings
from tests.gateway.gateway_command import PIGEON_COMMAND
from tests.gateway.gateway_world import GatewayWorld, open_gateway_world

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.crowd")]

PEOPLE = [str(number) for number in range(1000, 1200)]
# Rounds of two hundred turns: the first ones load everything, the others are compared.
BEFORE, ROUNDS = 5, 20


async def ask_all(w: GatewayWorld, number: int) -> float:
    """Seconds until the last chat is answered."""
    w.server.messages.clear()
    began = time.monotonic()
    for person in PEOPLE:
        w.server.add_message(f"!say {number}", person)
    await w.server.wait_until(lambda: len(w.server.messages) == len(PEOPLE))
    took = time.monotonic() - began
    await w.wait_until(lambda: not w.server.pending)
    assert all(w.server.texts_in(person) == [str(number)] for person in PEOPLE)
    return took


def measure_resident(pid: int) -> float:
    """Resident memory in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.clock
async def test_two_hundred_chats_at_once_neither_slow_it_down_nor_make_it_grow(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        w.server.redeliver_after = 600.0
        write_settings(
            w.home / "config" / "pigeon.toml",
            {"token": w.server.token, "base_url": w.server.url, "allowed_users": PEOPLE},
        )
        async with PIGEON_COMMAND.run_gateway(w.home) as process:
            for number in range(BEFORE):
                await ask_all(w, number)
            before = measure_resident(process.pid)
            took = [await ask_all(w, BEFORE + number) for number in range(ROUNDS)]
            assert measure_resident(process.pid) - before < 8
    half = ROUNDS // 2
    assert sorted(took[half:])[half // 2] < 2 * sorted(took[:half])[half // 2]
