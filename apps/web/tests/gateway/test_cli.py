"""The crabtalk-web command: its subcommands, help, exit codes and docs."""

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
from apps.web.tests.gateway.device_client import list_texts, open_device
from apps.web.tests.gateway.web_command import run_web_command, start_web_command
from apps.web.tests.gateway.web_gateway_world import AGENTS, pair_with_device
from crabtalk_web.account import format_invitation
from crabtalk_web.gateway import GatewayConfig, RelayHttp, RelayRefusedError, WebFolder
from crabtalk_web.gateway.config import RelaySettings
from crabtalk_web.relay import RelayConfig, RelayServer
from crabtalk_web.sealing import MasterSecret, new_key, to_base64
from crabtalk_web.stream import decode_envelope
from tests.daemon.in_process_daemon import collect_events, run_daemon

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


def find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def write_config(home: Path, text: str) -> None:
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "web.toml").write_text(text)


@pytest.mark.req("web.cli.tap")
async def test_tap_prints_envelopes_live_and_needs_no_keys(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        arguments = ("tap", "crab", "--home", daemon.home)
        async with start_web_command(tmp_path / "log", *arguments) as tap:
            async with asyncio.timeout(20):
                while not len(daemon.daemon.feed):
                    await asyncio.sleep(0.01)
            await collect_events(client.stream("crab", "!say not this", sender="tg:1"))
            await collect_events(client.stream("crab", "!think hm\n!say hello"))
            await tap.wait_for_line('"turn-end"')
            envelopes = [decode_envelope(line) for line in tap.lines]
            assert list_texts(envelopes) == ["hello"]
            assert list_texts(envelopes, "user") == ["!think hm\n!say hello"]
            assert await tap.stop(signal.SIGINT) == 0
        assert not (daemon.home / "web").exists()


@pytest.mark.req("web.cli.tap")
async def test_tap_without_a_daemon_says_what_to_do(tmp_path: Path) -> None:
    outcome = await run_web_command("tap", "crab", "--home", tmp_path / "home")
    assert outcome.code == 1
    assert "crabtalkd run" in outcome.err


@pytest.mark.req("web.cli.tap")
async def test_tap_of_an_unknown_agent_lists_the_known_ones(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon:
        outcome = await run_web_command("tap", "nosuch", "--home", daemon.home)
        assert (outcome.code, outcome.out) == (1, "")
        names = ", ".join(sorted(AGENTS))
        assert f"no agent is called 'nosuch'; there are: {names}\n" in outcome.err


@pytest.mark.req("web.cli.up")
async def test_up_prints_a_link_and_a_device_can_talk(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon:
        home = daemon.home
        write_config(home, f"[relay]\nport = {find_free_port()}\n")
        async with start_web_command(tmp_path / "log", "up", "--home", home) as program:
            url = (await program.wait_for_line(r"The page is at (\S+)"))[1]
            link = (await program.wait_for_line(r"(\S+/terminal/connect#key=\S+)"))[1]
            await program.wait_for_line("No other device can open it")
            assert link.startswith(url)
            async with open_device(url) as device:
                await device.approve(link)
                await program.wait_for_line("paired")
                session = await device.wait_for_session()
                await device.send_text(session, "!say hello")
                assert list_texts(await device.wait_for_turns(session)) == ["hello"]
            assert await program.stop() == 0
        # The second time it is already paired, even with another port.
        write_config(home, f"[relay]\nport = {find_free_port()}\n")
        async with start_web_command(tmp_path / "log", "up", "--home", home) as program:
            url = (await program.wait_for_line(r"The page is at (\S+)"))[1]
            async with open_device(url, device.secret) as again:
                session = await again.wait_for_session()
                await again.send_text(session, "!say again")
                assert list_texts(await again.wait_for_turns(session, 2)) == ["hello", "again"]
            assert await program.stop(signal.SIGINT) == 0
        for path in (home / "web").rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode & 0o077 == 0, f"{path} {mode:o}"


@pytest.mark.req("web.cli.up")
@pytest.mark.parametrize("host", ["127.0.0.1:3005", "localhost:3005", "[::1]:3005"])
def test_a_loopback_link_has_no_qr_code(host: str) -> None:
    invitation = format_invitation(f"http://{host}/terminal/connect#key=k", "happy://terminal?k")
    assert f"  http://{host}/terminal/connect#key=k\n" in invitation
    assert "config/web.toml" in invitation
    assert "happy://" not in invitation
    assert not re.search("[█▀▄]", invitation)


@pytest.mark.req("web.cli.up")
def test_a_link_that_a_phone_can_open_has_a_qr_code() -> None:
    invitation = format_invitation(
        "https://relay.example.org/terminal/connect#key=k", "happy://terminal?k"
    )
    assert re.search("[█▀▄]", invitation)
    assert "happy://terminal?k" in invitation
    assert "No other device" not in invitation


@pytest.mark.req("relay.registration.default")
async def test_the_link_contains_an_invite_if_one_is_needed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_config(home, f'[relay]\nport = {find_free_port()}\nregistration = "invite"\n')
    async with start_web_command(tmp_path / "log", "up", "--home", home) as program:
        url = (await program.wait_for_line(r"The page is at (\S+)"))[1]
        await program.wait_for_line("New accounts need an invite")
        invite = (await program.wait_for_line(r"#key=[\w-]+&invite=(\S+)"))[1]
        async with open_device(url, invite=invite) as device:
            assert await device.list_sessions() == []
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
async def test_two_gateways_cannot_run_in_one_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_config(home, f"[relay]\nport = {find_free_port()}\n")
    async with start_web_command(tmp_path / "log", "up", "--home", home) as program:
        await program.wait_for_line("The page is at")
        outcome = await run_web_command("up", "--home", home)
        assert outcome.code == 1
        assert "already runs" in outcome.err


@pytest.mark.req("web.cli.loopback")
async def test_it_listens_elsewhere_only_with_tls_and_a_name(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_config(home, '[relay]\nhost = "0.0.0.0"\nport = 0\n')
    outcome = await run_web_command("up", "--home", home)
    assert outcome.code == 1
    assert "TLS" in outcome.err
    authority = trustme.CA()
    certificate = authority.issue_cert("relay.example.org")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    write_config(
        home,
        f'[relay]\nhost = "0.0.0.0"\nport = {find_free_port()}\nhost_name = "relay.example.org"\n'
        f'tls_certificate = "{tmp_path / "cert.pem"}"\ntls_key = "{tmp_path / "key.pem"}"\n',
    )
    async with start_web_command(tmp_path / "log", "relay", "--home", home) as program:
        assert (await program.wait_for_line("https://relay.example.org"))[0]
        assert await program.stop() == 0


@pytest.mark.req("web.cli.pair")
@pytest.mark.slow
async def test_a_gateway_runs_alone_with_a_remote_relay(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon,
        RelayServer(RelayConfig(tmp_path / "relay", port=0, durability="os")) as relay,
        open_device(relay.url) as device,
    ):
        home = daemon.home
        assert (await run_web_command("gateway", "--home", home)).code == 1
        arguments = ("pair", relay.url, "--home", home)
        async with start_web_command(tmp_path / "log", *arguments) as program:
            await device.approve(
                (await program.wait_for_line(r"(\S+/terminal/connect#key=\S+)"))[1]
            )
            await program.wait_for_line("paired")
            assert await program.process.wait() == 0
        async with start_web_command(tmp_path / "log", "gateway", "--home", home) as program:
            session = await device.wait_for_session()
            await device.send_text(session, "!say alone")
            assert list_texts(await device.wait_for_turns(session)) == ["alone"]
            standing = json.loads(
                (await run_web_command("status", "--home", home, "--json")).output
            )
            assert standing["relay"] == relay.url
            assert standing["running"] is True
            assert {one["agent"] for one in standing["conversations"]} == {"crab", "owl"}
            assert await program.stop() == 0


@pytest.mark.req("web.cli.pair")
async def test_a_remote_relay_needs_tls(tmp_path: Path) -> None:
    outcome = await run_web_command("pair", "http://relay.example.org", "--home", tmp_path / "home")
    assert outcome.code == 1
    assert "https://" in outcome.err


@pytest.mark.req("web.cli.devices")
async def test_a_device_can_be_listed_and_revoked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with (
        RelayServer(RelayConfig(tmp_path / "relay", port=0, durability="os")) as relay,
        open_device(relay.url) as device,
    ):
        WebFolder(home).prepare()
        (await pair_with_device(device, relay.url)).save(WebFolder(home).credentials_file)
        listed = json.loads(
            (await run_web_command("devices", "list", "--home", home, "--json")).output
        )
        ids = {listed_device["id"] for listed_device in listed["devices"]}
        assert len(ids) == 2
        other = await pair_with_device(device, relay.url)
        listed = json.loads(
            (await run_web_command("devices", "list", "--home", home, "--json")).output
        )
        (new,) = {listed_device["id"] for listed_device in listed["devices"]} - ids
        assert (await run_web_command("devices", "revoke", new, "--home", home)).output
        async with RelayHttp(relay.url, other.token) as http:
            with pytest.raises(RelayRefusedError):
                await http.get("/v1/sessions")
        result = await run_web_command("devices", "revoke", "missing", "--home", home)
        assert result.code == 1


@pytest.mark.req("web.cli.status")
async def test_status_of_a_machine_that_is_not_paired(tmp_path: Path) -> None:
    assert "not paired" in (await run_web_command("status", "--home", tmp_path / "home")).output


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
async def test_an_error_in_the_config_file_is_named(
    tmp_path: Path, text: str, complaint: str
) -> None:
    home = tmp_path / "home"
    write_config(home, text)
    outcome = await run_web_command("up", "--home", home)
    assert outcome.code == 1
    assert complaint in outcome.err
    assert "web.toml" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.req("web.cli.config")
def test_the_docs_have_every_setting_with_its_default() -> None:
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
@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
async def test_help_fits_a_screen_and_has_examples(arguments: tuple[str, ...]) -> None:
    help_text = (await run_web_command(*arguments, "--help")).output
    assert help_text == f"{PAGE.render_help(list(arguments))}\n"
    assert len(help_text.splitlines()) <= 30
    if arguments != ("devices",):
        assert "Example" in help_text


@pytest.mark.req("web.cli.help")
def test_the_docs_show_the_help_of_every_command() -> None:
    page = PAGE.read_page()
    assert PAGE.refresh_blocks(page) == page, f"run python -m {PAGE.script}"
    assert set(PAGE.list_shown_commands(page)) >= {" ".join(arguments) for arguments in VERBS}


@pytest.mark.req("web.cli.help")
async def test_unknown_arguments_exit_with_two() -> None:
    assert (await run_web_command("down")).code == 2
