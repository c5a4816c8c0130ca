"""Running: gateway and relay in the foreground of a terminal, until somebody stops them."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crabtalk.component.command import show

from .account import is_welcome, paired

if TYPE_CHECKING:
    from .gateway import GatewayConfig
    from .relay import Relay, RelayConfig

# How long the invite is good that `crabtalk-web up` prints. Seconds.
FIRST_INVITE = 24 * 3600.0
PAGE = Path(__file__).with_name("page")


def run(home: Path, verbose: bool, work: Coroutine[Any, Any, None], *names: str) -> None:
    """In the foreground, the only one of these names in this home, with a log of its own."""
    from crabtalk.component import ComponentError, Place, start_log

    places = [Place(home, name) for name in names]
    try:
        with ExitStack() as stack:
            for place in places:
                stack.enter_context(place.taken())
            start_log(places[0].log, verbose=verbose)
            with_loop(until_stopped(work))
    except ComponentError:
        work.close()
        raise


def with_loop(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    running = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


async def up_until_stopped(home: Path) -> None:
    from .gateway import Gateway, load_config, load_credentials
    from .gateway.store import Store
    from .relay import Relay

    store = Store(home)
    store.prepare()
    config = load_config(store.config)
    async with Relay(relay_config(home, config)) as relay:
        show(f"The page is at {relay.url}")
        for notice in relay.config.notices():
            show(notice)
        credentials = load_credentials(store.credentials)
        if credentials is not None and await is_welcome(relay.url, credentials.token):
            credentials = replace(credentials, relay=relay.url)  # it may have moved
        else:
            credentials = await paired(store.credentials, relay.url, await first_invite(relay))
        await Gateway(home, credentials, config).run()


async def first_invite(relay: "Relay") -> str:
    """An invite for whoever opens the link of this machine; empty where none is needed."""
    if relay.config.registration_mode != "invite":
        return ""
    return await relay.create_invite(1, FIRST_INVITE)


async def relay_until_stopped(config: "RelayConfig") -> None:
    from .relay import Relay

    async with Relay(config) as serving:
        show(serving.url)
        for notice in config.notices():
            show(notice)
        await asyncio.Event().wait()  # until cancelled, as it is meant to be


def relay_config(
    home: Path, config: "GatewayConfig", port: int | None = None, registration: str = ""
) -> "RelayConfig":
    """Raises RelayConfigError."""
    from .gateway.store import Store
    from .relay import RelayConfig
    from .relay.limits import read_limits

    given = config.relay
    return RelayConfig(
        data=Store(home).relay,
        host=given.host,
        port=given.port if port is None else port,
        tls_certificate=Path(given.tls_certificate).expanduser() if given.tls_certificate else None,
        tls_key=Path(given.tls_key).expanduser() if given.tls_key else None,
        host_name=given.host_name,
        public_url=given.public_url,
        static=PAGE,
        registration=registration or given.registration,  # type: ignore[arg-type]  # it checks
        trusted_proxies=given.trusted_proxies,
        limits=read_limits(given.limits),
    )
