"""The command `crabtalk-telegram`. It has the commands of every gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from crabtalk.gateway.cli import GatewayProgram, build_gateway_cli

from . import __version__

if TYPE_CHECKING:
    from crabtalk.gateway import ChatService, GatewaySettings

SERVICE_NAME = "telegram"
# Telegram's own settings and their defaults.
EXTRA_SETTINGS = {"webhook_url": "", "webhook_listen": "127.0.0.1:8443"}


@asynccontextmanager
async def open_service(
    settings: "GatewaySettings", directory: Path
) -> "AsyncIterator[ChatService]":
    from .bot_setup import open_telegram

    async with open_telegram(settings) as service:
        yield service


async def fetch_identity(settings: "GatewaySettings") -> str:
    from .bot_setup import fetch_identity

    return await fetch_identity(settings)


main = build_gateway_cli(
    GatewayProgram(SERVICE_NAME, "Telegram", open_service, fetch_identity, EXTRA_SETTINGS),
    __version__,
)
