"""The page: its cryptography is that of everybody else, and it asks nobody but its relay."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
from nacl.signing import VerifyKey

import crabtalk_web
from crabtalk_web.relay import Relay, RelayConfig
from crabtalk_web.sealing import (
    DataSealer,
    MasterSecret,
    PairingSecret,
    from_base64,
    new_key,
    to_backup_text,
    to_base64,
    wrap_key,
)

PAGE = Path(crabtalk_web.__file__).with_name("page")
NODE = shutil.which("node")


@pytest.mark.req("page.crypto")
@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_page_signs_seals_and_opens_as_everybody_does(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    shutil.copytree(PAGE, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    person, machine, key = MasterSecret(new_key()), PairingSecret(), new_key()
    value = {"name": "crab", "host": "h\N{CRAB}"}
    command = [
        str(NODE),
        str(Path(__file__).with_name("page_account.mjs")),
        str(folder),
        to_base64(person.secret),
        to_base64(machine.public_key),
        to_base64(wrap_key(person.content_keys.public, key)),
        DataSealer(key).seal(value),
    ]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=40).stdout)
    assert told["content"] == to_base64(person.content_keys.public)
    assert told["key"] == to_base64(key)
    assert told["value"] == value
    assert told["words"] == to_backup_text(person.secret)
    assert told["back"] == to_base64(person.secret)
    assert told["damaged"] is None
    approval = machine.open_approval(told["approval"])
    assert approval is not None
    assert approval.content_public_key == person.content_keys.public
    signature = from_base64(told["login"]["signature"])
    assert signature is not None
    assert from_base64(told["login"]["publicKey"]) == person.account_key
    VerifyKey(person.account_key).verify(bytes([1, 2, 3]), signature)


@pytest.mark.req("page.policy")
async def test_the_page_is_served_under_a_strict_policy(tmp_path: Path) -> None:
    config = RelayConfig(tmp_path / "relay", port=0, static=PAGE)
    async with Relay(config) as relay, aiohttp.ClientSession() as http:
        for path in ("/", "/terminal/connect", "/page.js", "/page.css", "/nacl.js", "/account.js"):
            async with http.get(relay.url + path) as answer:
                assert answer.status == 200
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy


@pytest.mark.req("page.policy")
def test_nothing_of_the_page_is_elsewhere_or_inline() -> None:
    for path in PAGE.iterdir():
        text = path.read_text("utf-8")
        assert not re.search(r"https?://", text), path.name
    html = (PAGE / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]* src=)[^>]*>", html) == []
    assert " style=" not in html
    assert not re.search(r" on\w+=", html)
