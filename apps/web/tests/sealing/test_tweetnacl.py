"""Python and tweetnacl, which apps and terminals use, read each other."""

import os
from collections.abc import Iterator

import pytest

from apps.web.tests.sealing.node_process import NodeProcess, run_node
from crabtalk_web.sealing import (
    LegacySealer,
    MasterSecret,
    PairingSecret,
    approve_with_content_key,
    from_base64,
    new_key,
    open_blob,
    open_box,
    seal_blob,
    to_base64,
    unwrap_key,
    wrap_key,
)

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def app() -> Iterator[NodeProcess]:
    with run_node("tweetnacl.cjs") as running:
        yield running


@pytest.mark.req("sealing.tweetnacl")
def test_values_and_blobs_open_both_ways(app: NodeProcess) -> None:
    key, plain = new_key(), os.urandom(70_000)
    sealer = LegacySealer(key)
    sealed = sealer.seal({"crab": "🦀"})
    assert app.request("openSecret", key=to_base64(key), sealed=sealed) == to_base64(
        '{"crab":"🦀"}'.encode()
    )
    from_app = app.request("sealSecret", key=to_base64(key), plain=to_base64(b'{"a":[1,null]}'))
    assert sealer.open(from_app) == {"a": [1, None]}
    blob = seal_blob(key, plain)
    assert app.request("openSecret", key=to_base64(key), sealed=to_base64(blob)) == to_base64(plain)
    back = from_base64(app.request("sealSecret", key=to_base64(key), plain=to_base64(plain)))
    assert back is not None
    assert open_blob(key, back) == plain


@pytest.mark.req("sealing.tweetnacl")
def test_boxes_and_wrapped_keys_open_both_ways(app: NodeProcess) -> None:
    keys = MasterSecret(new_key()).content_keys
    key = new_key()
    wrapped = wrap_key(keys.public, key)
    opened = app.request("openBox", secret=to_base64(keys.secret), sealed=to_base64(wrapped[1:]))
    assert opened == to_base64(key)
    from_app = from_base64(
        app.request("sealBox", publicKey=to_base64(keys.public), plain=to_base64(key))
    )
    assert from_app is not None
    assert open_box(keys.secret, from_app) == key
    assert unwrap_key(keys.secret, b"\0" + from_app) == key


@pytest.mark.req("sealing.tweetnacl")
def test_approvals_open_both_ways(app: NodeProcess) -> None:
    pairing, keys = PairingSecret(), MasterSecret(new_key()).content_keys
    response = approve_with_content_key(pairing.public_key, keys.public)
    opened = app.request("openBox", secret=to_base64(pairing.secret), sealed=response)
    assert opened == to_base64(b"\0" + keys.public)
    public = to_base64(pairing.public_key)
    from_app = app.request("sealBox", publicKey=public, plain=to_base64(b"\0" + keys.public))
    approval = pairing.open_approval(from_app)
    assert approval is not None
    assert approval.content_public_key == keys.public


@pytest.mark.req("sealing.tweetnacl")
def test_account_keys_and_signatures_are_equal(app: NodeProcess) -> None:
    secret = MasterSecret(new_key())
    public = to_base64(secret.account_key)
    assert app.request("account", secret=to_base64(secret.secret)) == public
    signature, message = to_base64(secret.sign(b"challenge")), to_base64(b"challenge")
    assert app.request("verify", publicKey=public, signature=signature, message=message)
