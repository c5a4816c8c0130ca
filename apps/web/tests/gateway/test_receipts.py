"""Receipts: a call counts once, also for the process that comes next, and only so many are kept."""

from pathlib import Path

import pytest

from crabtalk_web.gateway.receipts import SIZE, Receipts
from crabtalk_web.sealing import DataSealer, new_key


def opened(path: Path, most: int = 10) -> Receipts:
    receipts = Receipts(path, most=most)
    receipts.open()
    return receipts


@pytest.mark.req("gateway.rpc.receipts")
@pytest.mark.req("sealing.replays")
async def test_a_call_is_new_once_whoever_asks(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    first, sealer = opened(path), DataSealer(new_key())
    call = sealer.seal({"approve": True})
    assert await first.is_new(call)
    assert not await first.is_new(call)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not await opened(path).is_new(call)
    # The same words, said again by whoever may say them.
    assert await opened(path).is_new(sealer.seal({"approve": True}))


@pytest.mark.req("gateway.rpc.receipts")
async def test_only_the_last_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    receipts = opened(path)
    for number in range(100):
        assert await receipts.is_new(str(number))
        assert path.stat().st_size <= 20 * SIZE
    again = opened(path)
    for number in range(90, 100):
        assert not await again.is_new(str(number))
    assert await again.is_new("0")


@pytest.mark.req("gateway.rpc.receipts")
async def test_what_a_crash_left_half_written_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    assert await opened(path).is_new("whole")
    with path.open("ab") as file:
        file.write(b"half")
    again = opened(path)
    assert await again.is_new("next")
    assert not await opened(path).is_new("whole")
    assert not await opened(path).is_new("next")
