"""No fault goes unnoticed: a page that misbehaves is reported, and so is a missing browser."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.async_api import Browser

from apps.web.tests.browser import chromium
from crabtalk_web.relay import RelayConfig, RelayServer

from .chromium import open_browser_page

FAULTS = {
    "fetch('http://192.0.2.1/').catch(() => null)": "policy: connect-src forbids http://192.0.2.1/",
    "document.body.append(Object.assign(new Image(), { src: 'http://192.0.2.1/' }))": (
        "policy: img-src forbids"
    ),
    "try { new Function('1')() } catch { }": "policy: ",
    "document.body.setAttribute('style', 'color: red')": "policy: style-src",
    "console.error('ouch')": "console error: ouch",
    "setTimeout(() => { throw new Error('thrown') })": "page error: thrown",
    "Promise.reject(new Error('uncaught'))": "page error: uncaught",
    "location = 'http://127.0.0.1:9/elsewhere'": "request: GET http://127.0.0.1:9/elsewhere",
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.req("page.quiet")
async def test_a_page_that_misbehaves_is_noticed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    for number, script in enumerate(FAULTS):
        (page / f"{number}.js").write_text(f"{script};")
        head = '<!doctype html><link rel="icon" href="data:,"><body>'
        (page / f"{number}.html").write_text(f'{head}<script src="/{number}.js"></script>')
    (page / "index.html").write_text("")
    config = RelayConfig(tmp_path / "relay", port=0, static=page)
    async with RelayServer(config) as relay, open_browser_page(browser, relay.url) as (tab, watch):
        for number, wanted in enumerate(FAULTS.values()):
            watch.faults.clear()
            await tab.goto(f"{relay.url}/{number}.html")
            assert await wait_for_fault(watch, wanted), (wanted, watch.faults)
            with pytest.raises(AssertionError):
                watch.check()


async def wait_for_fault(watch: chromium.BrowserWatch, part: str) -> bool:
    """Faults are reported moments after they happen."""
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            while not any(part in fault for fault in watch.faults):
                await asyncio.sleep(0.02)
            return True
    return False


@pytest.mark.req("page.browser")
def test_without_a_browser_these_tests_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CRABTALK_CHROMIUM", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium.require_chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium.require_chromium()
    monkeypatch.setenv("CRABTALK_CHROMIUM", "/opt/chromium")
    assert chromium.require_chromium() == Path("/opt/chromium")
