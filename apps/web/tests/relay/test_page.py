"""The page: served from the same origin, under a strict policy."""

from pathlib import Path

import pytest
from yarl import URL

from apps.web.tests.relay.people import town
from crabtalk_web.relay import RelayConfig, RelayConfigError


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
    async with town(tmp_path / "data", static=page) as there:
        visitor = await there.stranger()
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
async def test_the_policy_lets_the_page_talk_to_nobody_else(tmp_path: Path, page: Path) -> None:
    async with town(tmp_path / "data", static=page) as there:
        visitor = await there.stranger()
        for path in ("/", "/assets/app.js"):
            headers = (await visitor.get(path)).headers
            policy = dict(
                part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["connect-src"] == "'self'"
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.req("relay.page.paths")
@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "/way-out", "/%00.x"],
)
async def test_no_path_leads_out_of_the_folder(tmp_path: Path, page: Path, path: str) -> None:
    async with town(tmp_path / "data", static=page) as there:
        visitor = await there.stranger()
        url = URL(there.url + path, encoded=True)
        async with visitor.http.get(url) as got:
            assert b"secret" not in await got.read()


@pytest.mark.req("relay.page.served")
async def test_without_a_page_there_is_a_line(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        visitor = await there.stranger()
        assert b"relay" in (await visitor.get("/")).ok
        assert (await visitor.get("/sessions")).status == 404


@pytest.mark.req("relay.page.served")
def test_a_folder_without_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelayConfigError, match=r"has no index.html"):
        RelayConfig(tmp_path, static=tmp_path)


@pytest.mark.req("relay.cors")
async def test_a_page_of_any_origin_may_ask_with_a_token(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        ada = await there.person()
        asked = await ada.ask("OPTIONS", "/v3/sessions/x/messages")
        assert asked.status == 204
        for reply in (
            asked,
            await ada.get("/v1/sessions"),
            await ada.get("/v3/sessions/x/messages"),
        ):
            assert reply.headers["Access-Control-Allow-Origin"] == "*"
        methods = asked.headers["Access-Control-Allow-Methods"]
        assert {"GET", "POST", "PUT", "DELETE"} <= set(methods.split(", "))
        assert "Authorization" in asked.headers["Access-Control-Allow-Headers"]
        assert "Access-Control-Allow-Credentials" not in asked.headers
