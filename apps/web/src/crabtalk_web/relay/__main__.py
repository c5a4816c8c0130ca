"""`python -m crabtalk_web.relay DATA`: runs a relay alone and prints its address, until SIGTERM."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .config import RelayConfig
from .errors import RelayConfigError
from .server import RelayServer


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=3005, show_default=True, help="0 for any that is free.")
@click.option("--tls-certificate", type=click.Path(path_type=Path))
@click.option("--tls-key", type=click.Path(path_type=Path))
@click.option("--host-name", default="", help="How others reach this machine.")
@click.option("--public-url", default="", help="The address of what stands in front of it.")
@click.option("--static", type=click.Path(path_type=Path), help="The folder of the page.")
@click.option("--durability", default="fsync", type=click.Choice(["fsync", "os"]))
@click.option("--registration", default="", type=click.Choice(["", "open", "invite", "closed"]))
@click.option("--trusted-proxy", "trusted_proxies", multiple=True, help="An address or network.")
@click.option("--nonce-only", is_flag=True, help="Refuse logins that any challenge will do for.")
def main(**options: Any) -> None:
    """Keep and pass on what gateways and devices seal for each other, in the folder DATA."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = RelayConfig(**options)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(config))
    except RelayConfigError as error:
        click.echo(f"crabtalk relay: {error}", err=True)
        sys.exit(1)


async def serve(config: RelayConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with RelayServer(config) as relay:
        click.echo(relay.url)
        for notice in config.notices():
            click.echo(notice, err=True)
        await stop.wait()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
