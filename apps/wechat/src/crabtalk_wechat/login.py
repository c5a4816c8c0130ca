"""Login: shows a QR code, waits until a person scans it with WeChat, and returns the token."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crabtalk.gateway import DeliveryUnknownError, GatewayError, RejectedError, RetryLaterError

from .ilink import ILinkClient, ILinkError

# Codes that are shown, one after another; each is valid for some minutes.
MAX_CODES = 3
# Seconds between two status requests, and for the whole login.
POLL_INTERVAL, LOGIN_TIMEOUT = 0.5, 600.0
HOST_PATTERN = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?")
RUN_AGAIN = "run `crabtalk-wechat setup` again"


@dataclass(frozen=True, slots=True)
class WeChatLogin:
    token: str = field(repr=False)
    base_url: str  # empty: unchanged
    bot: str
    person: str  # the person who scanned the code


@dataclass(frozen=True, slots=True)
class LoginScreen:
    """What the login shows on the terminal and asks there. `ask_digits` asks for the digits on the
    phone; its argument is True if the last ones were wrong."""

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
    raise GatewayError(f"the code was not scanned; {RUN_AGAIN}")


async def wait_for_scan(ilink: ILinkClient, screen: LoginScreen, code: str) -> WeChatLogin | None:
    """None if the code has expired. WeChat may redirect the status requests to another host."""
    status_client = ilink.with_base_url(ilink.base_url)
    digits, previous = "", ""
    while True:
        began = time.monotonic()
        answer = await fetch_status(status_client, code, digits)
        status = get_text(answer, "status")
        if status != previous and status == "scaned":
            digits = ""
            screen.show_text("Scanned. Confirm it on the phone.")
        previous = status
        match status:
            case "confirmed":
                return parse_login(answer)
            case "expired" | "verify_code_blocked":
                return None
            case "need_verifycode":
                digits = screen.ask_digits(bool(digits))
                continue
            case "scaned_but_redirect":
                status_client.base_url = replace_host(
                    status_client.base_url, get_text(answer, "redirect_host")
                )
            case "binded_redirect":
                raise GatewayError(
                    f"this bot belongs to a program already; remove it and {RUN_AGAIN}"
                )
        await asyncio.sleep(max(0.0, POLL_INTERVAL - (time.monotonic() - began)))


async def fetch_status(status_client: ILinkClient, code: str, digits: str) -> dict[str, Any]:
    """The login status. Empty if there was no answer; the caller asks again."""
    try:
        return await status_client.get_qr_status(code, digits)
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
    """Empty if it is not a URL."""
    return url.rstrip("/") if url.startswith(("https://", "http://")) else ""


def replace_host(url: str, host: str) -> str:
    scheme = url.partition("://")[0]
    return f"{scheme}://{host}" if HOST_PATTERN.fullmatch(host) else url


def get_text(answer: dict[str, Any], key: str) -> str:
    value = answer.get(key)
    return value if isinstance(value, str) else ""
