"""TCP: parsing addresses, and binding free ports."""

import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.transport import TcpAddress, listen_tcp


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:6688", "127.0.0.1", 6688),
        ("localhost:0", "localhost", 0),
        ("[::1]:80", "::1", 80),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
    ],
)
def test_addresses_are_parsed_and_printed_alike(text: str, host: str, port: int) -> None:
    address = TcpAddress.parse(text)
    assert address == TcpAddress(host, port)
    assert str(address) == text


def test_a_port_alone_is_on_loopback() -> None:
    assert TcpAddress.parse("7000") == TcpAddress("127.0.0.1", 7000)


@pytest.mark.parametrize(
    "text",
    [
        *("", "66880", ":6688", "host", "host:", "host:x", "host:65536", "host:-1"),
        *("::1:80", "[::1]", "[]:1", "host:١"),
    ],
)
def test_other_text_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"write HOST:PORT"):
        TcpAddress.parse(text)


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = TcpAddress.parse(text)
    except ValueError:
        return
    assert TcpAddress.parse(str(address)) == address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert TcpAddress(host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.nip.io"])
def test_not_loopback(host: str) -> None:
    assert not TcpAddress(host).is_loopback


@contextmanager
def occupy_port() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


@pytest.mark.req("transport.tcp.port")
def test_a_later_port_is_used_when_another_program_has_the_port() -> None:
    with occupy_port() as port, listen_tcp(TcpAddress(port=port), or_next=True) as sock:
        bound = sock.getsockname()[1]
        assert bound != port
        assert port < bound <= port + 32 or port + 32 > 65535


def test_a_free_port_is_taken_as_asked() -> None:
    with occupy_port() as port:
        pass
    with listen_tcp(TcpAddress(port=port)) as sock:
        assert sock.getsockname() == ("127.0.0.1", port)


def test_a_taken_port_is_an_error_without_or_next() -> None:
    with occupy_port() as port, pytest.raises(OSError, match="in use"):
        listen_tcp(TcpAddress(port=port))


def test_a_name_with_both_families_binds_ipv4() -> None:
    with listen_tcp(TcpAddress("localhost", 0)) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


def test_ipv6_loopback_binds() -> None:
    with listen_tcp(TcpAddress("::1", 0)) as sock:
        assert sock.getsockname()[0] == "::1"


@pytest.mark.req("bounds.crowd.backlog")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report the backlog")
def test_the_backlog_is_as_large_as_the_system_allows() -> None:
    with listen_tcp(TcpAddress(port=0)) as sock:
        # For a listening socket, tcpi_sacked is the size of the backlog.
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (backlog,) = struct.unpack_from("=I", info, 28)
    assert backlog == int(Path("/proc/sys/net/core/somaxconn").read_text())
