"""Guard: which machines `fetch` may talk to. Public ones, and those the configuration allows.

A name is judged by the addresses it resolves to, and the connection goes to exactly those: it
cannot be a public address when it is looked at and another when it is connected to.
"""

import ipaddress
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

from aiohttp import AddrInfoType, ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from .config import Network

Address: TypeAlias = IPv4Address | IPv6Address

# Public by their numbers, but what answers there is the machine's own cloud.
CLOUD_ADDRESSES = (ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("192.0.0.192"))
# An IPv4 address in the last 32 bits: translated (RFC 6052, 8215) and compatible ones.
EMBEDDING_NETWORKS = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))


class AddressRefusedError(OSError):
    """No connection is made there."""


class AddressGuard(AbstractResolver):
    """Resolves names for a connector, and refuses what is not to be connected to."""

    def __init__(
        self, allow: Iterable[Network] = (), inner: AbstractResolver | None = None
    ) -> None:
        self._allow = tuple(allow)
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """One refused address is enough: who answers with both kinds is up to something."""
        self._inner = self._inner or ThreadedResolver()
        found = await self._inner.resolve(host, port, family)
        for entry in found:
            self.check_address(entry["host"], host)
        return found

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()

    def check_address(self, text: str, name: str) -> None:
        """Raises RefusedError for an address that `name` stands for."""
        address = ipaddress.ip_address(text.partition("%")[0])
        if not self.allows_address(address):
            at = "" if text == name else f" is at {address}, which"
            raise AddressRefusedError(
                f"{name}{at} is not a public address; to allow it, add it to [fetch] allow in "
                "config/search.toml"
            )

    def allows_address(self, address: Address) -> bool:
        if any(address in network for network in self._allow):
            return True
        inner = list_embedded_addresses(address)
        if inner:
            return all(map(self.allows_address, inner))
        return is_public(address)

    def make_socket(self, info: AddrInfoType) -> socket.socket:
        """The last gate: whatever led here, a literal address too, no socket without a check."""
        family, kind, protocol, _, where = info
        self.check_address(str(where[0]), str(where[0]))
        return socket.socket(family, kind, protocol)


def is_public(address: Address) -> bool:
    is_special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or getattr(address, "is_site_local", False)
    )
    return address.is_global and not is_special and address not in CLOUD_ADDRESSES


def list_embedded_addresses(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses that a packet to this one may end up at."""
    if isinstance(address, IPv4Address):
        return []
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if any(address in network for network in EMBEDDING_NETWORKS) and int(address) > 1:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return []
