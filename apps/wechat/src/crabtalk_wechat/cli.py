"""crabtalk-wechat: the command. Its verbs are those of every gateway; its setup shows a code."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import has_terminal, home_option, say, show
from crabtalk.component.gateway.cli import Program, gateway_commands, read_token, write_tested

from . import __version__

if TYPE_CHECKING:
    from crabtalk.component.gateway import Service, Settings

    from .login import Login, Screen

NAME = "wechat"
# The settings of its own, with what holds where the file does not say.
EXTRA = {"bot_id": "", "cdn_url": "https://novac2c.cdn.weixin.qq.com/c2c"}


@asynccontextmanager
async def opened(settings: "Settings", own: Path) -> "AsyncIterator[Service]":
    from .opening import open_wechat

    async with open_wechat(settings, own) as service:
        yield service


async def test(settings: "Settings") -> str:
    from .opening import who_am_i

    return await who_am_i(settings)


PROGRAM = Program(NAME, "WeChat", opened, test, EXTRA)
main = gateway_commands(PROGRAM, __version__, setup=False)


@main.command()
@home_option
@click.option("--token-stdin", is_flag=True, help="Read a token you have; no code is shown.")
@click.option("--base-url", metavar="URL", help="Of a server of your own.")
@click.option("--agent", metavar="NAME", help="Who answers.  [default: crab]")
@click.option("--allow", multiple=True, metavar="ID", help="Somebody to serve; repeatable.")
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
        write_tested(PROGRAM, home, token, base_url=base_url, agent=agent, allow=allow)
        return
    if not has_terminal():
        raise click.UsageError("there is no terminal to show a code on; use --token-stdin")
    settings = PROGRAM.settings(home)
    tried = replace(settings, base_url=(base_url or settings.base_url).rstrip("/"))
    login = asyncio.run(logged_in(tried))
    write_login(home, login, base_url=login.base_url or tried.base_url, agent=agent, allow=allow)


async def logged_in(settings: "Settings") -> "Login":
    from .ilink import ILink
    from .login import login
    from .opening import base_url, opened_session

    async with opened_session() as http:
        return await login(ILink(http, base_url(settings)), screen())


def screen() -> "Screen":
    from .login import Screen
    from .qr_code import qr_code

    def code(content: str) -> None:
        say("Scan this with WeChat:\n")
        say(qr_code(content))
        say(content)

    def digits(is_again: bool) -> str:
        asked = "That was wrong. The number on the phone" if is_again else "The number on the phone"
        return str(click.prompt(asked, err=True)).strip()

    return Screen(code, say, digits)


def write_login(
    home: Path, login: "Login", *, base_url: str, agent: str | None, allow: tuple[str, ...]
) -> None:
    from crabtalk.component.gateway import allow as allowed
    from crabtalk.component.gateway import write_settings

    path = PROGRAM.settings_path(home)
    changes: dict[str, Any] = {"token": login.token, "bot_id": login.bot}
    if base_url:
        changes["base_url"] = base_url
    if agent is not None:
        changes["agent"] = agent
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_settings(path, changes)
    known = PROGRAM.settings(home).allowed_users
    if login.person and login.person not in (*known, *allow):
        asked = f"Serve {login.person}, who has scanned it?"
        allow = (*allow, login.person) if click.confirm(asked, default=True, err=True) else allow
    for person in allow:
        allowed(path, person)
    show(f"WeChat knows us as {login.bot or 'a bot'}; {path} is written")
    if not PROGRAM.settings(home).allowed_users:
        show(f"Nobody is served yet: start `{PROGRAM.command} run`, then `{PROGRAM.command} pair`")
