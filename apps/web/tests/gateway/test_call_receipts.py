"""Receipts: a call counts once, also for the next process, and only a limited number is stored."""

from pathlib import Path

import pytest

from crabtalk_web.gateway.call_receipts import RECEIPT_SIZE, CallReceipts
from crabtalk_web.sealing import DataSealer, new_key


def open_receipts(path: Path, most: int = 10) -> CallReceipts:
    receipts = CallReceipts(path, limit=most)
    receipts.open()
    return receipts


@pytest.mark.req("gateway.rpc.receipts")
@pytest.mark.req("sealing.replays")
async def test_a_call_is_new_only_once(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    first, sealer = open_receipts(path), DataSealer(new_key())
    call = sealer.seal({"approve": True})
    assert await first.add_if_new(call)
    assert not await first.add_if_new(call)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not await open_receipts(path).add_if_new(call)
    # The same parameters, sealed again by a device that may do so.
    assert await open_receipts(path).add_if_new(sealer.seal({"approve": True}))


@pytest.mark.req("gateway.rpc.receipts")
async def test_only_the_latest_receipts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    receipts = open_receipts(path)
    for number in range(100):
        assert await receipts.add_if_new(str(number))
        assert path.stat().st_size <= 20 * RECEIPT_SIZE
    reopened = open_receipts(path)
    for number in range(90, 100):
        assert not await reopened.add_if_new(str(number))
    assert await reopened.add_if_new("0")


@pytest.mark.req("gateway.rpc.receipts")
async def test_a_half_written_receipt_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    assert await open_receipts(path).add_if_new("whole")
    with path.open("ab") as file:
        file.write(b"half")
    reopened = open_receipts(path)
    assert await reopened.add_if_new("next")
    assert not await open_receipts(path).add_if_new("whole")
    assert not await open_receipts(path).add_if_new("next")
