"""Python and WebCrypto read each other's sealed values."""

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
def test_browser_and_python_open_each_others_values(browser: NodeProcess, value: Any) -> None:
    key = new_key()
    sealer = DataSealer(key)
    assert sealer.open(browser.request("seal", key=to_base64(key), value=value)) == value
    assert browser.request("open", key=to_base64(key), sealed=sealer.seal(value)) == value


@pytest.mark.req("sealing.webcrypto")
def test_an_empty_value_of_a_browser_is_opened(browser: NodeProcess) -> None:
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
        derived = from_base64(
            browser.request("derive", seed=to_base64(seed), usage=usage, path=path)
        )
        assert derived == derive_key(seed, usage, *path)
    derived = from_base64(
        browser.request("derive", seed=to_base64(seed), usage="Happy Blobs", path=["session"])
    )
    assert derived == derive_blob_key(seed)


@pytest.mark.req("sealing.webcrypto")
def test_a_browser_has_the_same_content_key_and_agrees_on_secrets(browser: NodeProcess) -> None:
    secret = MasterSecret(new_key())
    derived = from_base64(browser.request("content", secret=to_base64(secret.secret)))
    assert derived == secret.content_keys.public
    one, two = PairingSecret(), PairingSecret()
    agreed = {
        browser.request("agree", secret=to_base64(a.secret), publicKey=to_base64(b.public_key))
        for a, b in ((one, two), (two, one))
    }
    assert len(agreed) == 1


@pytest.mark.req("sealing.webcrypto")
def test_signatures_equal_those_of_a_browser(browser: NodeProcess) -> None:
    secret = MasterSecret(new_key())
    signature = secret.sign(b"nonce")
    message = to_base64(b"nonce")
    derived = browser.request("sign", secret=to_base64(secret.secret), message=message)
    assert from_base64(derived) == signature
    public = to_base64(secret.account_key)
    parameters = {"publicKey": public, "message": message}
    assert browser.request("verify", signature=to_base64(signature), **parameters)
    assert not browser.request("verify", signature=to_base64(bytes(64)), **parameters)
