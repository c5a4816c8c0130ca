"""The page: served from the same origin, under a strict policy, small and identified by its
digest."""

import gzip
import re
from pathlib import Path

import pytest
from yarl import URL

import crabtalk_web
from apps.web import page_files
from apps.web.tests.relay.relay_world import RelayClient, RelayReply, open_relay_world
from crabtalk_web.relay import RelayConfig, RelayConfigError

PAGE = Path(crabtalk_web.__file__).with_name("page")
# Limit of what a browser loads before the page can be used, compressed.
FIRST_LOAD = 300_000


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><p>crab")
    (folder / "assets" / "app.js").write_text("hello()")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "way-out").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.mark.req("relay.page.served")
async def test_the_page_and_its_files_come_from_the_relay_itself(
    tmp_path: Path, page: Path
) -> None:
    async with open_relay_world(tmp_path / "data", static=page) as world:
        visitor = await world.open_client()
        for path in ("/", "/index.html", "/terminal/connect", "/sessions/abc"):
            got = await visitor.get(path)
            assert (got.status, b"crab" in got.body) == (200, True)
            assert got.headers["Content-Type"].startswith("text/html")
        script = await visitor.get("/assets/app.js")
        assert script.ok == b"hello()"
        assert "javascript" in script.headers["Content-Type"]
        assert (await visitor.get("/assets/none.js")).status == 404
        assert (await visitor.get("/v1/none")).body == {"error": "Route not found"}


@pytest.mark.req("relay.page.policy")
async def test_the_policy_lets_the_page_connect_only_to_its_relay(
    tmp_path: Path, page: Path
) -> None:
    async with open_relay_world(tmp_path / "data", static=page) as world:
        visitor = await world.open_client()
        for path in ("/", "/assets/app.js"):
            headers = (await visitor.get(path)).headers
            policy = dict(
                part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["connect-src"] == "'self'"
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert policy["require-trusted-types-for"] == "'script'"
            assert policy["trusted-types"] == "crabtalk"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.req("relay.page.paths")
@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "/way-out", "/%00.x"],
)
async def test_no_path_leads_out_of_the_folder(tmp_path: Path, page: Path, path: str) -> None:
    async with open_relay_world(tmp_path / "data", static=page) as world:
        visitor = await world.open_client()
        url = URL(world.url + path, encoded=True)
        async with visitor.http.get(url) as got:
            assert b"secret" not in await got.read()


@pytest.mark.req("relay.page.served")
async def test_without_a_page_there_is_a_banner(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        visitor = await world.open_client()
        assert b"relay" in (await visitor.get("/")).ok
        assert (await visitor.get("/sessions")).status == 404


@pytest.mark.req("relay.page.served")
def test_a_folder_without_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelayConfigError, match=r"has no index.html"):
        RelayConfig(tmp_path, static=tmp_path)


async def fetch_raw(visitor: RelayClient, path: str, **headers: str) -> RelayReply:
    """The body as it is on the wire."""
    async with visitor.http.get(path, headers=headers, auto_decompress=False) as got:
        return RelayReply(got.status, await got.read(), got.headers)


@pytest.mark.req("relay.page.compressed")
async def test_files_are_compressed_for_clients_that_accept_it(tmp_path: Path, page: Path) -> None:
    script = "hello();\n" * 200
    (page / "assets" / "app.js").write_text(script)
    async with open_relay_world(tmp_path / "data", static=page) as world:
        visitor = await world.open_client()
        zipped = await fetch_raw(visitor, "/assets/app.js", **{"Accept-Encoding": "gzip, br"})
        plain = await fetch_raw(visitor, "/assets/app.js", **{"Accept-Encoding": "identity"})
        assert zipped.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(zipped.ok) == plain.ok == script.encode()
        assert "Content-Encoding" not in plain.headers
        assert len(zipped.ok) < 100
        assert {zipped.headers["Vary"], plain.headers["Vary"]} == {"Accept-Encoding"}


@pytest.mark.req("relay.page.known")
async def test_a_cached_file_is_not_sent_again_until_it_changes(tmp_path: Path, page: Path) -> None:
    async with open_relay_world(tmp_path / "data", static=page) as world:
        visitor = await world.open_client()
        first = await fetch_raw(visitor, "/assets/app.js")
        known = {"If-None-Match": first.headers["ETag"]}
        cached = await fetch_raw(visitor, "/assets/app.js", **known)
        assert (cached.status, cached.body) == (304, b"")
        assert cached.headers["ETag"] == first.headers["ETag"]
        (page / "assets" / "app.js").write_text("changed()")
        changed = await fetch_raw(visitor, "/assets/app.js", **known)
        assert changed.ok == b"changed()"
        assert changed.headers["ETag"] != first.headers["ETag"]


@pytest.mark.req("relay.page.types")
async def test_every_file_of_the_page_has_its_media_type(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path / "data", static=PAGE) as world:
        visitor = await world.open_client()
        for path, kind in (
            ("/manifest.webmanifest", "application/manifest+json"),
            ("/app.js", "text/javascript; charset=utf-8"),
            ("/worker.js", "text/javascript; charset=utf-8"),
            ("/style/tokens.css", "text/css; charset=utf-8"),
            ("/icons/crab.svg", "image/svg+xml"),
            ("/icons/crab-192.png", "image/png"),
            ("/", "text/html; charset=utf-8"),
        ):
            got = await fetch_raw(visitor, path)
            assert (got.status, got.headers["Content-Type"]) == (200, kind)


@pytest.mark.req("page.update")
async def test_any_change_to_the_page_changes_its_service_worker(
    tmp_path: Path, page: Path
) -> None:
    (page / "worker.js").write_text('const VERSION = "unversioned";')
    async with open_relay_world(tmp_path / "data", static=page) as world:
        visitor = await world.open_client()
        first = (await visitor.get("/worker.js")).ok
        assert re.fullmatch(rb'const VERSION = "[0-9a-f]{16}";', first)
        assert (await visitor.get("/worker.js")).ok == first
        (page / "assets" / "app.js").write_text("changed()")
        assert (await visitor.get("/worker.js")).ok != first


def find_links() -> list[str]:
    html = (PAGE / "index.html").read_text("utf-8")
    return re.findall(r'(?:href|src)="(/[^"]+)"', html)


@pytest.mark.req("page.modules")
def test_the_page_links_all_of_its_modules_and_sheets() -> None:
    index = (PAGE / "index.html").read_text("utf-8")
    assert index == page_files.render_index(), "run python -m apps.web.page_files"
    for path in find_links():
        assert (PAGE / path[1:]).is_file(), path


@pytest.mark.req("page.modules")
def test_every_import_of_a_module_is_a_file_of_the_page() -> None:
    import_pattern = re.compile(r'^(?:import|export|\}) .*?from "([^"]+)"', re.MULTILINE)
    for module in PAGE.rglob("*.js"):
        for found in import_pattern.findall(module.read_text("utf-8")):
            assert (module.parent / found).resolve().is_file(), (module.name, found)


@pytest.mark.req("page.small")
async def test_the_first_load_is_small(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path / "data", static=PAGE) as world:
        visitor = await world.open_client()
        size = 0
        for path in ("/", *find_links()):
            got = await fetch_raw(visitor, path, **{"Accept-Encoding": "gzip"})
            size += len(got.ok)
    assert size <= FIRST_LOAD


@pytest.mark.req("page.policy")
def test_no_module_turns_text_into_markup_or_code() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|setHTMLUnsafe"
        r"|document\.write|\beval\(|new Function|importScripts"
    )
    for module in PAGE.rglob("*.js"):
        assert not forbidden.search(module.read_text("utf-8")), module.name


@pytest.mark.req("page.policy")
def test_no_part_of_the_page_is_remote_or_inline() -> None:
    for path in (*PAGE.rglob("*.js"), *PAGE.rglob("*.css"), *PAGE.rglob("*.svg")):
        # The name of a namespace, which is never requested.
        text = path.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://", text), path.name
        assert path.suffix != ".css" or not re.search(r"@import|url\(", text), path.name
    html = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"https?://", html)
    assert re.findall(r"<script(?![^>]* src=)[^>]*>", html) == []
    assert " style=" not in html
    assert not re.search(r" on\w+=", html)


@pytest.mark.req("page.themes")
def test_dark_is_the_same_whether_chosen_or_the_systems() -> None:
    sheet = (PAGE / "style" / "tokens.css").read_text("utf-8")
    _, system, chosen = re.split(
        r'@media \(prefers-color-scheme: dark\)|\[data-theme="dark"\]', sheet
    )
    values = re.compile(r"(--[\w-]+): ([^;]+);")
    dark = dict(values.findall(system))
    assert dark == dict(values.findall(chosen.partition("@media")[0]))
    for ink, paper in INKS:
        for theme in (dict(values.findall(sheet.partition("@media")[0])), dark):
            assert compute_contrast(theme[f"--{ink}"], theme[f"--{paper}"]) >= 4.5, (ink, paper)


INKS = [
    (ink, paper)
    for ink in ("text", "muted", "accent", "danger", "ok", "warn")
    for paper in ("bg", "surface", "raised", "hover", "accent-soft")
] + [("accent-text", "accent"), ("danger", "danger-soft"), ("ok", "ok-soft"), ("warn", "warn-soft")]


def compute_contrast(one: str, other: str) -> float:
    """The contrast as defined in WCAG 2."""
    lighter, darker = sorted((compute_luminance(one), compute_luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def compute_luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.req("relay.cors")
async def test_a_page_of_any_origin_may_send_requests_with_a_token(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        response = await ada.request("OPTIONS", "/v3/sessions/x/messages")
        assert response.status == 204
        for reply in (
            response,
            await ada.get("/v1/sessions"),
            await ada.get("/v3/sessions/x/messages"),
        ):
            assert reply.headers["Access-Control-Allow-Origin"] == "*"
        methods = response.headers["Access-Control-Allow-Methods"]
        assert {"GET", "POST", "PUT", "DELETE"} <= set(methods.split(", "))
        assert "Authorization" in response.headers["Access-Control-Allow-Headers"]
        assert "Access-Control-Allow-Credentials" not in response.headers
