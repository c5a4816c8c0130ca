"""HttpClient: proxies, certificates and bounds, over real connections."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from crabtalk.model import ApiError, ErrorKind, HttpClient, Timeouts
from crabtalk.model.http_client import HttpRequest, create_tls_context, is_loopback
from tests.model.fake_vendor import FakeVendor, VendorAnswer, run_vendor

TIMEOUTS = Timeouts(connect=5, first=5, between=5)


async def fetch_url(url: str) -> tuple[int, bytes]:
    http = HttpClient()
    try:
        status, _, body = await http.fetch(HttpRequest(url, method="GET"), TIMEOUTS)
        return status, body
    finally:
        await http.close()


def use_proxy(monkeypatch: pytest.MonkeyPatch, fake: FakeVendor) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, fake.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.req("model.http.environment")
async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_vendor(lambda _: VendorAnswer([b"through"])) as proxy:
        use_proxy(monkeypatch, proxy)
        assert await fetch_url("http://models.example/v1/models") == (200, b"through")
    assert proxy.requests[0].path == "http://models.example/v1/models"


@pytest.mark.req("model.http.environment")
async def test_loopback_addresses_never_use_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_vendor([]) as proxy, run_vendor(lambda _: VendorAnswer([b"direct"])) as fake:
        use_proxy(monkeypatch, proxy)
        assert await fetch_url(fake.url) == (200, b"direct")
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:80/x", True),
        ("http://localhost/x", True),
        ("http://[::1]:80", True),
        ("https://api.example", False),
        ("http://127.example.org", False),
        ("nonsense", False),
    ],
)
def test_loopback_urls_are_recognized(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


async def start_tls_server(context: ssl.SSLContext) -> tuple[asyncio.Server, str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecure")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    return server, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.req("model.http.environment")
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
async def test_certificates_of_the_environment_are_trusted(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server, url = await start_tls_server(context)
    async with server:
        with pytest.raises(ApiError) as caught:
            await fetch_url(url)
        assert caught.value.kind is ErrorKind.TLS
        assert "no secure connection" in caught.value.message
        assert "certificate" in caught.value.message.lower()
        monkeypatch.setenv(variable, str(tmp_path / "ca.pem"))
        assert await fetch_url(url) == (200, b"secure")


def test_a_missing_certificate_bundle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(ApiError, match=r"SSL_CERT_FILE names /nowhere/ca\.pem"):
        create_tls_context()


async def test_an_endless_body_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = (b"x" * (1 << 20) for _ in range(200))
    async with run_vendor([VendorAnswer(pieces)]) as fake:
        with pytest.raises(ApiError, match="does not end") as caught:
            await fetch_url(fake.url)
        assert caught.value.kind is ErrorKind.PROTOCOL
        async with asyncio.timeout(5):
            await fake.requests[0].closed.wait()


@pytest.mark.parametrize("url", ["http://", "not a url", "http://[::1", "ftp://h/x"])
async def test_an_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(ApiError) as caught:
        await fetch_url(url)
    assert caught.value.kind in (ErrorKind.CONFIG, ErrorKind.CONNECTION)


async def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(ApiError, match=r"http://nowhere\.invalid/ cannot be reached"):
        await fetch_url("http://nowhere.invalid/")


async def test_a_server_without_http_is_reported() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ApiError, match="does not answer in HTTP"):
            await fetch_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


@pytest.mark.req("model.timeouts")
async def test_a_slow_connection_is_a_timeout() -> None:
    """Open a listener with a full queue: further connections wait in the kernel."""
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            caller = sockets.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listening.getsockname())
        http = HttpClient()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with pytest.raises(ApiError, match=r"could not be reached within 0\.2 s") as caught:
            await http.fetch(HttpRequest(url, method="GET"), Timeouts(connect=0.2))
        assert caught.value.kind is ErrorKind.TIMEOUT
        await http.close()
