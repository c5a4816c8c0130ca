"""crabtalk-telegram: the command. Its verbs are those of every gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from crabtalk.component.gateway.cli import Program, gateway_commands

from . import __version__

if TYPE_CHECKING:
    from crabtalk.component.gateway import Service, Settings

NAME = "telegram"
# The settings of its own, with what holds where the file does not say.
EXTRA = {"webhook_url": "", "webhook_listen": "127.0.0.1:8443"}


@asynccontextmanager
async def opened(settings: "Settings", own: Path) -> "AsyncIterator[Service]":
    from .opening import open_telegram

    async with open_telegram(settings) as service:
        yield service


async def test(settings: "Settings") -> str:
    from .opening import who_am_i

    return await who_am_i(settings)


main = gateway_commands(Program(NAME, "Telegram", opened, test, EXTRA), __version__)
