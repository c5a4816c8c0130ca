"""Key derivation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.public import PrivateKey
from nacl.signing import VerifyKey

from crabtalk_web.sealing import (
    MasterSecret,
    derive_blob_key,
    derive_key,
    derive_session_key,
    new_key,
)


@pytest.mark.req("sealing.tree")
def test_derived_keys_equal_those_of_other_implementations() -> None:
    key = derive_key(b"test seed", "test usage", "child1", "child2")
    assert key.hex().upper() == "1011C097D2105D27362B987A631496BBF68B836124D1D072E9D1613C6028CF75"


@pytest.mark.req("sealing.tree")
@given(st.binary(max_size=64), st.lists(st.text(max_size=5), max_size=3), st.text(max_size=5))
def test_every_path_gives_another_key(seed: bytes, path: list[str], word: str) -> None:
    keys = {derive_key(seed, "usage", *path), derive_key(seed, "usage", *path, word)}
    keys |= {derive_key(seed, "Usage", *path), derive_key(seed + b"1", "usage", *path)}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)


@pytest.mark.req("sealing.master")
def test_a_master_secret_gives_the_expected_keys() -> None:
    secret = MasterSecret(bytes(range(32)))
    content = secret.content_keys
    assert bytes(PrivateKey(content.secret).public_key) == content.public
    assert content.public == bytes(
        PrivateKey.from_seed(derive_key(secret.secret, "Happy EnCoder", "content")).public_key
    )
    VerifyKey(secret.account_key).verify(b"challenge", secret.sign(b"challenge"))
    assert secret.blob_key == derive_key(secret.secret, "Happy Blobs", "master")
    assert (len(secret.anonymous_id), secret.anonymous_id.lower()) == (16, secret.anonymous_id)


@pytest.mark.req("sealing.secrets")
def test_secrets_are_not_in_reprs() -> None:
    secret = MasterSecret(new_key())
    for shown in (repr(secret), repr(secret.content_keys)):
        assert secret.secret.hex() not in shown
        assert repr(secret.secret) not in shown
        assert repr(secret.content_keys.secret) not in shown


@pytest.mark.req("sealing.master")
@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_master_secret_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        MasterSecret(b"x" * size)


@pytest.mark.req("sealing.session_key")
def test_a_conversations_key_is_reproducible_and_unique() -> None:
    machine = new_key()
    key = derive_session_key(machine, "crab", "user", 0)
    assert key == derive_session_key(machine, "crab", "user", 0)
    others = {
        derive_session_key(machine, "crab", "user", 1),
        derive_session_key(machine, "crab", "user2", 0),
        derive_session_key(machine, "crabuser", "", 0),
        derive_session_key(new_key(), "crab", "user", 0),
        derive_blob_key(key),
    }
    assert len(others - {key}) == 5
