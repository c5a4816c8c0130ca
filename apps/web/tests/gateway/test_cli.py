"""crabtalk-web: its verbs as a person uses them; help, exit codes, honest pages."""

import asyncio
import dataclasses
import json
import re
import signal
import socket
import stat
from pathlib import Path

import aiohttp
import pytest
import trustme

from apps.web.help_pages import PAGE
from apps.web.tests.gateway.command import called, running
from apps.web.tests.gateway.phone import phone, texts
from apps.web.tests.gateway.world import AGENTS, let_in
from crabtalk_web.account import invitation
from crabtalk_web.gateway import GatewayConfig, RelayHttp, RelayRefusedError, Store
from crabtalk_web.gateway.config import RelaySettings
from crabtalk_web.relay import Relay, RelayConfig
from crabtalk_web.sealing import MasterSecret, new_key, to_base64
from crabtalk_web.stream import decode
from tests.daemon.served import served, told

pytestmark = pytest.mark.one_loop

VERBS = [
    (),
    ("up",),
    ("pair",),
    ("gateway",),
    ("relay",),
    ("relay", "accounts"),
    ("relay", "accounts", "list"),
    ("relay", "accounts", "remove"),
    ("relay", "invites"),
    ("relay", "invites", "create"),
    ("relay", "invites", "list"),
    ("relay", "invites", "revoke"),
    ("tap",),
    ("renew",),
    ("devices",),
    ("devices", "list"),
    ("devices", "revoke"),
    ("status",),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def configure(home: Path, text: str) -> None:
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "web.toml").write_text(text)


@pytest.mark.req("web.cli.tap")
async def test_tap_prints_envelopes_live_and_needs_no_keys(tmp_path: Path) -> None:
    async with served(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        words = ("tap", "crab", "--home", daemon.home)
        async with running(tmp_path / "log", *words) as tap:
            async with asyncio.timeout(20):
                while not len(daemon.daemon.feed):
                    await asyncio.sleep(0.01)
            await told(client.stream("crab", "!say not this", sender="tg:1"))
            await told(client.stream("crab", "!think hm\n!say hello"))
            await tap.until('"turn-end"')
            envelopes = [decode(line) for line in tap.lines]
            assert texts(envelopes) == ["hello"]
            assert texts(envelopes, "user") == ["!think hm\n!say hello"]
            assert await tap.end(signal.SIGINT) == 0
        assert not (daemon.home / "web").exists()


@pytest.mark.req("web.cli.tap")
async def test_tap_without_a_daemon_says_what_to_do(tmp_path: Path) -> None:
    outcome = await called("tap", "crab", "--home", tmp_path / "home")
    assert outcome.code == 1
    assert "crabtalkd run" in outcome.err


@pytest.mark.req("web.cli.tap")
async def test_tap_of_an_agent_there_is_none_of_says_which_there_are(tmp_path: Path) -> None:
    async with served(tmp_path, agents=AGENTS, hooks={}) as daemon:
        outcome = await called("tap", "nosuch", "--home", daemon.home)
        assert (outcome.code, outcome.out) == (1, "")
        names = ", ".join(sorted(AGENTS))
        assert f"no agent is called 'nosuch'; there are: {names}\n" in outcome.err


@pytest.mark.req("web.cli.up")
async def test_up_prints_a_link_and_a_device_can_talk(tmp_path: Path) -> None:
    async with served(tmp_path, agents=AGENTS, hooks={}) as daemon:
        home = daemon.home
        configure(home, f"[relay]\nport = {free_port()}\n")
        async with running(tmp_path / "log", "up", "--home", home) as program:
            url = (await program.until(r"The page is at (\S+)"))[1]
            link = (await program.until(r"(\S+/terminal/connect#key=\S+)"))[1]
            await program.until("No other device can open it")
            assert link.startswith(url)
            async with phone(url) as device:
                await device.approve(link)
                await program.until("paired")
                session = await device.session()
                await device.say(session, "!say hello")
                assert texts(await device.until_ended(session)) == ["hello"]
            assert await program.end() == 0
        # The second time it is paired already, be it at another port.
        configure(home, f"[relay]\nport = {free_port()}\n")
        async with running(tmp_path / "log", "up", "--home", home) as program:
            url = (await program.until(r"The page is at (\S+)"))[1]
            async with phone(url, device.secret) as again:
                session = await again.session()
                await again.say(session, "!say again")
                assert texts(await again.until_ended(session, 2)) == ["hello", "again"]
            assert await program.end(signal.SIGINT) == 0
        for path in (home / "web").rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode & 0o077 == 0, f"{path} {mode:o}"


@pytest.mark.req("web.cli.up")
@pytest.mark.parametrize("host", ["127.0.0.1:3005", "localhost:3005", "[::1]:3005"])
def test_a_link_that_only_this_machine_can_open_is_no_code_for_a_phone(host: str) -> None:
    told = invitation(f"http://{host}/terminal/connect#key=k", "happy://terminal?k")
    assert f"  http://{host}/terminal/connect#key=k\n" in told
    assert "config/web.toml" in told
    assert "happy://" not in told
    assert not re.search("[█▀▄]", told)


@pytest.mark.req("web.cli.up")
def test_a_link_that_a_phone_can_open_comes_with_a_code() -> None:
    told = invitation("https://relay.example.org/terminal/connect#key=k", "happy://terminal?k")
    assert re.search("[█▀▄]", told)
    assert "happy://terminal?k" in told
    assert "No other device" not in told


@pytest.mark.req("relay.registration.default")
async def test_where_an_invite_is_needed_the_link_has_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    configure(home, f'[relay]\nport = {free_port()}\nregistration = "invite"\n')
    async with running(tmp_path / "log", "up", "--home", home) as program:
        url = (await program.until(r"The page is at (\S+)"))[1]
        await program.until("New accounts need an invite")
        invite = (await program.until(r"#key=[\w-]+&invite=(\S+)"))[1]
        async with phone(url, invite=invite) as device:
            assert await device.sessions() == []
        async with aiohttp.ClientSession(url) as http:
            secret, challenge = MasterSecret(new_key()), b"any"
            login = {
                "publicKey": to_base64(secret.account_key),
                "challenge": to_base64(challenge),
                "signature": to_base64(secret.sign(challenge)),
                "invite": invite,
            }
            async with http.post("/v1/auth", json=login) as refused:
                assert refused.status == 403


@pytest.mark.req("web.cli.up")
async def test_two_do_not_run_in_one_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    configure(home, f"[relay]\nport = {free_port()}\n")
    async with running(tmp_path / "log", "up", "--home", home) as program:
        await program.until("The page is at")
        outcome = await called("up", "--home", home)
        assert outcome.code == 1
        assert "already runs" in outcome.err


@pytest.mark.req("web.cli.loopback")
async def test_it_listens_elsewhere_only_with_tls_and_a_name(tmp_path: Path) -> None:
    home = tmp_path / "home"
    configure(home, '[relay]\nhost = "0.0.0.0"\nport = 0\n')
    outcome = await called("up", "--home", home)
    assert outcome.code == 1
    assert "TLS" in outcome.err
    authority = trustme.CA()
    certificate = authority.issue_cert("relay.example.org")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    configure(
        home,
        f'[relay]\nhost = "0.0.0.0"\nport = {free_port()}\nhost_name = "relay.example.org"\n'
        f'tls_certificate = "{tmp_path / "cert.pem"}"\ntls_key = "{tmp_path / "key.pem"}"\n',
    )
    async with running(tmp_path / "log", "relay", "--home", home) as program:
        assert (await program.until("https://relay.example.org"))[0]
        assert await program.end() == 0


@pytest.mark.req("web.cli.pair")
@pytest.mark.slow
async def test_pairing_with_a_relay_elsewhere_and_running_the_gateway_alone(tmp_path: Path) -> None:
    async with (
        served(tmp_path, agents=AGENTS, hooks={}) as daemon,
        Relay(RelayConfig(tmp_path / "relay", port=0, durability="os")) as relay,
        phone(relay.url) as device,
    ):
        home = daemon.home
        assert (await called("gateway", "--home", home)).code == 1
        words = ("pair", relay.url, "--home", home)
        async with running(tmp_path / "log", *words) as program:
            await device.approve((await program.until(r"(\S+/terminal/connect#key=\S+)"))[1])
            await program.until("paired")
            assert await program.process.wait() == 0
        async with running(tmp_path / "log", "gateway", "--home", home) as program:
            session = await device.session()
            await device.say(session, "!say alone")
            assert texts(await device.until_ended(session)) == ["alone"]
            standing = json.loads((await called("status", "--home", home, "--json")).answer)
            assert standing["relay"] == relay.url
            assert standing["running"] is True
            assert {one["agent"] for one in standing["conversations"]} == {"crab", "owl"}
            assert await program.end() == 0


@pytest.mark.req("web.cli.pair")
async def test_a_relay_elsewhere_is_reached_by_tls_alone(tmp_path: Path) -> None:
    outcome = await called("pair", "http://relay.example.org", "--home", tmp_path / "home")
    assert outcome.code == 1
    assert "https://" in outcome.err


@pytest.mark.req("web.cli.devices")
async def test_a_device_can_be_listed_and_taken_out(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with (
        Relay(RelayConfig(tmp_path / "relay", port=0, durability="os")) as relay,
        phone(relay.url) as device,
    ):
        Store(home).prepare()
        (await let_in(device, relay.url)).save(Store(home).credentials)
        listed = json.loads((await called("devices", "list", "--home", home, "--json")).answer)
        ids = {one["id"] for one in listed["devices"]}
        assert len(ids) == 2
        other = await let_in(device, relay.url)
        listed = json.loads((await called("devices", "list", "--home", home, "--json")).answer)
        (new,) = {one["id"] for one in listed["devices"]} - ids
        assert (await called("devices", "revoke", new, "--home", home)).answer
        async with RelayHttp(relay.url, other.token) as http:
            with pytest.raises(RelayRefusedError):
                await http.get("/v1/sessions")
        gone = await called("devices", "revoke", "nobody", "--home", home)
        assert gone.code == 1


@pytest.mark.req("web.cli.status")
async def test_status_of_a_machine_that_is_not_paired(tmp_path: Path) -> None:
    assert "not paired" in (await called("status", "--home", tmp_path / "home")).answer


@pytest.mark.req("web.cli.config")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sneder = 1", "means nothing"),
        ("sender = 1", "must be a text"),
        ('while_busy = "shout"', "queue"),
        ("[relay]\nport = true", "whole number"),
        ('[relay]\nregistration = "shut"', '"open", "invite" or "closed"'),
        ('[relay]\ntrusted_proxies = "10.0.0.1"', "must be a list"),
        ('[relay.limits]\naccounts = "many"', "table of numbers"),
        ("sender = ", "cannot read"),
    ],
)
async def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    home = tmp_path / "home"
    configure(home, text)
    outcome = await called("up", "--home", home)
    assert outcome.code == 1
    assert complaint in outcome.err
    assert "web.toml" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.req("web.cli.config")
def test_the_page_has_every_setting_and_what_it_is_by_default() -> None:
    page = (Path(__file__).parents[4] / "docs" / "web.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `(.+)` \|$", page, re.MULTILINE))
    settings = {
        field.name: json.dumps(field.default)
        for field in dataclasses.fields(GatewayConfig)
        if field.name != "relay"
    }
    assert rows == settings
    for field in dataclasses.fields(RelaySettings):
        assert f"`{field.name}`" in page


@pytest.mark.req("web.cli.help")
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
async def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    said = (await called(*words, "--help")).answer
    assert said == f"{PAGE.help_of(list(words))}\n"
    assert len(said.splitlines()) <= 30
    if words != ("devices",):
        assert "Example" in said


@pytest.mark.req("web.cli.help")
def test_the_page_shows_the_help_of_every_command() -> None:
    page = PAGE.text()
    assert PAGE.fresh(page) == page, f"run python -m {PAGE.script}"
    assert set(PAGE.shown(page)) >= {" ".join(words) for words in VERBS}


@pytest.mark.req("web.cli.help")
async def test_words_it_does_not_know_end_in_two() -> None:
    assert (await called("down")).code == 2
