"""The page's cryptography is compatible with others', with the browser's curves and without."""

import os
from typing import Any

import pytest
from nacl.secret import SecretBox
from nacl.signing import VerifyKey

from apps.web.tests.page.page_tab import PageTab
from crabtalk_web.sealing import (
    DataSealer,
    MasterSecret,
    PairingSecret,
    SealBinding,
    derive_blob_key,
    from_backup_text,
    from_base64,
    new_key,
    open_blob,
    open_box,
    read_binding,
    seal_blob,
    seal_box,
    to_backup_text,
    to_base64,
    to_base64url,
    wrap_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODULES = """
const bytes = await import("/crypto/bytes.js");
const keys = await import("/crypto/keys.js");
const nacl = await import("/crypto/nacl.js");
const boxes = await import("/crypto/boxes.js");
const sealing = await import("/crypto/sealing.js");
const secretbox = await import("/crypto/secretbox.js");
const backup = await import("/crypto/backup.js");
const { toBase64: to, fromBase64: from } = bytes;
"""


def decode_base64(text: str) -> bytes:
    found = from_base64(text)
    assert found is not None
    return found


async def run_crypto(tab: PageTab, script: str, **given: Any) -> Any:
    ready = {name: to_base64(v) if isinstance(v, bytes) else v for name, v in given.items()}
    return await tab.evaluate(MODULES + script, ready)


@pytest.mark.req("page.crypto")
async def test_account_keys_are_the_same_with_webcrypto_and_without(shared_tab: PageTab) -> None:
    person = MasterSecret(new_key())
    found = await run_crypto(
        shared_tab,
        """
        const secret = from(given.secret);
        const content = await keys.contentKeys(secret);
        const signing = await keys.signingKeys(secret);
        const message = Uint8Array.of(1, 2, 3);
        const seed = bytes.toUtf8("test seed");
        return {
          own: content.secret instanceof CryptoKey && signing.secret instanceof CryptoKey,
          secretive: [content.secret.extractable, signing.secret.extractable],
          content: to(content.public),
          account: to(signing.public),
          signed: to(await keys.sign(signing.secret, message)),
          counted: to(await nacl.sign(secret, message)),
          derived: to(await keys.derive(seed, "test usage", "child1", "child2")),
        };""",
        secret=person.secret,
    )
    assert found["own"] is True
    assert found["secretive"] == [False, False]
    assert decode_base64(found["content"]) == person.content_keys.public
    assert decode_base64(found["account"]) == person.account_key
    for signature in (found["signed"], found["counted"]):
        VerifyKey(person.account_key).verify(bytes([1, 2, 3]), decode_base64(signature))
    assert decode_base64(found["derived"]).hex().startswith("1011c097d2105d27")


@pytest.mark.req("page.crypto")
async def test_boxes_open_both_ways_with_webcrypto_keys_and_with_bytes(shared_tab: PageTab) -> None:
    pair, key = PairingSecret(), new_key()
    person = MasterSecret(new_key())
    found = await run_crypto(
        shared_tab,
        """
        const pair = await keys.exchangeKeys(from(given.mine));
        const raw = from(given.mine);
        const content = await keys.contentKeys(from(given.secret));
        const open = async (secret, text) => {
          const plain = await boxes.openBox(secret, from(text));
          return plain && to(plain);
        };
        const damaged = from(given.sealed);
        damaged[damaged.length - 1] ^= 1;
        return {
          public: [to(pair.public), to(nacl.publicKey(raw))],
          opened: [await open(pair.secret, given.sealed), await open(raw, given.sealed)],
          damaged: await boxes.openBox(raw, damaged),
          short: await boxes.openBox(raw, damaged.subarray(9)),
          invalid: await boxes.sealBox(new Uint8Array(32), Uint8Array.of(1)),
          key: to(await boxes.unwrapKey(content.secret, from(given.wrapped))),
          other: await boxes.unwrapKey(pair.secret, from(given.wrapped)),
          sealed: to(await boxes.sealBox(from(given.theirs), from(given.key))),
        };""",
        mine=pair.secret,
        theirs=pair.public_key,
        sealed=seal_box(pair.public_key, b"a crab"),
        secret=person.secret,
        wrapped=wrap_key(person.content_keys.public, key),
        key=key,
    )
    assert [decode_base64(each) for each in found["public"]] == [pair.public_key] * 2
    assert [decode_base64(each) for each in found["opened"]] == [b"a crab"] * 2
    assert (found["damaged"], found["short"]) == (None, None)
    assert found["invalid"] is None
    assert decode_base64(found["key"]) == key
    assert found["other"] is None
    assert open_box(pair.secret, decode_base64(found["sealed"])) == key


@pytest.mark.req("page.crypto")
async def test_values_are_sealed_as_the_gateway_seals_them(shared_tab: PageTab) -> None:
    key = new_key()
    value = {"name": "crab \N{CRAB}", "lines": "a\u2028b", "n": [1, None, True]}
    found = await run_crypto(
        shared_tab,
        """
        const key = await sealing.importKey(from(given.key));
        const other = await sealing.newKey();
        const bad = given.sealed.slice(0, -8) + "AAAAAAA=";
        return {
          value: await sealing.open(key, given.sealed),
          nothing: await sealing.open(key, given.nothing),
          bad: await Promise.all([bad, "", "!", null, 7, "AAAA"].map((t) => sealing.open(key, t))),
          other: await sealing.open(other, given.sealed),
          sealed: await sealing.seal(key, sealing.bind(given.value, "rpc:watch", "s1", 7)),
          fixed: [key.extractable, other.extractable],
        };""",
        key=key,
        sealed=DataSealer(key).seal(value),
        nothing=DataSealer(key).seal_nothing(),
        value=value,
    )
    assert found["value"] == value
    assert found["nothing"] is None
    assert found["bad"] == [None] * 6
    assert found["other"] is None
    assert found["fixed"] == [False, False]
    opened = DataSealer(key).open(found["sealed"])
    assert read_binding(opened) == SealBinding("rpc:watch", "s1", 7)
    assert opened.items() >= value.items()


@pytest.mark.req("page.crypto")
async def test_files_of_every_size_are_sealed_compatibly(shared_tab: PageTab) -> None:
    key = new_key()
    plains = [os.urandom(n) for n in (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 70_001)]
    plains += [b"\xff" * 1023, b"\0" * 4096]
    found = await run_crypto(
        shared_tab,
        """
        const key = from(given.key);
        return {
          opened: given.sealed.map((each) => to(secretbox.openBlob(key, from(each)))),
          sealed: given.plains.map((each) => to(secretbox.sealBlob(key, from(each)))),
          damaged: given.sealed.map((each) => {
            const data = from(each);
            data[data.length - 1] ^= 128;
            return secretbox.openBlob(key, data);
          }),
          short: secretbox.openBlob(key, new Uint8Array(39)),
          blob: to(await keys.blobKey(key)),
        };""",
        key=key,
        plains=[to_base64(each) for each in plains],
        sealed=[to_base64(seal_blob(key, each)) for each in plains],
    )
    assert [decode_base64(each) for each in found["opened"]] == plains
    assert [open_blob(key, decode_base64(each)) for each in found["sealed"]] == plains
    assert found["damaged"] == [None] * len(plains)
    assert found["short"] is None
    assert decode_base64(found["blob"]) == derive_blob_key(key)


@pytest.mark.req("page.crypto.fast")
async def test_ten_megabytes_are_sealed_in_a_worker_in_less_than_a_second(
    shared_tab: PageTab,
) -> None:
    key = new_key()
    found = await run_crypto(
        shared_tab,
        """
        const { openFile, sealFile } = await import("/crypto/blobs.js");
        const key = from(given.key);
        let [best, sealed] = [Infinity, null];
        // The machine may be busy, so one fast run is enough.
        for (let round = 0; round < 20 && best > 900; round += 1) {
          const plain = new Uint8Array(10 * 1024 * 1024).fill(7);
          const start = performance.now();
          sealed = await sealFile(key, plain);
          best = Math.min(best, performance.now() - start);
        }
        const start = sealed.slice(0, 24);
        const size = sealed.length;
        const opened = await openFile(key, sealed);
        const isSame = opened.length === 10 * 1024 * 1024 && opened.every((byte) => byte === 7);
        const broken = await openFile(key, new Uint8Array(100));
        return { best, size, isSame, broken, nonce: to(start) };""",
        key=key,
    )
    assert found["best"] < 1000
    assert found["size"] == 10 * 1024 * 1024 + 40
    assert found["isSame"] is True
    assert found["broken"] is None
    assert len(decode_base64(found["nonce"])) == SecretBox.NONCE_SIZE


@pytest.mark.req("page.crypto.backup")
async def test_backup_texts_are_read_with_common_mistakes(shared_tab: PageTab) -> None:
    secret = new_key()
    words = to_backup_text(secret)
    looks = words.lower().replace("o", "0").replace("i", "1").replace("b", "8").replace("g", "9")
    found = await run_crypto(
        shared_tab,
        """
        const read = (text) => { const b = backup.fromWords(text); return b && to(b); };
        return { words: backup.toWords(from(given.secret)), read: given.texts.map(read) };""",
        secret=secret,
        texts=[
            words,
            looks,
            f" {words}\n",
            words.replace("-", " "),
            words[:-1],
            words + "A",
            "",
            "ü",
        ],
    )
    assert found["words"] == words
    right = to_base64(secret)
    assert found["read"] == [right, right, right, right, None, None, None, None]
    assert from_backup_text(found["words"]) == secret


@pytest.mark.req("page.crypto")
async def test_invalid_base64_is_null(shared_tab: PageTab) -> None:
    data = os.urandom(20_000)
    found = await run_crypto(
        shared_tab,
        """
        const link = bytes.toBase64url(from(given.data));
        return {
          same: to(from(given.data)) === given.data,
          link,
          back: to(bytes.fromBase64url(link)),
          bad: ["a", "a b", "+/", "==", "ä"].map(bytes.fromBase64url),
          equal: ["AAA=", "AAE=", "AA=="].map((text) => bytes.isEqual(from("AAA="), from(text))),
        };""",
        data=data,
    )
    assert found["same"] is True
    assert found["link"] == to_base64url(data)
    assert decode_base64(found["back"]) == data
    assert found["bad"] == [None] * 5
    assert found["equal"] == [True, False, False]
