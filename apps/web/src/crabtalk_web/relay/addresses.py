"""Finds the client address of a request, also behind proxies.

`X-Forwarded-For` is used only if the connection comes from a trusted proxy, because any client can
send it. Each proxy appends the address it saw, so the header is read from the right, and the first
address that is not a trusted proxy is the client.
"""

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from aiohttp import web

from .errors import RelayConfigError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

FORWARDED_HEADER = "X-Forwarded-For"
# With IPv6 a person can choose addresses from a whole /64, so limits count the /64.
IPV6_PREFIX = 64


class TrustedProxies:
    """The networks whose `X-Forwarded-For` is trusted. Raises RelayConfigError."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [parse_network(text) for text in networks]

    def is_trusted(self, address: Address) -> bool:
        return any(
            address.version == network.version and address in network for network in self._networks
        )

    def find_client(self, request: web.Request) -> str:
        """Return the key for rate limits: the client's IPv4 address, or the /64 of its IPv6
        address."""
        return self.resolve(request.remote or "", request.headers.getall(FORWARDED_HEADER, []))

    def resolve(self, peer: str, headers: Sequence[str]) -> str:
        client = parse_address(peer)
        if client is None:
            return peer
        hops = [hop for header in headers for hop in header.split(",")]
        while hops and self.is_trusted(client):
            hop = parse_address(hops.pop())
            if hop is None:
                break  # the proxy before it wrote an invalid address; count the proxy itself
            client = hop
        return format_rate_limit_key(client)


def parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise RelayConfigError(
            f"trusted_proxies: {text!r} is neither an address nor a network; write it like"
            ' "10.0.0.0/8" or "127.0.0.1"'
        ) from None


def parse_address(text: str) -> Address | None:
    """Parse an address, also as `address:port`, `[address]:port` or IPv4 mapped to IPv6."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def format_rate_limit_key(address: Address) -> str:
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
