"""The program: setup with a QR code, pairing, run and stop; and its command line."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import crabtalk_wechat
from apps.wechat.help_pages import PAGE
from apps.wechat.tests.ilink_server import ANN, BO, BOT, TOKEN, WeChatFault, run_ilink_server
from apps.wechat.tests.wechat_command import WECHAT_COMMAND
from apps.wechat.tests.wechat_world import open_wechat_world
from crabtalk.gateway import load_settings, write_settings
from crabtalk.gateway.settings import SHARED_KEYS
from crabtalk_wechat.cli import EXTRA_SETTINGS, main
from crabtalk_wechat.qr_code import render_qr_code
from tests.gateway.managed_gateway import manage_gateway

pytestmark = pytest.mark.one_loop

COMMANDS = [(), *((name,) for name in main.commands)]
DOCS = Path(__file__).parents[3] / "docs" / "wechat.md"


@pytest.mark.req("wechat.login")
async def test_setup_shows_a_qr_code_that_is_scanned_and_confirmed(home: Path) -> None:
    async with run_ilink_server() as api:
        api.inject_faults("get_qrcode_status", WeChatFault(502))
        elsewhere = {"status": "scaned_but_redirect", "redirect_host": api.url.split("//")[1]}
        api.queue_statuses(
            "wait", "expired", "need_verifycode", "need_verifycode", "scaned", elsewhere
        )
        api.queue_statuses(api.make_confirmed("fresh"))
        types = {"The number on the phone": "12\n", "That was wrong": "34\n", "Serve ann": "\n"}
        code, screen = await WECHAT_COMMAND.run_at_terminal(
            *("setup", "--home", home, "--base-url", api.url, "--agent", "twin"), typed_after=types
        )
    assert code == 0, screen
    for number in (1, 2):
        url = f"https://wechat.example/qr?code=code-{number}"
        assert url in screen
        assert render_qr_code(url).strip() in screen
    assert api.digits == ["", "", "", "12", "34", "", ""]
    assert "Confirm it on the phone" in screen
    assert f"knows us as {BOT}" in screen
    assert "fresh" not in screen, "the token is never shown"
    path = home / "config" / "wechat.toml"
    settings = load_settings(path, EXTRA_SETTINGS)
    assert (settings.token, settings.base_url, settings.agent) == ("fresh", api.url, "twin")
    assert (settings.allowed_users, settings.extra["bot_id"]) == ((ANN,), BOT)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("wechat.login")
async def test_the_scanning_person_need_not_be_served_and_a_code_may_stay_unscanned(
    home: Path,
) -> None:
    async with run_ilink_server() as api:
        where = ("setup", "--home", home, "--base-url", api.url)
        api.queue_statuses(*["expired"] * 3)
        code, screen = await WECHAT_COMMAND.run_at_terminal(*where, typed_after={})
        assert (code, "the code was not scanned" in screen) == (1, True), screen
        assert (len(api.codes), home.exists()) == (3, False)
        api.queue_statuses("binded_redirect")
        code, screen = await WECHAT_COMMAND.run_at_terminal(*where, typed_after={})
        assert (code, "crabtalk-wechat setup" in screen) == (1, True), screen
        api.queue_statuses(api.make_confirmed())
        code, screen = await WECHAT_COMMAND.run_at_terminal(
            *where, typed_after={"Serve ann": "n\n"}
        )
        assert (code, "No user is served yet" in screen) == (0, True), screen
    assert load_settings(home / "config" / "wechat.toml", EXTRA_SETTINGS).allowed_users == ()


@pytest.mark.req("wechat.program")
async def test_it_is_set_up_paired_and_talked_to(tmp_path: Path) -> None:
    async with open_wechat_world(tmp_path) as w:
        home, where = ("--home", w.home), ("--base-url", w.api.url)
        path = w.home / "config" / "wechat.toml"

        outcome = await WECHAT_COMMAND.run_command("run", *home)
        assert (outcome.code, "run `crabtalk-wechat setup`" in outcome.err) == (1, True), outcome
        outcome = await WECHAT_COMMAND.run_command("setup", *home, *where)
        assert (outcome.code, "use --token-stdin" in outcome.err) == (2, True), outcome
        outcome = await WECHAT_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed="wrong\n"
        )
        assert (outcome.code, "does not know this token" in outcome.err) == (1, True), outcome
        assert not path.exists(), "only a token that works is written"
        outcome = await WECHAT_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed=TOKEN
        )
        assert (outcome.code, "knows us as a bot" in outcome.out) == (0, True), outcome
        assert path.stat().st_mode & 0o777 == 0o600
        outcome = await WECHAT_COMMAND.run_command("check", *home, "--json")
        assert json.loads(outcome.out) == {"name": "a bot", "allowed_users": []}

        async with WECHAT_COMMAND.run_gateway(w.home, "--verbose") as process:
            await w.api.wait_until(lambda: w.api.calls["getupdates"])
            outcome = await WECHAT_COMMAND.run_command("pair", *home, "--json")
            w.api.add_message(json.loads(outcome.out)["code"], BO)
            await w.api.wait_until(lambda: w.api.texts_to(BO))
            assert "Welcome" in w.api.texts_to(BO)[0]
            w.api.add_message("hello", BO)
            await w.api.wait_until(lambda: w.api.texts_to(BO)[-1] == "heard: hello")
            w.api.tokens.clear()
            logged = tmp_path / "output.log"
            await w.wait_until(lambda: "WeChat has ended the session" in logged.read_text())
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert load_settings(path, EXTRA_SETTINGS).allowed_users == (BO,)
        said_all = logged.read_text() + (w.home / "logs" / "wechat.log").read_text()
        assert TOKEN not in said_all
        assert "Traceback" not in said_all


@pytest.mark.req("wechat.crabup")
@pytest.mark.parametrize("has_systemd", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_crabup_starts_it_and_stops_it(tmp_path: Path, home: Path, has_systemd: bool) -> None:
    async with run_ilink_server() as api:
        changes = {"token": TOKEN, "base_url": api.url, "allowed_users": [ANN]}
        write_settings(home / "config" / "wechat.toml", changes)
        with manage_gateway("wechat", tmp_path, home, has_systemd=has_systemd) as gateway:
            await gateway.start()
            api.add_message("hello", BO)
            await api.wait_until(lambda: "do not know you" in "".join(api.texts_to(BO)))
            assert TOKEN not in await gateway.read_logs()
            await gateway.stop()
        polls = api.calls["getupdates"]
        api.add_message("hello")
        assert (api.calls["getupdates"], api.is_read) == (polls, False)


# ── The command line itself ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.req("wechat.cli.help")
async def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    outcome = await WECHAT_COMMAND.run_command(*words, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{PAGE.render_help(list(words))}\n"
    assert " ".join(["crabtalk-wechat", *words]) in outcome.out.partition("Example")[2]
    assert len(outcome.out.splitlines()) <= 24
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.req("wechat.cli.help")
def test_the_page_has_the_current_help_of_all_commands() -> None:
    page = PAGE.read_page()
    assert PAGE.refresh_blocks(page) == page, f"run python -m {PAGE.script}"
    assert sorted(PAGE.list_shown_commands(page)) == sorted(["", *main.commands])


@pytest.mark.req("wechat.cli.help")
def test_help_loads_nothing_it_does_not_need() -> None:
    program = (
        "import sys, crabtalk_wechat.cli\n"
        "heavy = ('aiohttp', 'asyncio', 'cryptography', 'segno', 'msgspec', 'crabtalk.client')\n"
        "print([module for module in heavy if module in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout == b"[]\n"


@pytest.mark.req("wechat.cli.help")
def test_the_installed_command_prints_its_version() -> None:
    result = subprocess.run(
        [WECHAT_COMMAND.program, "--version"], capture_output=True, check=True, env=os.environ
    )
    assert result.stdout.decode() == f"crabtalk-wechat {crabtalk_wechat.__version__}\n"


@pytest.mark.req("wechat.docs")
def test_the_page_has_every_setting_and_no_other(tmp_path: Path) -> None:
    page = DOCS.read_text("utf-8")
    (block,) = [part.partition("```")[0] for part in page.split("```toml\n")[1:]]
    (tmp_path / "wechat.toml").write_text(block)
    settings = load_settings(tmp_path / "wechat.toml", EXTRA_SETTINGS)
    assert set(tomllib.loads(block)) == {*SHARED_KEYS, *EXTRA_SETTINGS}
    assert settings.allowed_users == ("o9cq80abc@im.wechat",)
    for key, default in EXTRA_SETTINGS.items():
        assert f"`{key}`" in page
        assert f"`{json.dumps(default)}`" in page
