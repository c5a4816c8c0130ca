"""Pairs this machine with an account: it sends a request, and a device of the account approves
it."""

import asyncio
from typing import Any

from crabtalk_web.sealing import PairingSecret, to_base64

from .credentials import RelayCredentials
from .errors import RelayUnavailableError, WebGatewayError
from .relay_http import RelayHttp

POLL_EVERY = 1.0
# A relay deletes a request after five minutes.
PAIRING_TIMEOUT = 300.0


class MachinePairing:
    """One request. `link` is for a browser, `app_link` for an app that scans it."""

    def __init__(self, relay: RelayHttp, page: str = "") -> None:
        self._relay = relay
        self._secret = PairingSecret()
        self.link = self._secret.page_link(page or relay.url)
        self.app_link = self._secret.terminal_link

    async def request_approval(self) -> RelayCredentials | None:
        """Return None until the request is answered. Raises WebGatewayError, and what the relay
        raises."""
        reply = await self._relay.post(
            "/v1/auth/request",
            {
                "publicKey": to_base64(self._secret.public_key),
                "supportsV2": True,
                "sealsToken": True,
            },
        )
        if not isinstance(reply, dict) or reply.get("state") != "authorized":
            return None
        approval = self._secret.open_approval(str(reply.get("response", "")))
        token = self._read_token(reply)
        if approval is None or not token:
            raise WebGatewayError("the answer to this pairing cannot be opened; pair again")
        return RelayCredentials.from_approval(self._relay.url, token, approval)

    def _read_token(self, reply: dict[str, Any]) -> str:
        if "sealedToken" in reply:
            return self._secret.open_token(str(reply["sealedToken"])) or ""
        return str(reply.get("token", ""))

    async def wait_for_approval(self) -> RelayCredentials:
        """Wait until a device has answered. Raises WebGatewayError if none does in time."""
        try:
            async with asyncio.timeout(PAIRING_TIMEOUT):
                while True:
                    try:
                        if (credentials := await self.request_approval()) is not None:
                            return credentials
                    except RelayUnavailableError:
                        pass  # it may be back for the next attempt
                    await asyncio.sleep(POLL_EVERY)
        except TimeoutError:
            raise WebGatewayError("no device answered within five minutes; pair again") from None
