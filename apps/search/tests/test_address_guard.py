"""The address guard: only public hosts, however an address is written or a name resolves."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from apps.search.tests.local_sites import make_handler, serve_site
from crabtalk_search.address_guard import AddressGuard
from crabtalk_search.config import FetchConfig
from crabtalk_search.errors import FetchError
from crabtalk_search.fetcher import PageFetcher

PUBLIC_ADDRESSES = [
    "1.1.1.1",
    "93.184.215.14",
    "2606:4700:4700::1111",
    "64:ff9b::101:101",
    "2002:101:101::",
]
REFUSED_ADDRESSES = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.req("searchapp.fetch.private")
@pytest.mark.parametrize("text", REFUSED_ADDRESSES)
def test_a_private_address_is_refused(text: str) -> None:
    assert not AddressGuard().allows_address(ip_address(text))


@pytest.mark.req("searchapp.fetch.private")
@pytest.mark.parametrize("text", PUBLIC_ADDRESSES)
def test_a_public_address_is_allowed(text: str) -> None:
    assert AddressGuard().allows_address(ip_address(text))


@pytest.mark.req("searchapp.fetch.private")
@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_checked_like_the_address_itself(address: IPv4Address) -> None:
    guard = AddressGuard()
    mapped = IPv6Address((0xFFFF << 32) | int(address))
    translated = IPv6Address(int(IPv6Address("64:ff9b::")) | int(address))
    six_to_four = IPv6Address((0x2002 << 112) | (int(address) << 80))
    assert {guard.allows_address(outer) for outer in (mapped, translated, six_to_four)} == {
        guard.allows_address(address)
    }


@pytest.mark.req("searchapp.fetch.allowed")
def test_only_configured_private_networks_are_allowed() -> None:
    guard = AddressGuard([ip_network("10.1.0.0/16"), ip_network("::1")])
    assert guard.allows_address(ip_address("10.1.2.3"))
    assert guard.allows_address(ip_address("::ffff:10.1.2.3"))
    assert guard.allows_address(ip_address("::1"))
    assert not guard.allows_address(ip_address("10.2.0.1"))
    assert not guard.allows_address(ip_address("127.0.0.1"))


class FakeResolver(AbstractResolver):
    """A resolver with scripted answers."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked_names: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked_names.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer
        ]

    async def close(self) -> None:
        pass


@pytest.mark.req("searchapp.fetch.private")
@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["::1"], ["1.1.1.1", "127.0.0.1"], ["169.254.169.254"]],
)
async def test_a_name_is_checked_by_its_addresses(addresses: list[str]) -> None:
    async with (
        serve_site(make_handler("secret")) as site,
        PageFetcher(FetchConfig(), AddressGuard((), FakeResolver(addresses))) as fetcher,
    ):
        with pytest.raises(FetchError, match=r"inside\.example is at .* is not a public address"):
            await fetcher.fetch(f"http://inside.example:{site.port}/")
    assert site.requests == []


@pytest.mark.req("searchapp.fetch.private")
async def test_the_connection_uses_the_checked_address() -> None:
    """A name that is public at first and private at the next lookup gains nothing."""
    names = FakeResolver(["127.0.0.2"], ["127.0.0.1"])
    allowed = [ip_network("127.0.0.2")]
    async with (
        serve_site(make_handler("public", content_type="text/plain"), host="127.0.0.2") as site,
        PageFetcher(FetchConfig(), AddressGuard(allowed, names)) as fetcher,
    ):
        page = await fetcher.fetch(f"http://rebinding.example:{site.port}/")
        assert page.content == "public"
        assert names.asked_names == ["rebinding.example"]  # it is looked up once


@pytest.mark.req("searchapp.fetch.private")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.0.0.1",
        "0x7f.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "0",
        "0.0.0.0",
        "127.0.0.1.",
        "①②⑦.⓪.⓪.①",
        "１２７.0.0.1",
    ],
)
async def test_no_spelling_of_loopback_is_allowed(host: str) -> None:
    async with serve_site(make_handler("secret")) as site, PageFetcher(FetchConfig()) as fetcher:
        with pytest.raises(FetchError):
            await fetcher.fetch(f"http://{host}:{site.port}/")
    assert site.requests == []


@pytest.mark.req("searchapp.fetch.private")
async def test_the_same_site_can_be_read_when_it_is_allowed() -> None:
    """The control for the tests above: without the guard, the site can be read."""
    config = FetchConfig(allow=(ip_network("127.0.0.0/8"), ip_network("::ffff:0:0/96")))
    async with (
        serve_site(make_handler("secret", content_type="text/plain")) as site,
        PageFetcher(config) as fetcher,
    ):
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            page = await fetcher.fetch(f"http://{host}:{site.port}/")
            assert page.content == "secret"
