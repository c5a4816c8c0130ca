"""crabtalk-web: the command, its verbs, and how any of them ends."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    Commands,
    document,
    home_option,
    json_option,
    one_line,
    show,
    table,
    verbose_option,
)

from . import __version__
from .qr_code import qr_code

if TYPE_CHECKING:
    from .gateway import Credentials, GatewayConfig
    from .relay import RelayConfig

NAME = "crabtalk-web"
PAGE = Path(__file__).with_name("page")
EXAMPLES = """\b
Examples:
  crabtalk-web up
  crabtalk-web tap crab
  crabtalk-web pair https://relay.example.org && crabtalk-web gateway
"""


class Web(Commands):
    def complaint(self, error: Exception) -> str | None:
        from crabtalk.component import ComponentError

        from .gateway.errors import AWAY, GatewayError, RelayAwayError, RelayRefusedError
        from .relay.errors import RelayConfigError

        known = (ComponentError, GatewayError, RelayAwayError, RelayRefusedError, RelayConfigError)
        if isinstance(error, ExceptionGroup):
            expected, _ = error.split((*known, *AWAY))
            return str(first_of(expected)) if expected is not None else None
        return str(error) if isinstance(error, (*known, *AWAY)) else None


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    found: Exception = group
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


@click.group(
    NAME, cls=Web, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def main() -> None:
    """Your conversations on any screen, encrypted from end to end."""


@main.command()
@home_option
@verbose_option
def up(home: Path, verbose: bool) -> None:
    """Run gateway and relay together, and say how to open them.

    On this machine only, unless [relay] in config/web.toml has a TLS certificate and a host name.
    Prints a link and its QR code until a device was let in.

    \b
    Example:
      crabtalk-web up
    """
    run(home, verbose, up_until_stopped(home), "web", "relay")


async def up_until_stopped(home: Path) -> None:
    from .gateway import Gateway, load_config, load_credentials
    from .gateway.store import Store
    from .relay import Relay

    store = Store(home)
    store.prepare()
    config = load_config(store.config)
    async with Relay(relay_config(home, config)) as relay:
        show(f"The page is at {relay.url}")
        credentials = load_credentials(store.credentials)
        if credentials is not None and await is_welcome(relay.url, credentials.token):
            credentials = replace(credentials, relay=relay.url)  # it may have moved
        else:
            credentials = await paired(store.credentials, relay.url)
        await Gateway(home, credentials, config).run()


async def is_welcome(url: str, token: str) -> bool:
    from .gateway import RelayHttp, RelayRefusedError

    async with RelayHttp(url, token) as relay:
        try:
            await relay.get("/v1/account/profile")
        except RelayRefusedError:
            return False
        return True


async def paired(path: Path, url: str) -> "Credentials":
    """Shows how to let this machine in, again and again until somebody does."""
    from .gateway import GatewayError, Pairing, RelayHttp

    async with RelayHttp(url) as relay:
        while True:
            pairing = Pairing(relay)
            await pairing.ask()  # a link is of use only once the relay knows of it
            show(f"Open this on your device, or scan it:\n\n  {pairing.link}\n")
            show(qr_code(pairing.link))
            show(f"An app that scans terminals takes {pairing.app_link}")
            try:
                found = await pairing.wait()
            except GatewayError:
                continue
            await asyncio.to_thread(found.save, path)
            show("This machine is paired.")
            return found


@main.command()
@click.argument("url")
@home_option
def pair(url: str, home: Path) -> None:
    """Pair this machine with an account at the relay at URL.

    Prints a link and its QR code, and waits until a device of the account has let it in.

    \b
    Example:
      crabtalk-web pair https://relay.example.org
    """
    from .gateway import GatewayError
    from .gateway.store import Store

    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
        raise GatewayError("a relay elsewhere is reached by https:// alone; correct the address")
    store = Store(home)
    store.prepare()
    asyncio.run(paired(store.credentials, url.rstrip("/")))


@main.command()
@home_option
@verbose_option
def gateway(home: Path, verbose: bool) -> None:
    """Run the gateway alone, for the relay it was paired with.

    \b
    Example:
      crabtalk-web gateway
    """
    from .gateway import Gateway

    config, credentials = settings(home)
    run(home, verbose, Gateway(home, credentials, config).run(), "web")


@main.command()
@home_option
@verbose_option
@click.option("--port", type=click.IntRange(0, 65535), help="Another than config/web.toml says.")
def relay(home: Path, verbose: bool, port: int | None) -> None:
    """Run the relay alone. It keeps what it cannot read.

    \b
    Example:
      crabtalk-web relay --port 3005
    """
    from .gateway import load_config
    from .gateway.store import Store

    config = load_config(Store(home).config)
    Store(home).prepare()
    run(home, verbose, relay_until_stopped(relay_config(home, config, port)), "relay")


async def relay_until_stopped(config: "RelayConfig") -> None:
    from .relay import Relay

    async with Relay(config) as serving:
        show(serving.url)
        await asyncio.Event().wait()  # until cancelled, as it is meant to be


@main.command()
@click.argument("agent")
@click.option("--sender", default="user", show_default=True, help="Whose conversation with it.")
@home_option
def tap(agent: str, sender: str, home: Path) -> None:
    """Print what happens in a conversation, as the envelopes of its session.

    One JSON object a line, in clear, until Ctrl+C. Needs neither a relay nor keys.

    \b
    Examples:
      crabtalk-web tap crab
      crabtalk-web tap crab --sender tg:12345 | jq .ev
    """
    asyncio.run(until_stopped(tap_until_stopped(home, agent, sender)))


async def tap_until_stopped(home: Path, agent: str, sender: str) -> None:
    from contextlib import aclosing

    from .stream import encode
    from .tap import tap as envelopes

    async with aclosing(envelopes(home, agent, sender)) as found:
        async for envelope in found:
            click.echo(encode(envelope))


@main.group()
def devices() -> None:
    """What is let into the account: list it, and take it out again."""


@devices.command("list")
@home_option
@json_option
def list_devices(home: Path, in_json: bool) -> None:
    """List the devices and machines that have a token.

    \b
    Example:
      crabtalk-web devices list
    """
    found = asyncio.run(asked(home, "GET", "/v1/devices")).get("devices", [])
    if in_json:
        document({"devices": found})
    elif found:
        rows = [[str(one.get(key) or "") for key in ("id", "kind", "client")] for one in found]
        show(table([[one_line(cell) for cell in row] for row in rows]))


@devices.command()
@click.argument("device")
@home_option
def revoke(device: str, home: Path) -> None:
    """Take the token of DEVICE away. Its sockets are closed at once.

    \b
    Example:
      crabtalk-web devices revoke cm3k2j1x0
    """
    from urllib.parse import quote

    asyncio.run(asked(home, "DELETE", f"/v1/devices/{quote(device, safe='')}"))
    show("It is out.")


async def asked(home: Path, method: str, path: str) -> dict[str, Any]:
    from .gateway import RelayHttp

    _, credentials = settings(home)
    async with RelayHttp(credentials.relay, credentials.token) as http:
        found = await (http.get(path) if method == "GET" else http.delete(path))
    return found if isinstance(found, dict) else {}


@main.command()
@home_option
@json_option
def status(home: Path, in_json: bool) -> None:
    """Say with which relay this machine is paired, and what waits to be sent.

    \b
    Example:
      crabtalk-web status
    """
    from .gateway import load_credentials
    from .gateway.store import Store
    from .standing import standing

    found = standing(Store(home), load_credentials(Store(home).credentials))
    if in_json:
        document(found)
        return
    if not found["relay"]:
        show("This machine is not paired; run `crabtalk-web up`, or `crabtalk-web pair URL`.")
        return
    show(f"Paired with {found['relay']}, {'running' if found['running'] else 'not running'}.")
    rows = [[one_line(one["agent"]), f"{one['unsent']} to send"] for one in found["conversations"]]
    if rows:
        show(table(rows))


# ── What they have in common ────────────────────────────────────────────────────────────────────


def settings(home: Path) -> "tuple[GatewayConfig, Credentials]":
    from .gateway import GatewayError, load_config, load_credentials
    from .gateway.store import Store

    store = Store(home)
    credentials = load_credentials(store.credentials)
    if credentials is None:
        raise GatewayError(
            "this machine is not paired; run `crabtalk-web up`, or `crabtalk-web pair URL`"
        )
    return load_config(store.config), credentials


def relay_config(home: Path, config: "GatewayConfig", port: int | None = None) -> "RelayConfig":
    from .gateway.store import Store
    from .relay import RelayConfig

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
    )


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
