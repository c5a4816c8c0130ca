"""The fetcher: pages of real sites, with a bound on everything a site could do."""

import asyncio
import gzip
import os
import resource
import ssl
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from multiprocessing import get_context
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from apps.search.tests.local_sites import LocalSite, make_handler, serve_site
from crabtalk_search.config import FetchConfig
from crabtalk_search.errors import FetchError
from crabtalk_search.fetcher import FetchedPage, PageFetcher, parse_address
from crabtalk_search.page import MAX_MEMORY

LOCAL_CONFIG = FetchConfig(allow=(ip_network("127.0.0.0/24"),))


@asynccontextmanager
async def open_fetcher(**limits: float) -> AsyncIterator[PageFetcher]:
    async with PageFetcher(replace(LOCAL_CONFIG, **limits)) as fetcher:  # type: ignore[arg-type]
        yield fetcher


async def fetch_text(text: str, content_type: str = "text/html", **limits: float) -> FetchedPage:
    async with (
        serve_site(make_handler(text, content_type=content_type)) as site,
        open_fetcher(**limits) as fetcher,
    ):
        return await fetcher.fetch(site.url)


@pytest.mark.req("searchapp.fetch.shape")
async def test_a_page_has_its_address_title_text_and_length() -> None:
    html = "<title> The  tides </title><main><h1>Tides</h1><p>High <b>water</b></p></main>"
    async with serve_site(make_handler(html)) as site, open_fetcher() as fetcher:
        page = await fetcher.fetch(f"{site.url}/a?b=c#part")
    text = "# Tides\n\nHigh **water**"
    assert page == FetchedPage(f"{site.url}/a?b=c", "The tides", text, len(text))
    [request] = site.requests
    assert "crabtalk-search" in request.headers["User-Agent"]
    assert "Cookie" not in request.headers


@pytest.mark.req("searchapp.fetch.types")
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "text/markdown", "application/ld+json"]
)
async def test_plain_text_is_left_unchanged(content_type: str) -> None:
    page = await fetch_text('{"<a>": 1}', content_type)
    assert (page.title, page.content) == ("", '{"<a>": 1}')


@pytest.mark.req("searchapp.fetch.types")
@pytest.mark.parametrize(
    "content_type", ["application/pdf", "image/png", "video/mp4", "application/zip", "font/woff2"]
)
async def test_content_that_is_not_text_is_refused_before_it_is_read(content_type: str) -> None:
    with pytest.raises(FetchError, match=f"is {content_type}, not text; look for a page about it"):
        await fetch_text("x", content_type)


@pytest.mark.req("searchapp.fetch.types")
@pytest.mark.parametrize(
    ("body", "content"),
    [(b"plain \xe2\x82\xac", "plain €"), (b"<!DOCTYPE html><p>a</p>", "a"), (b"\x7fELF\0\0", None)],
)
async def test_content_without_a_type_is_detected_by_its_first_bytes(
    body: bytes, content: str | None
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Type": "application/octet-stream"})

    async with serve_site(answer) as site, open_fetcher() as fetcher:
        if content is None:
            with pytest.raises(FetchError, match="is no text"):
                await fetcher.fetch(site.url)
        else:
            assert (await fetcher.fetch(site.url)).content == content


@pytest.mark.req("searchapp.fetch.redirects")
async def test_redirects_are_followed_to_where_the_page_is() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        steps = {"/a": "/b?x=1", "/b": "c", "/c": ""}
        if target := steps[request.path]:
            return web.Response(status=302, headers={"Location": target})
        return web.Response(text="here")

    async with serve_site(answer) as site, open_fetcher() as fetcher:
        page = await fetcher.fetch(f"{site.url}/a")
    assert page.url == f"{site.url}/c"
    assert page.content == "here"


@pytest.mark.req("searchapp.fetch.redirects")
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("http://127.1.0.1:PORT/", "127.1.0.1 is not a public address"),
        ("http://localhost6.example.invalid/", "cannot connect"),
        ("//127.1.0.1:PORT/", "127.1.0.1 is not a public address"),
        ("http://[::1]:PORT/", "::1 is not a public address"),
        ("http://169.254.169.254/latest/meta-data/", "169.254.169.254 is not a public address"),
        ("http://2130706433:PORT/", "canonical"),
        ("file:///etc/passwd", "no address of the web"),
        ("gopher://127.0.0.1:PORT/", "no address of the web"),
        ("data:text/html,hello", "no address of the web"),
        ("http://user:pass@127.0.0.1:PORT/", "leave them out"),
        ("http://[", "no address"),
    ],
)
async def test_each_redirect_is_checked_like_the_first_address(target: str, reason: str) -> None:
    secret: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/go":
            where = target.replace("PORT", str(site.port))
            return web.Response(status=307, headers={"Location": where})
        secret.append(request.path)
        return web.Response(text="secret")

    async with serve_site(answer, host="0.0.0.0") as site, open_fetcher() as fetcher:
        with pytest.raises(FetchError, match=reason.replace("[", r"\[")):
            await fetcher.fetch(f"{site.url}/go")
    assert secret == []


@pytest.mark.req("searchapp.fetch.redirects")
async def test_a_redirect_loop_ends_with_an_error() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=301, headers={"Location": "/"})

    async with serve_site(answer) as site, open_fetcher(max_redirects=5) as fetcher:
        with pytest.raises(FetchError, match="more than 5 redirects"):
            await fetcher.fetch(site.url)
    assert len(site.requests) == 6


@pytest.mark.req("searchapp.fetch.schemes")
@pytest.mark.parametrize(
    "address",
    [
        "ftp://a.example",
        "file:///etc/passwd",
        "a.example",
        "",
        "//a.example",
        "http://",
        "http:///x",
        "javascript:alert(1)",
        "http://[::1",
        "https://a.example:99999/",
        "http://u@a.example/",
    ],
)
async def test_only_web_addresses_are_fetched(address: str) -> None:
    async with open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="address"):
            await fetcher.fetch(address)


@pytest.mark.req("searchapp.fetch.schemes")
@given(
    st.one_of(
        st.text(max_size=40),
        st.text("htps:/.@[]%?#\\\0\udcff 127.1aé①", max_size=40),
        st.text(max_size=20).map("http://{}".format),
    )
)
def test_any_text_is_a_web_address_or_refused(text: str) -> None:
    for base in (None, URL("https://a.example/dir/")):
        try:
            url = parse_address(text, base)
        except FetchError:
            continue
        assert url.scheme in ("http", "https")
        assert url.host
        assert url.user is None


async def send_endlessly(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


@pytest.mark.req("searchapp.fetch.size")
async def test_the_bytes_read_are_bounded_and_a_cut_is_reported() -> None:
    async with (
        serve_site(send_endlessly) as site,
        open_fetcher(max_bytes=100_000, max_chars=200_000) as fetcher,
    ):
        page = await fetcher.fetch(site.url)
    head, _, note = page.content.partition("\n\n")
    assert head == "x" * 100_000
    assert note == "[cut: only the first 100000 bytes were read]"


@pytest.mark.req("searchapp.fetch.size")
async def test_the_characters_returned_are_bounded_and_a_cut_is_reported() -> None:
    page = await fetch_text("y" * 5000, "text/plain", max_chars=1000)
    assert page.content == "y" * 1000 + "\n\n[cut: the first 1000 characters of 5000]"
    assert page.content_length == len(page.content)


@pytest.mark.req("searchapp.fetch.size")
async def test_a_compressed_page_is_cut_while_it_is_unpacked() -> None:
    packed = gzip.compress(b"z" * 50_000_000)
    assert len(packed) < 100_000

    async def answer(_: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
        return web.Response(body=packed, headers=headers)

    async with (
        serve_site(answer) as site,
        open_fetcher(max_bytes=100_000, max_chars=200_000) as fetcher,
    ):
        page = await fetcher.fetch(site.url)
    assert page.content.startswith("z" * 100_000 + "\n\n[cut")


@pytest.mark.req("searchapp.fetch.time")
@pytest.mark.clock
async def test_a_site_that_never_answers_times_out() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serve_site(answer) as site, open_fetcher(timeout=0.3) as fetcher:
        start = time.monotonic()
        with pytest.raises(FetchError, match=r"longer than 0\.3 s"):
            await fetcher.fetch(site.url)
    assert time.monotonic() - start < 5


@pytest.mark.req("searchapp.fetch.time")
async def test_a_site_that_sends_slowly_times_out() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)

    async with serve_site(answer) as site, open_fetcher(timeout=0.5) as fetcher:
        with pytest.raises(FetchError, match=r"longer than 0\.5 s"):
            await fetcher.fetch(site.url)


def list_reader_processes() -> set[str]:
    """The page readers that this process has started and that still run."""
    processes = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = status.read_text().split("PPid:\t")[1].split("\n")[0]
            words = status.with_name("cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == str(os.getpid()) and b"crabtalk_search.page" in words:
            processes.add(status.parent.name)
    return processes


@pytest.mark.req("searchapp.fetch.hostile")
@pytest.mark.one_loop
async def test_a_page_that_takes_minutes_to_parse_is_given_up() -> None:
    deep = "<div>" * 100_000
    with pytest.raises(FetchError, match="longer than 1 s"):
        await fetch_text(deep, timeout=1)
    assert list_reader_processes() == set()


@pytest.mark.req("searchapp.fetch.hostile")
@pytest.mark.one_loop
async def test_a_page_that_grows_enormous_is_cut_in_the_page_reader() -> None:
    """Each link is made into a long absolute address."""
    links = "<a href=x>y</a>" * 20_000
    async with (
        serve_site(make_handler(links)) as site,
        open_fetcher(max_chars=1000, timeout=30) as fetcher,
    ):
        page = await fetcher.fetch(f"{site.url}/{'d' * 4000}/")
    assert page.content_length < 1100
    assert "[cut: the first 1000 characters of 8" in page.content


@pytest.mark.req("searchapp.fetch.hostile")
async def test_a_module_in_the_working_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "selectolax.py", "crabtalk_search.py"):
        (tmp_path / name).write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    assert (await fetch_text("<p>fine</p>")).content == "fine"


@pytest.mark.req("searchapp.fetch.hostile")
@pytest.mark.one_loop
async def test_other_pages_are_read_while_a_slow_page_is_parsed() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        text = "<div>" * 100_000 if request.path == "/deep" else "<p>fine</p>"
        return web.Response(text=text, content_type="text/html")

    async with serve_site(answer) as site, open_fetcher(timeout=30) as fetcher:
        slow = asyncio.ensure_future(fetcher.fetch(f"{site.url}/deep"))
        async with asyncio.timeout(20):
            while not list_reader_processes():
                await asyncio.sleep(0.01)
            page = await fetcher.fetch(site.url)
        assert page.content == "fine"
        assert not slow.done()
        slow.cancel()
        await asyncio.wait([slow])
    assert list_reader_processes() == set()


def fetch_bomb(bomb: str) -> tuple[str, int]:
    """Why it was refused, and the peak memory of its largest page reader in bytes."""
    refusal = ""
    try:
        asyncio.run(fetch_text(bomb, timeout=40))
    except FetchError as error:
        refusal = str(error)
    return refusal, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


@pytest.mark.req("searchapp.fetch.hostile")
@pytest.mark.one_loop
@pytest.mark.slow
async def test_a_page_that_fills_the_memory_fails_alone() -> None:
    """Each paragraph opens all formatting elements again."""
    bomb = "<p>" + "".join(f"<font a={n}>" for n in range(3_000)) + "</p><p>x" * 10_000
    # In a process of its own: the kernel reports the largest child a process ever had.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        refusal, largest = await asyncio.wrap_future(pool.submit(fetch_bomb, bomb))
    assert "too deep or too large to read" in refusal
    assert largest < MAX_MEMORY
    assert (await fetch_text("<p>fine</p>")).content == "fine"


@pytest.mark.req("searchapp.fetch.errors")
@pytest.mark.parametrize("status", [404, 403, 500])
async def test_an_http_error_status_is_an_error(status: int) -> None:
    async with serve_site(make_handler("sorry", status)) as site, open_fetcher() as fetcher:
        with pytest.raises(FetchError, match=f"answered {status}"):
            await fetcher.fetch(site.url)


@pytest.mark.req("searchapp.fetch.errors")
async def test_a_connection_that_breaks_off_is_an_error() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        response.content_type = "text/plain"
        await response.prepare(request)
        await response.write(b"x")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serve_site(answer) as site, open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="broke off"):
            await fetcher.fetch(site.url)


@pytest.mark.req("searchapp.fetch.errors")
async def test_a_page_that_cannot_be_unpacked_is_an_error() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
        return web.Response(body=b"not gzip at all", headers=headers)

    async with serve_site(answer) as site, open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="broke off"):
            await fetcher.fetch(site.url)


@pytest.mark.req("searchapp.fetch.errors")
async def test_an_invalid_certificate_is_an_error() -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    async with serve_site(make_handler("secret"), tls=tls) as site, open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="certificate"):
            await fetcher.fetch(f"https://127.0.0.1:{site.port}/")
    assert site.requests == []


@pytest.mark.req("searchapp.fetch.errors")
async def test_an_error_shortens_a_long_address() -> None:
    async with serve_site(make_handler("", 404)) as site, open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="answered 404") as caught:
            await fetcher.fetch(f"{site.url}/{'x' * 5000}")
    assert len(str(caught.value)) < 300


@pytest.mark.req("searchapp.fetch.errors")
async def test_an_address_that_is_too_long_is_refused() -> None:
    async with open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="longer than 8000 characters"):
            await fetcher.fetch("https://a.example/" + "x" * 8000)


@pytest.mark.req("searchapp.fetch.errors")
async def test_a_refused_connection_is_an_error() -> None:
    async with serve_site(make_handler("")) as site:
        closed_site = LocalSite(site.port)
    async with open_fetcher() as fetcher:
        with pytest.raises(FetchError, match="cannot connect"):
            await fetcher.fetch(closed_site.url)


@pytest.mark.req("searchapp.fetch.charset")
async def test_a_page_is_read_in_the_charset_the_server_names() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = "<title>Гавань</title><p>прилив</p>".encode("koi8-r")
        return web.Response(body=body, headers={"Content-Type": "text/html; charset=KOI8-R"})

    async with serve_site(answer) as site, open_fetcher() as fetcher:
        page = await fetcher.fetch(site.url)
    assert (page.title, page.content) == ("Гавань", "прилив")
