"""Running: gateway and relay in the foreground of a terminal, until somebody stops them."""

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

# How long the invite is good that `crabtalk-web up` prints. Seconds.
FIRST_INVITE_LIFETIME = 24 * 3600.0
PAGE_FOLDER = Path(__file__).with_name("page")


def run_in_foreground(
    home: Path, verbose: bool, work: Coroutine[Any, Any, None], *names: str
) -> None:
    """In the foreground, the only one of these names in this home, with a log of its own."""
    from crabtalk.service import ComponentError, ComponentPaths, start_log

    places = [ComponentPaths(home, name) for name in names]
    try:
        with ExitStack() as stack:
            for place in places:
                stack.enter_context(place.hold_lock())
            start_log(places[0].log_path, verbose=verbose)
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

    store = WebFolder(home)
    store.prepare()
    config = load_config(store.config_file)
    async with RelayServer(build_relay_config(home, config)) as relay:
        print_output(f"The page is at {relay.url}")
        for notice in relay.config.notices():
            print_output(notice)
        credentials = load_credentials(store.credentials_file)
        if credentials is not None and await is_token_valid(relay.url, credentials.token):
            credentials = replace(credentials, relay=relay.url)  # it may have moved
        else:
            credentials = await pair_machine(
                store.credentials_file, relay.url, await create_first_invite(relay)
            )
        await WebGateway(home, credentials, config).run()


async def create_first_invite(relay: "RelayServer") -> str:
    """An invite for whoever opens the link of this machine; empty where none is needed."""
    if relay.config.registration_mode != "invite":
        return ""
    return await relay.create_invite(1, FIRST_INVITE_LIFETIME)


async def run_relay(config: "RelayConfig") -> None:
    from .relay import RelayServer

    async with RelayServer(config) as serving:
        print_output(serving.url)
        for notice in config.notices():
            print_output(notice)
        await asyncio.Event().wait()  # until cancelled, as it is meant to be


def build_relay_config(
    home: Path, config: "GatewayConfig", port: int | None = None, registration: str = ""
) -> "RelayConfig":
    """Raises RelayConfigError."""
    from .gateway.web_folder import WebFolder
    from .relay import RelayConfig
    from .relay.limits import read_limits

    given = config.relay
    return RelayConfig(
        data=WebFolder(home).relay_folder,
        host=given.host,
        port=given.port if port is None else port,
        tls_certificate=Path(given.tls_certificate).expanduser() if given.tls_certificate else None,
        tls_key=Path(given.tls_key).expanduser() if given.tls_key else None,
        host_name=given.host_name,
        public_url=given.public_url,
        static=PAGE_FOLDER,
        registration=registration or given.registration,  # type: ignore[arg-type]  # it checks
        trusted_proxies=given.trusted_proxies,
        limits=read_limits(given.limits),
    )
