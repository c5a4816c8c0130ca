"""Limits the hosts that `fetch` may connect to: public ones, and those the configuration allows.

A host name is checked by the addresses it resolves to, and the connection uses exactly those
addresses: it cannot be public when it is checked and private when it is connected to.
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

# Public by number, but the machine's own cloud provider answers there.
CLOUD_ADDRESSES = (ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("192.0.0.192"))
# The last 32 bits are an IPv4 address: translated (RFC 6052, 8215) and compatible addresses.
EMBEDDING_NETWORKS = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))


class AddressRefusedError(OSError):
    """Connections to this address are not allowed."""


class AddressGuard(AbstractResolver):
    """Resolves names for a connector, and refuses addresses that are not allowed."""

    def __init__(
        self, allow: Iterable[Network] = (), inner: AbstractResolver | None = None
    ) -> None:
        self._allow = tuple(allow)
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """One refused address is enough: a name with both kinds is likely an attack."""
        self._inner = self._inner or ThreadedResolver()
        results = await self._inner.resolve(host, port, family)
        for entry in results:
            self.check_address(entry["host"], host)
        return results

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()

    def check_address(self, text: str, name: str) -> None:
        """Raises AddressRefusedError if the address of `name` is not allowed."""
        address = ipaddress.ip_address(text.partition("%")[0])
        if not self.allows_address(address):
            location = "" if text == name else f" is at {address}, which"
            raise AddressRefusedError(
                f"{name}{location} is not a public address; to allow it, add it to [fetch] allow "
                "in config/search.toml"
            )

    def allows_address(self, address: Address) -> bool:
        if any(address in network for network in self._allow):
            return True
        inner = list_embedded_addresses(address)
        if inner:
            return all(map(self.allows_address, inner))
        return is_public(address)

    def make_socket(self, info: AddrInfoType) -> socket.socket:
        """The last check: no socket is made for an unchecked address, not even a literal one."""
        family, kind, protocol, _, address = info
        self.check_address(str(address[0]), str(address[0]))
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
    """The IPv4 addresses that packets to this address may reach."""
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
