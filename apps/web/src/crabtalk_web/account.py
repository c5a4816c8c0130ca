"""Account: what this machine is to an account at a relay, and what it may ask for there."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crabtalk.component.command import show

from .qr_code import qr_code

if TYPE_CHECKING:
    from .gateway import Credentials, GatewayConfig

HERE_ONLY = (
    "No other device can open it. For a phone, give [relay] in config/web.toml a host, a TLS\n"
    "certificate with its key, and a host_name; or pair with a relay elsewhere, by\n"
    "`crabtalk-web pair https://...`."
)


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


async def asked(home: Path, method: str, path: str) -> dict[str, Any]:
    from .gateway import RelayHttp

    _, credentials = settings(home)
    async with RelayHttp(credentials.relay, credentials.token) as http:
        found = await (http.get(path) if method == "GET" else http.delete(path))
    return found if isinstance(found, dict) else {}


async def paired(path: Path, url: str, invite: str = "") -> "Credentials":
    """Shows how to let this machine in, again and again until somebody does. `invite` lets whoever
    opens the link make an account."""
    from .gateway import GatewayError, Pairing, RelayHttp

    async with RelayHttp(url) as relay:
        while True:
            pairing = Pairing(relay)
            await pairing.ask()  # a link is of use only once the relay knows of it
            link = f"{pairing.link}&invite={invite}" if invite else pairing.link
            show(invitation(link, pairing.app_link))
            try:
                found = await pairing.wait()
            except GatewayError:
                continue
            await asyncio.to_thread(found.save, path)
            show("This machine is paired.")
            return found


def invitation(link: str, app_link: str) -> str:
    """How to open a link, and where it can be: a code is for another device than this machine."""
    from .relay.config import is_loopback

    if is_loopback(urlsplit(link).hostname or ""):
        return f"Open this in a browser on this machine:\n\n  {link}\n\n{HERE_ONLY}"
    scanned = f"{qr_code(link)}\nAn app that scans terminals takes {app_link}"
    return f"Open this on your device, or scan it:\n\n  {link}\n\n{scanned}"


async def is_welcome(url: str, token: str) -> bool:
    from .gateway import RelayHttp, RelayRefusedError

    async with RelayHttp(url, token) as relay:
        try:
            await relay.get("/v1/account/profile")
        except RelayRefusedError:
            return False
        return True
