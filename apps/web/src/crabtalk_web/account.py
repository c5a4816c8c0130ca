"""This machine's account at a relay: pairing with it, and requests to it."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crabtalk.service.command_line import print_output

from .qr_code import render_qr_code

if TYPE_CHECKING:
    from .gateway import GatewayConfig, RelayCredentials

LOOPBACK_HINT = (
    "No other device can open it. For a phone, give [relay] in config/web.toml a host, a TLS\n"
    "certificate with its key, and a host_name; or pair with a relay elsewhere, by\n"
    "`crabtalk-web pair https://...`."
)


def load_settings(home: Path) -> "tuple[GatewayConfig, RelayCredentials]":
    from .gateway import WebGatewayError, load_config, load_credentials
    from .gateway.web_folder import WebFolder

    store = WebFolder(home)
    credentials = load_credentials(store.credentials_file)
    if credentials is None:
        raise WebGatewayError(
            "this machine is not paired; run `crabtalk-web up`, or `crabtalk-web pair URL`"
        )
    return load_config(store.config_file), credentials


async def request_relay(home: Path, method: str, path: str) -> dict[str, Any]:
    from .gateway import RelayHttp

    _, credentials = load_settings(home)
    async with RelayHttp(credentials.relay, credentials.token) as http:
        result = await (http.get(path) if method == "GET" else http.delete(path))
    return result if isinstance(result, dict) else {}


async def pair_machine(path: Path, url: str, invite: str = "") -> "RelayCredentials":
    """Print a link that lets this machine in, and a new one whenever it expires, until a device
    approves it. With `invite`, the person who opens the link can create an account."""
    from .gateway import MachinePairing, RelayHttp, WebGatewayError

    async with RelayHttp(url) as relay:
        while True:
            pairing = MachinePairing(relay)
            await pairing.request_approval()  # the link works only once the relay knows the request
            link = f"{pairing.link}&invite={invite}" if invite else pairing.link
            print_output(format_invitation(link, pairing.app_link))
            try:
                credentials = await pairing.wait_for_approval()
            except WebGatewayError:
                continue
            await asyncio.to_thread(credentials.save, path)
            print_output("This machine is paired.")
            return credentials


def format_invitation(link: str, app_link: str) -> str:
    """Describe how to open a link. A loopback link gets no QR code, since other devices cannot open
    it."""
    from .relay.config import is_loopback

    if is_loopback(urlsplit(link).hostname or ""):
        return f"Open this in a browser on this machine:\n\n  {link}\n\n{LOOPBACK_HINT}"
    scanned = f"{render_qr_code(link)}\nAn app that scans terminals takes {app_link}"
    return f"Open this on your device, or scan it:\n\n  {link}\n\n{scanned}"


async def is_token_valid(url: str, token: str) -> bool:
    from .gateway import RelayHttp, RelayRefusedError

    async with RelayHttp(url, token) as relay:
        try:
            await relay.get("/v1/account/profile")
        except RelayRefusedError:
            return False
        return True
