"""Boxes, pairing and backup text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_web.sealing import (
    MasterSecret,
    PairingApproval,
    PairingSecret,
    approve_device_link,
    approve_with_content_key,
    approve_with_secret,
    from_backup_text,
    from_base64,
    from_base64url,
    new_key,
    open_box,
    parse_link_key,
    seal_box,
    to_backup_text,
    to_base64,
    to_base64url,
    unwrap_key,
    wrap_key,
)

SECRET = MasterSecret(bytes(range(32)))
KEYS = SECRET.content_keys


@pytest.mark.req("sealing.boxes")
@given(plain=st.binary(max_size=200))
def test_a_box_opens_for_its_reader_only(plain: bytes) -> None:
    bundle = seal_box(KEYS.public, plain)
    assert len(bundle) == len(plain) + 72
    assert open_box(KEYS.secret, bundle) == plain
    assert open_box(new_key(), bundle) is None


@pytest.mark.req("sealing.boxes")
@given(bundle=st.binary(max_size=200))
def test_an_invalid_box_opens_to_none(bundle: bytes) -> None:
    assert open_box(KEYS.secret, bundle) is None
    assert unwrap_key(KEYS.secret, bundle) is None


@pytest.mark.req("sealing.wrapped")
def test_a_data_key_is_wrapped_in_105_bytes() -> None:
    key = new_key()
    wrapped = wrap_key(KEYS.public, key)
    assert (len(wrapped), len(to_base64(wrapped)), wrapped[:1]) == (105, 140, b"\0")
    assert unwrap_key(KEYS.secret, wrapped) == key
    assert unwrap_key(new_key(), wrapped) is None
    assert unwrap_key(KEYS.secret, b"\1" + wrapped[1:]) is None
    assert unwrap_key(KEYS.secret, wrap_key(KEYS.public, b"short")) is None
    assert unwrap_key(KEYS.secret, wrapped[1:]) is None


@pytest.mark.req("sealing.approval")
def test_an_approval_has_exactly_one_of_two_keys() -> None:
    pairing = PairingSecret()
    public = pairing.public_key
    old = approve_with_secret(public, SECRET.secret)
    assert pairing.open_approval(old) == PairingApproval(master_secret=SECRET.secret)
    new = approve_with_content_key(public, KEYS.public)
    assert pairing.open_approval(new) == PairingApproval(content_public_key=KEYS.public)
    link = approve_device_link(public, SECRET.secret)
    assert pairing.open_approval(link) == PairingApproval(master_secret=SECRET.secret)
    for other in (to_base64(seal_box(public, b"\1" + KEYS.public)), "no box", ""):
        assert pairing.open_approval(other) is None
    assert PairingSecret().open_approval(old) is None
    assert repr(SECRET.secret) not in repr(pairing.open_approval(old))
    assert repr(pairing.secret) not in repr(pairing)


@pytest.mark.req("sealing.token")
def test_a_sealed_token_is_opened_by_the_machine_that_asked() -> None:
    pairing = PairingSecret()
    sealed = to_base64(seal_box(pairing.public_key, b"token"))
    assert pairing.open_token(sealed) == "token"
    assert PairingSecret().open_token(sealed) is None
    assert pairing.open_token(to_base64(seal_box(pairing.public_key, b"\xff"))) is None


@pytest.mark.req("sealing.links")
def test_links_carry_the_public_key_and_nothing_else() -> None:
    pairing = PairingSecret()
    key = to_base64url(pairing.public_key)
    assert pairing.terminal_link == f"happy://terminal?{key}"
    assert pairing.account_link == f"happy:///account?{key}"
    page = pairing.page_link("https://relay.example/")
    assert page == f"https://relay.example/terminal/connect#key={key}"
    for link in (pairing.terminal_link, pairing.account_link, page):
        assert parse_link_key(link) == pairing.public_key
    for other in ("", key, "happy://terminal?", "happy://terminal?short", f"{page}x", "#key="):
        assert parse_link_key(other) is None


@pytest.mark.req("sealing.backup")
@given(secret=st.binary(min_size=32, max_size=32))
def test_a_backup_is_read_back(secret: bytes) -> None:
    text = to_backup_text(secret)
    groups = text.split("-")
    assert [len(group) for group in groups] == [5] * 10 + [2]
    assert from_backup_text(text) == secret
    assert from_backup_text(f" {text.lower().replace('-', ' ')}\n") == secret


@pytest.mark.req("sealing.backup")
def test_a_backup_is_read_with_the_mistakes_people_make() -> None:
    secret = bytes([0x73, 0x9C, 0x21, 0x18]) * 8
    text = to_backup_text(secret)
    mistaken = text.translate(str.maketrans("OIBG", "0189"))
    assert mistaken != text
    assert from_backup_text(mistaken) == secret


@pytest.mark.req("sealing.backup")
@pytest.mark.parametrize("text", ["", "ABCDE", "A" * 51, "A" * 60, "!!!", "1"])
def test_an_invalid_backup_text_is_none(text: str) -> None:
    assert from_backup_text(text) is None


@pytest.mark.req("sealing.text")
@given(data=st.binary(max_size=100))
def test_bytes_survive_both_base64_alphabets(data: bytes) -> None:
    assert from_base64(to_base64(data)) == data
    assert from_base64url(to_base64url(data)) == data
    assert not set(to_base64url(data)) & set("+/=")


@pytest.mark.req("sealing.text")
@pytest.mark.parametrize("text", ["A", "AA", "AA=A", "A A=", "AAA_", "é", "AAAA=", "A\nAA"])
def test_invalid_base64_is_none(text: str) -> None:
    assert from_base64(text) is None
    if text not in ("AA", "AAA_"):
        assert from_base64url(text) is None
