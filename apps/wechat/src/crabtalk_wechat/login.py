"""Login: a code on the screen that somebody scans with WeChat, and the token that comes of it."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crabtalk.gateway import DeliveryUnknownError, GatewayError, RejectedError, RetryLaterError

from .ilink import ILinkClient, ILinkError

# Codes that are shown, one after the other; each is good for some minutes.
MAX_CODES = 3
# Seconds between two questions whether it was scanned, and for all of it.
POLL_INTERVAL, LOGIN_TIMEOUT = 0.5, 600.0
HOST_PATTERN = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?")
RUN_AGAIN = "run `crabtalk-wechat setup` again"


@dataclass(frozen=True, slots=True)
class WeChatLogin:
    token: str = field(repr=False)
    base_url: str  # empty where it stays as it is
    bot: str
    person: str  # who has scanned it


@dataclass(frozen=True, slots=True)
class LoginScreen:
    """What whoever is at the terminal sees, and is asked: the digits on the phone, again if those
    of before were wrong."""

    show_code: Callable[[str], None]
    show_text: Callable[[str], None]
    ask_digits: Callable[[bool], str]


async def run_login(ilink: ILinkClient, screen: LoginScreen) -> WeChatLogin:
    """Raises GatewayError, and what the service raises."""
    try:
        async with asyncio.timeout(LOGIN_TIMEOUT):
            for _ in range(MAX_CODES):
                answer = await ilink.get_qr_code()
                code, content = get_text(answer, "qrcode"), get_text(answer, "qrcode_img_content")
                if not code or not content:
                    raise GatewayError(f"WeChat gave no code; {RUN_AGAIN}")
                screen.show_code(content)
                if (done := await wait_for_scan(ilink, screen, code)) is not None:
                    return done
                screen.show_text("The code is not valid any more; this is another one.")
    except TimeoutError:
        pass
    except ILinkError as error:
        raise GatewayError(f"WeChat says no: {error}; {RUN_AGAIN}") from None
    raise GatewayError(f"nobody has scanned the code; {RUN_AGAIN}")


async def wait_for_scan(ilink: ILinkClient, screen: LoginScreen, code: str) -> WeChatLogin | None:
    """None when the code has run out. Where to ask may change on the way."""
    asked = ilink.with_base_url(ilink.base_url)
    digits, before = "", ""
    while True:
        began = time.monotonic()
        answer = await fetch_status(asked, code, digits)
        found = get_text(answer, "status")
        if found != before and found == "scaned":
            digits = ""
            screen.show_text("Scanned. Confirm it on the phone.")
        before = found
        match found:
            case "confirmed":
                return parse_login(answer)
            case "expired" | "verify_code_blocked":
                return None
            case "need_verifycode":
                digits = screen.ask_digits(bool(digits))
                continue
            case "scaned_but_redirect":
                asked.base_url = replace_host(asked.base_url, get_text(answer, "redirect_host"))
            case "binded_redirect":
                raise GatewayError(
                    f"this bot belongs to a program already; remove it and {RUN_AGAIN}"
                )
        await asyncio.sleep(max(0.0, POLL_INTERVAL - (time.monotonic() - began)))


async def fetch_status(asked: ILinkClient, code: str, digits: str) -> dict[str, Any]:
    """Nothing, when it was not answered: it is asked again."""
    try:
        return await asked.get_qr_status(code, digits)
    except (DeliveryUnknownError, RetryLaterError):
        return {}


def parse_login(answer: dict[str, Any]) -> WeChatLogin:
    token = get_text(answer, "bot_token")
    if not token:
        raise RejectedError("WeChat has confirmed it, and gave no token")
    return WeChatLogin(
        token,
        parse_base_url(get_text(answer, "baseurl")),
        get_text(answer, "ilink_bot_id"),
        get_text(answer, "ilink_user_id"),
    )


def parse_base_url(url: str) -> str:
    """Empty for what is none."""
    return url.rstrip("/") if url.startswith(("https://", "http://")) else ""


def replace_host(url: str, host: str) -> str:
    scheme = url.partition("://")[0]
    return f"{scheme}://{host}" if HOST_PATTERN.fullmatch(host) else url


def get_text(answer: dict[str, Any], key: str) -> str:
    found = answer.get(key)
    return found if isinstance(found, str) else ""
