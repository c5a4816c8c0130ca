"""The command `crabtalk-wechat`: every gateway's commands, and a setup that shows a QR code."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.gateway.cli import (
    GatewayProgram,
    build_gateway_cli,
    read_token,
    verify_and_write_settings,
)
from crabtalk.service.command_line import has_terminal, home_option, print_output, print_to_stderr

from . import __version__

if TYPE_CHECKING:
    from crabtalk.gateway import ChatService, GatewaySettings

    from .login import LoginScreen, WeChatLogin

SERVICE_NAME = "wechat"
# WeChat's own settings and their defaults.
EXTRA_SETTINGS = {"bot_id": "", "cdn_url": "https://novac2c.cdn.weixin.qq.com/c2c"}


@asynccontextmanager
async def open_service(
    settings: "GatewaySettings", directory: Path
) -> "AsyncIterator[ChatService]":
    from .service_setup import open_wechat

    async with open_wechat(settings, directory) as service:
        yield service


async def fetch_identity(settings: "GatewaySettings") -> str:
    from .service_setup import fetch_identity

    return await fetch_identity(settings)


PROGRAM = GatewayProgram(SERVICE_NAME, "WeChat", open_service, fetch_identity, EXTRA_SETTINGS)
main = build_gateway_cli(PROGRAM, __version__, setup=False)


@main.command()
@home_option
@click.option("--token-stdin", is_flag=True, help="Read a token you have; no code is shown.")
@click.option("--base-url", metavar="URL", help="Of a server of your own.")
@click.option("--agent", metavar="NAME", help="Who answers.  [default: crab]")
@click.option("--allow", multiple=True, metavar="ID", help="A person to serve; repeatable.")
def setup(
    home: Path,
    token_stdin: bool,
    base_url: str | None,
    agent: str | None,
    allow: tuple[str, ...],
) -> None:
    """Show a code to scan with WeChat, and write the settings.

    \b
    Examples:
      crabtalk-wechat setup
      crabtalk-wechat setup --token-stdin < token.txt
    """
    import asyncio

    if token_stdin:
        token = read_token(PROGRAM, from_stdin=True)
        verify_and_write_settings(PROGRAM, home, token, base_url=base_url, agent=agent, allow=allow)
        return
    if not has_terminal():
        raise click.UsageError("there is no terminal to show a code on; use --token-stdin")
    settings = PROGRAM.load_settings(home)
    login_settings = replace(settings, base_url=(base_url or settings.base_url).rstrip("/"))
    login = asyncio.run(log_in(login_settings))
    write_login(
        home, login, base_url=login.base_url or login_settings.base_url, agent=agent, allow=allow
    )


async def log_in(settings: "GatewaySettings") -> "WeChatLogin":
    from .ilink import ILinkClient
    from .login import run_login
    from .service_setup import get_base_url, open_session

    async with open_session() as http:
        return await run_login(ILinkClient(http, get_base_url(settings)), make_login_screen())


def make_login_screen() -> "LoginScreen":
    from .login import LoginScreen
    from .qr_code import render_qr_code

    def show_code(content: str) -> None:
        print_to_stderr("Scan this with WeChat:\n")
        print_to_stderr(render_qr_code(content))
        print_to_stderr(content)

    def ask_digits(is_again: bool) -> str:
        prompt = (
            "That was wrong. The number on the phone" if is_again else "The number on the phone"
        )
        return str(click.prompt(prompt, err=True)).strip()

    return LoginScreen(show_code, print_to_stderr, ask_digits)


def write_login(
    home: Path, login: "WeChatLogin", *, base_url: str, agent: str | None, allow: tuple[str, ...]
) -> None:
    from crabtalk.gateway import allow_user, write_settings

    path = PROGRAM.settings_path(home)
    changes: dict[str, Any] = {"token": login.token, "bot_id": login.bot}
    if base_url:
        changes["base_url"] = base_url
    if agent is not None:
        changes["agent"] = agent
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_settings(path, changes)
    known = PROGRAM.load_settings(home).allowed_users
    if login.person and login.person not in (*known, *allow):
        question = f"Serve {login.person}, who has scanned it?"
        allow = (*allow, login.person) if click.confirm(question, default=True, err=True) else allow
    for person in allow:
        allow_user(path, person)
    print_output(f"WeChat knows us as {login.bot or 'a bot'}; {path} is written")
    if not PROGRAM.load_settings(home).allowed_users:
        print_output(
            f"No user is served yet: start `{PROGRAM.command_name} run`, "
            f"then `{PROGRAM.command_name} pair`"
        )
