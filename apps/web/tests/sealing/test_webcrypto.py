"""Python and WebCrypto read each other: what a browser seals is opened here, and the other way."""

from collections.abc import Iterator
from typing import Any

import pytest

from apps.web.tests.sealing.node_process import NodeProcess, needs_node, run_node
from crabtalk_web.sealing import (
    DataSealer,
    MasterSecret,
    PairingSecret,
    derive_blob_key,
    derive_key,
    from_base64,
    new_key,
    to_base64,
)

pytestmark = needs_node
VALUES: list[Any] = [
    None,
    0,
    -1.5,
    "",
    "🦀 größer \u2028\u2029 \x00",
    {"role": "session", "content": {"ev": {"t": "text", "text": "hi"}}, "list": [1, None, True]},
    {"long": "x" * 100_000},
]


@pytest.fixture(scope="module")
def browser() -> Iterator[NodeProcess]:
    with run_node("webcrypto.mjs") as running:
        yield running


@pytest.mark.req("sealing.webcrypto")
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_what_a_browser_seals_we_open_and_the_other_way(browser: NodeProcess, value: Any) -> None:
    key = new_key()
    sealer = DataSealer(key)
    assert sealer.open(browser.request("seal", key=to_base64(key), value=value)) == value
    assert browser.request("open", key=to_base64(key), sealed=sealer.seal(value)) == value


@pytest.mark.req("sealing.webcrypto")
def test_a_browser_that_has_nothing_to_say_is_understood(browser: NodeProcess) -> None:
    key = new_key()
    sealed = browser.request("seal", key=to_base64(key))
    assert DataSealer(key).open_bytes(sealed) == b""


@pytest.mark.req("sealing.webcrypto")
def test_a_browser_derives_the_same_keys(browser: NodeProcess) -> None:
    seed = new_key()
    for usage, path in (
        ("test usage", ["child1", "child2"]),
        ("Happy Blobs", ["session"]),
        ("", []),
    ):
        there = from_base64(browser.request("derive", seed=to_base64(seed), usage=usage, path=path))
        assert there == derive_key(seed, usage, *path)
    there = from_base64(
        browser.request("derive", seed=to_base64(seed), usage="Happy Blobs", path=["session"])
    )
    assert there == derive_blob_key(seed)


@pytest.mark.req("sealing.webcrypto")
def test_a_browser_has_the_same_content_key_and_agrees_on_secrets(browser: NodeProcess) -> None:
    secret = MasterSecret(new_key())
    there = from_base64(browser.request("content", secret=to_base64(secret.secret)))
    assert there == secret.content_keys.public
    one, two = PairingSecret(), PairingSecret()
    agreed = {
        browser.request("agree", secret=to_base64(a.secret), publicKey=to_base64(b.public_key))
        for a, b in ((one, two), (two, one))
    }
    assert len(agreed) == 1


@pytest.mark.req("sealing.webcrypto")
def test_signatures_are_those_of_a_browser(browser: NodeProcess) -> None:
    secret = MasterSecret(new_key())
    signature = secret.sign(b"nonce")
    message = to_base64(b"nonce")
    there = browser.request("sign", secret=to_base64(secret.secret), message=message)
    assert from_base64(there) == signature
    public = to_base64(secret.account_key)
    given = {"publicKey": public, "message": message}
    assert browser.request("verify", signature=to_base64(signature), **given)
    assert not browser.request("verify", signature=to_base64(bytes(64)), **given)
