"""Layouts: exact bytes, and None for values that cannot be opened."""

import base64
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_web.sealing import (
    BLOB_OVERHEAD,
    DataSealer,
    LegacySealer,
    Sealer,
    new_key,
    open_blob,
    seal_blob,
    to_base64,
)

KEY = bytes(range(32))
SEALERS: list[Sealer] = [DataSealer(KEY), LegacySealer(KEY)]
OVERHEADS = list(zip(SEALERS, (29, 40), strict=True))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.req("sealing.layouts")
@pytest.mark.parametrize(("sealer", "overhead"), OVERHEADS)
def test_a_layout_has_a_fixed_overhead(sealer: Sealer, overhead: int) -> None:
    sealed = base64.b64decode(sealer.seal_bytes(b"x" * 216), validate=True)
    assert len(sealed) == 216 + overhead
    assert sealed[:1] == b"\0" or isinstance(sealer, LegacySealer)
    assert len(seal_blob(KEY, b"x" * 70_000)) == 70_040 == 70_000 + BLOB_OVERHEAD


@pytest.mark.req("sealing.layouts")
@pytest.mark.parametrize("sealer", SEALERS)
@given(value=VALUES)
def test_a_sealed_value_opens_unchanged(sealer: Sealer, value: Any) -> None:
    assert sealer.open(sealer.seal(value)) == value


@pytest.mark.req("sealing.layouts")
@pytest.mark.parametrize("sealer", SEALERS)
def test_the_same_value_is_never_sealed_to_the_same_text(sealer: Sealer) -> None:
    assert len({sealer.seal({"a": 1}) for _ in range(100)}) == 100


@pytest.mark.req("sealing.none")
@pytest.mark.parametrize("sealer", SEALERS)
def test_any_changed_bit_makes_it_none(sealer: Sealer) -> None:
    sealed = bytearray(base64.b64decode(sealer.seal({"word": "crab"})))
    for at in range(len(sealed)):
        for bit in (1, 128):
            forged = bytearray(sealed)
            forged[at] ^= bit
            assert sealer.open_bytes(to_base64(bytes(forged))) is None
    for cut in range(len(sealed)):
        assert sealer.open_bytes(to_base64(bytes(sealed[:cut]))) is None


@pytest.mark.req("sealing.none")
@pytest.mark.parametrize("sealer", SEALERS)
@given(text=st.text() | st.binary(max_size=200).map(to_base64))
def test_unsealed_input_opens_to_none(sealer: Sealer, text: str) -> None:
    assert sealer.open(text) is None
    assert sealer.open_bytes(text) is None


@pytest.mark.req("sealing.none")
def test_another_key_or_another_layout_opens_nothing() -> None:
    for sealer in SEALERS:
        for other in (DataSealer(new_key()), LegacySealer(new_key())):
            assert other.open(sealer.seal(1)) is None
    assert SEALERS[0].open(SEALERS[1].seal(1)) is None
    assert SEALERS[1].open(SEALERS[0].seal(1)) is None


@pytest.mark.req("sealing.nothing")
@pytest.mark.parametrize(("sealer", "size"), OVERHEADS)
def test_an_empty_value_can_be_sealed(sealer: Sealer, size: int) -> None:
    sealed = sealer.seal_nothing()
    assert len(base64.b64decode(sealed)) == size
    assert sealer.open_bytes(sealed) == b""
    assert sealer.open(sealed) is None


@pytest.mark.req("sealing.json")
@pytest.mark.parametrize("sealer", SEALERS)
@pytest.mark.parametrize("plain", [b"NaN", b'{"a": Infinity}', b"{", b"\xff", b"[" * 100_000])
def test_sealed_bytes_that_are_not_json_open_to_none(sealer: Sealer, plain: bytes) -> None:
    assert sealer.open(sealer.seal_bytes(plain)) is None


@pytest.mark.req("sealing.json")
def test_numbers_that_are_not_json_are_refused() -> None:
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            SEALERS[0].seal({"n": number})


@pytest.mark.req("sealing.json")
def test_lone_surrogates_are_replaced_and_pairs_kept() -> None:
    sealer = SEALERS[0]
    assert sealer.open(sealer.seal("a\ud800b")) == "a\ufffdb"
    assert sealer.open(sealer.seal("\ud83e\udd80")) == "🦀"
    assert sealer.open(sealer.seal("\u2028 🦀 größer")) == "\u2028 🦀 größer"


@pytest.mark.req("sealing.blobs")
@given(plain=st.binary(max_size=2000))
def test_a_sealed_blob_opens_unchanged(plain: bytes) -> None:
    assert open_blob(KEY, seal_blob(KEY, plain)) == plain


@pytest.mark.req("sealing.blobs")
def test_a_changed_or_truncated_blob_opens_to_none() -> None:
    sealed = seal_blob(KEY, os.urandom(100))
    assert open_blob(new_key(), sealed) is None
    assert open_blob(KEY, sealed[:-1]) is None
    assert open_blob(KEY, sealed[:30]) is None
    assert open_blob(KEY, b"") is None
