"""The program: setup, pairing, run and stop; and its command line."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import crabtalk_telegram
from apps.telegram.help_pages import PAGE
from apps.telegram.tests.bot_api_server import run_bot_api
from apps.telegram.tests.telegram_command import TELEGRAM_COMMAND
from apps.telegram.tests.telegram_world import open_telegram_world
from crabtalk.gateway import load_settings, write_settings
from crabtalk.gateway.settings import SHARED_KEYS
from crabtalk_telegram.cli import EXTRA_SETTINGS, main
from tests.gateway.managed_gateway import manage_gateway

pytestmark = pytest.mark.one_loop

COMMANDS = [(), *((name,) for name in main.commands)]
DOCS = Path(__file__).parents[3] / "docs" / "telegram.md"


@pytest.mark.req("telegram.program")
async def test_it_is_set_up_paired_and_talked_to(tmp_path: Path) -> None:
    async with open_telegram_world(tmp_path) as w:
        home, where = ("--home", w.home), ("--base-url", w.api.url)
        path = w.home / "config" / "telegram.toml"

        outcome = await TELEGRAM_COMMAND.run_command("run", *home)
        assert (outcome.code, "run `crabtalk-telegram setup`" in outcome.err) == (1, True), outcome
        outcome = await TELEGRAM_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed="1:wrong\n"
        )
        assert (outcome.code, "does not know this token" in outcome.err) == (1, True), outcome
        assert not path.exists(), "only a token that works is written"
        outcome = await TELEGRAM_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed=w.api.token
        )
        assert (outcome.code, "knows us as @crab_bot" in outcome.out) == (0, True), outcome
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_settings(path, EXTRA_SETTINGS).token == w.api.token
        outcome = await TELEGRAM_COMMAND.run_command("check", *home, "--json")
        assert json.loads(outcome.out) == {"name": "@crab_bot", "allowed_users": []}

        async with TELEGRAM_COMMAND.run_gateway(w.home, "--verbose") as process:
            await w.api.wait_until(lambda: w.api.calls["getUpdates"])
            outcome = await TELEGRAM_COMMAND.run_command("pair", *home, "--json")
            w.api.add_message(f"/start {json.loads(outcome.out)['code']}")
            await w.api.wait_until(lambda: w.api.texts_in())
            assert "Welcome" in w.api.texts_in()[0]
            w.api.add_message("hello")
            await w.api.wait_until(lambda: w.api.texts_in()[-1] == "heard: hello")
            outcome = await TELEGRAM_COMMAND.run_command("run", *home)
            assert (outcome.code, "already runs" in outcome.err) == (1, True), outcome
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert load_settings(path, EXTRA_SETTINGS).allowed_users == ("7",)
        logged = (tmp_path / "output.log").read_text()
        logged += (w.home / "logs" / "telegram.log").read_text()
        assert "this is @crab_bot" in logged
        assert w.api.token not in logged
        assert "Traceback" not in logged


@pytest.mark.req("telegram.program")
@pytest.mark.req("gateways.pairing")
async def test_at_a_terminal_it_asks_for_the_token_and_prints_a_code(home: Path) -> None:
    async with run_bot_api() as api:
        where, prompt = ("--home", home), "Token of Telegram: "
        code, screen = await TELEGRAM_COMMAND.run_at_terminal(
            "setup", *where, "--base-url", api.url, typed_after={prompt: f"{api.token}\n"}
        )
        assert (code, "knows us as @crab_bot" in screen) == (0, True), screen
        assert api.token not in screen
        code, screen = await TELEGRAM_COMMAND.run_at_terminal(
            "run", *where, typed_after={"from then on: ": "\x03"}
        )
    assert code in (0, 130), screen
    assert re.search(r"serves you from then on: [A-Z2-9]{8}\n", screen)


@pytest.mark.req("telegram.crabup")
@pytest.mark.parametrize("has_systemd", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_crabup_starts_it_and_stops_it(tmp_path: Path, home: Path, has_systemd: bool) -> None:
    async with run_bot_api() as api:
        changes = {"token": api.token, "base_url": api.url, "allowed_users": [7]}
        write_settings(home / "config" / "telegram.toml", changes)
        with manage_gateway("telegram", tmp_path, home, has_systemd=has_systemd) as gateway:
            await gateway.start()
            api.add_message("hello", "66")
            await api.wait_until(lambda: "do not know you" in "".join(api.texts_in("66")))
            logs = await gateway.read_logs()
            assert "this is @crab_bot" in logs
            assert api.token not in logs
            await gateway.stop()
        polls = api.calls["getUpdates"]
        api.add_message("hello")
        assert (api.calls["getUpdates"], len(api.pending)) == (polls, 1)


@pytest.mark.req("telegram.token")
async def test_a_revoked_token_ends_the_gateway_and_says_what_to_do(home: Path) -> None:
    async with run_bot_api() as api:
        changes = {"token": "1:no", "base_url": api.url, "allowed_users": [7]}
        write_settings(home / "config" / "telegram.toml", changes)
        outcome = await TELEGRAM_COMMAND.run_command("run", "--home", home)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].endswith("run `crabtalk-telegram setup`")


@pytest.mark.req("telegram.webhook")
async def test_a_port_in_use_is_reported(home: Path) -> None:
    async with run_bot_api() as api:
        listen = api.url.removeprefix("http://")
        changes = {"token": api.token, "base_url": api.url, "webhook_listen": listen}
        changes["webhook_url"] = "https://bot.example"
        write_settings(home / "config" / "telegram.toml", changes)
        outcome = await TELEGRAM_COMMAND.run_command("run", "--home", home)
    assert (outcome.code, f"cannot listen at {listen}" in outcome.err) == (1, True), outcome


# ── The command line itself ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.req("telegram.cli.help")
async def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    outcome = await TELEGRAM_COMMAND.run_command(*words, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{PAGE.render_help(list(words))}\n"
    assert " ".join(["crabtalk-telegram", *words]) in outcome.out.partition("Example")[2]
    assert len(outcome.out.splitlines()) <= 24
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.req("telegram.cli.help")
def test_the_page_has_the_current_help_of_all_commands() -> None:
    page = PAGE.read_page()
    assert PAGE.refresh_blocks(page) == page, f"run python -m {PAGE.script}"
    assert sorted(PAGE.list_shown_commands(page)) == sorted(["", *main.commands])


@pytest.mark.req("telegram.cli.help")
def test_help_loads_nothing_of_telegram() -> None:
    program = (
        "import sys, crabtalk_telegram.cli\n"
        "heavy = ('telegram', 'httpx', 'aiohttp', 'asyncio', 'msgspec', 'crabtalk.client')\n"
        "print([module for module in heavy if module in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout == b"[]\n"


@pytest.mark.req("telegram.cli.help")
def test_the_installed_command_prints_its_version() -> None:
    result = subprocess.run(
        [TELEGRAM_COMMAND.program, "--version"], capture_output=True, check=True, env=os.environ
    )
    assert result.stdout.decode() == f"crabtalk-telegram {crabtalk_telegram.__version__}\n"


@pytest.mark.req("telegram.docs")
def test_the_page_has_every_setting_and_no_other(tmp_path: Path) -> None:
    page = DOCS.read_text("utf-8")
    (block,) = [part.partition("```")[0] for part in page.split("```toml\n")[1:]]
    (tmp_path / "telegram.toml").write_text(block)
    settings = load_settings(tmp_path / "telegram.toml", EXTRA_SETTINGS)
    assert set(tomllib.loads(block)) == {*SHARED_KEYS, *EXTRA_SETTINGS}
    assert settings.allowed_users == ("12345", "group:-1001234567890")
    for key, default in EXTRA_SETTINGS.items():
        assert f"`{key}`" in page
        assert f"`{json.dumps(default)}`" in page
