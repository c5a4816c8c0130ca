"""Login: a code on the screen that somebody scans with WeChat, and the token that comes of it."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crabtalk.component.gateway import Away, GatewayError, Refused, TryLater

from .ilink import ILink, RefusalError

# Codes that are shown, one after the other; each is good for some minutes.
MOST_CODES = 3
# Seconds between two questions whether it was scanned, and for all of it.
EVERY, PATIENCE = 0.5, 600.0
HOST = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?")
AGAIN = "run `crabtalk-wechat setup` again"


@dataclass(frozen=True, slots=True)
class Login:
    token: str = field(repr=False)
    base_url: str  # empty where it stays as it is
    bot: str
    person: str  # who has scanned it


@dataclass(frozen=True, slots=True)
class Screen:
    """What whoever is at the terminal sees, and is asked: the digits on the phone, again if those
    of before were wrong."""

    code: Callable[[str], None]
    say: Callable[[str], None]
    digits: Callable[[bool], str]


async def login(ilink: ILink, screen: Screen) -> Login:
    """Raises GatewayError, and what the service raises."""
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(MOST_CODES):
                answer = await ilink.qr_code()
                code, content = text_in(answer, "qrcode"), text_in(answer, "qrcode_img_content")
                if not code or not content:
                    raise GatewayError(f"WeChat gave no code; {AGAIN}")
                screen.code(content)
                if (done := await scanned(ilink, screen, code)) is not None:
                    return done
                screen.say("The code is not valid any more; this is another one.")
    except TimeoutError:
        pass
    except RefusalError as error:
        raise GatewayError(f"WeChat says no: {error}; {AGAIN}") from None
    raise GatewayError(f"nobody has scanned the code; {AGAIN}")


async def scanned(ilink: ILink, screen: Screen, code: str) -> Login | None:
    """None when the code has run out. Where to ask may change on the way."""
    asked = ilink.elsewhere(ilink.base_url)
    digits, before = "", ""
    while True:
        began = time.monotonic()
        answer = await status(asked, code, digits)
        found = text_in(answer, "status")
        if found != before and found == "scaned":
            digits = ""
            screen.say("Scanned. Confirm it on the phone.")
        before = found
        match found:
            case "confirmed":
                return confirmed(answer)
            case "expired" | "verify_code_blocked":
                return None
            case "need_verifycode":
                digits = screen.digits(bool(digits))
                continue
            case "scaned_but_redirect":
                asked.base_url = elsewhere(asked.base_url, text_in(answer, "redirect_host"))
            case "binded_redirect":
                raise GatewayError(f"this bot belongs to a program already; remove it and {AGAIN}")
        await asyncio.sleep(max(0.0, EVERY - (time.monotonic() - began)))


async def status(asked: ILink, code: str, digits: str) -> dict[str, Any]:
    """Nothing, when it was not answered: it is asked again."""
    try:
        return await asked.qr_status(code, digits)
    except (Away, TryLater):
        return {}


def confirmed(answer: dict[str, Any]) -> Login:
    token = text_in(answer, "bot_token")
    if not token:
        raise Refused("WeChat has confirmed it, and gave no token")
    return Login(
        token,
        address(text_in(answer, "baseurl")),
        text_in(answer, "ilink_bot_id"),
        text_in(answer, "ilink_user_id"),
    )


def address(url: str) -> str:
    """Empty for what is none."""
    return url.rstrip("/") if url.startswith(("https://", "http://")) else ""


def elsewhere(url: str, host: str) -> str:
    scheme = url.partition("://")[0]
    return f"{scheme}://{host}" if HOST.fullmatch(host) else url


def text_in(answer: dict[str, Any], key: str) -> str:
    found = answer.get(key)
    return found if isinstance(found, str) else ""
