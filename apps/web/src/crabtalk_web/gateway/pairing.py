"""Pairing: this machine asks to be let into an account, and a device of it says yes."""

import asyncio
from typing import Any

from crabtalk_web.sealing import PairingSecret, to_base64

from .credentials import Credentials
from .errors import GatewayError, RelayAwayError
from .relay_http import RelayHttp

LOOK_EVERY = 1.0
# A relay forgets a request after five minutes.
LONGEST = 300.0


class Pairing:
    """One request. `link` is for a browser, `app_link` for an app that scans it."""

    def __init__(self, relay: RelayHttp, page: str = "") -> None:
        self._relay = relay
        self._secret = PairingSecret()
        self.link = self._secret.page_link(page or relay.url)
        self.app_link = self._secret.terminal_link

    async def ask(self) -> Credentials | None:
        """None while nobody has answered. Raises GatewayError, and what the relay raises."""
        told = await self._relay.post(
            "/v1/auth/request",
            {
                "publicKey": to_base64(self._secret.public_key),
                "supportsV2": True,
                "sealsToken": True,
            },
        )
        if not isinstance(told, dict) or told.get("state") != "authorized":
            return None
        approval = self._secret.open_approval(str(told.get("response", "")))
        token = self._token(told)
        if approval is None or not token:
            raise GatewayError("the answer to this pairing cannot be opened; pair again")
        return Credentials.approved(self._relay.url, token, approval)

    def _token(self, told: dict[str, Any]) -> str:
        if "sealedToken" in told:
            return self._secret.open_token(str(told["sealedToken"])) or ""
        return str(told.get("token", ""))

    async def wait(self) -> Credentials:
        """Until a device has answered. Raises GatewayError when none does in time."""
        try:
            async with asyncio.timeout(LONGEST):
                while True:
                    try:
                        if (found := await self.ask()) is not None:
                            return found
                    except RelayAwayError:
                        pass  # it may be back the next time
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError:
            raise GatewayError("nobody answered within five minutes; pair again") from None
