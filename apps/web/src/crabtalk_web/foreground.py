"""Runs gateway and relay in the foreground of a terminal, until they are stopped."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crabtalk.service.command_line import print_output

from .account import is_token_valid, pair_machine

if TYPE_CHECKING:
    from .gateway import GatewayConfig
    from .relay import RelayConfig, RelayServer

# How long the invite that `crabtalk-web up` prints is valid. Seconds.
FIRST_INVITE_LIFETIME = 24 * 3600.0
PAGE_FOLDER = Path(__file__).with_name("page")


def run_in_foreground(
    home: Path, verbose: bool, work: Coroutine[Any, Any, None], *names: str
) -> None:
    """Run in the foreground with its own log, holding the locks of these names in this home."""
    from crabtalk.service import ComponentError, ComponentPaths, start_log

    paths = [ComponentPaths(home, name) for name in names]
    try:
        with ExitStack() as stack:
            for component_paths in paths:
                stack.enter_context(component_paths.hold_lock())
            start_log(paths[0].log_path, verbose=verbose)
            run_event_loop(run_until_stopped(work))
    except ComponentError:
        work.close()
        raise


def run_event_loop(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    running = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


async def run_relay_and_gateway(home: Path) -> None:
    from .gateway import WebGateway, load_config, load_credentials
    from .gateway.web_folder import WebFolder
    from .relay import RelayServer

    folder = WebFolder(home)
    folder.prepare()
    config = load_config(folder.config_file)
    async with RelayServer(build_relay_config(home, config)) as relay:
        print_output(f"The page is at {relay.url}")
        for notice in relay.config.notices():
            print_output(notice)
        credentials = load_credentials(folder.credentials_file)
        if credentials is not None and await is_token_valid(relay.url, credentials.token):
            credentials = replace(credentials, relay=relay.url)  # its address may have changed
        else:
            credentials = await pair_machine(
                folder.credentials_file, relay.url, await create_first_invite(relay)
            )
        await WebGateway(home, credentials, config).run()


async def create_first_invite(relay: "RelayServer") -> str:
    """Return an invite for the person who opens this machine's link; empty if none is needed."""
    if relay.config.registration_mode != "invite":
        return ""
    return await relay.create_invite(1, FIRST_INVITE_LIFETIME)


async def run_relay(config: "RelayConfig") -> None:
    from .relay import RelayServer

    async with RelayServer(config) as server:
        print_output(server.url)
        for notice in config.notices():
            print_output(notice)
        await asyncio.Event().wait()  # until cancelled


def build_relay_config(
    home: Path, config: "GatewayConfig", port: int | None = None, registration: str = ""
) -> "RelayConfig":
    """Raises RelayConfigError."""
    from .gateway.web_folder import WebFolder
    from .relay import RelayConfig
    from .relay.limits import read_limits

    settings = config.relay
    return RelayConfig(
        data=WebFolder(home).relay_folder,
        host=settings.host,
        port=settings.port if port is None else port,
        tls_certificate=Path(settings.tls_certificate).expanduser()
        if settings.tls_certificate
        else None,
        tls_key=Path(settings.tls_key).expanduser() if settings.tls_key else None,
        host_name=settings.host_name,
        public_url=settings.public_url,
        static=PAGE_FOLDER,
        registration=registration or settings.registration,  # type: ignore[arg-type]  # it checks
        trusted_proxies=settings.trusted_proxies,
        limits=read_limits(settings.limits),
    )
