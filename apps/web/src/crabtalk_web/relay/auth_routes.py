"""Routes for accounts and pairing: how tokens are issued and revoked."""

from collections.abc import Callable

import msgspec
from aiohttp import web
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from . import accounts, pairings, request_types
from .accounts import AccountDevice
from .authentication import CLIENT_HEADER
from .context import RelayContext
from .errors import RelayError, build_not_found_error
from .ids import now_ms
from .pairings import PairingState
from .registration import Admission
from .request_bodies import build_json_response
from .routing import AuthenticatedRoute, PublicRoute

KEY_SIZE = 32
SIGNATURE_SIZE = 64
MAX_CHALLENGE = 1024


class AuthRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        return [
            PublicRoute("POST", "/v1/auth/nonce", self.create_nonce),
            PublicRoute("POST", "/v1/auth", self.log_in),
            PublicRoute("POST", "/v1/auth/request", self.request_terminal),
            PublicRoute("GET", "/v1/auth/request/status", self.terminal_status),
            AuthenticatedRoute("POST", "/v1/auth/response", self.answer_terminal),
            PublicRoute("POST", "/v1/auth/account/request", self.request_account),
            PublicRoute("GET", "/v1/auth/account/request/status", self.account_status),
            AuthenticatedRoute("POST", "/v1/auth/account/response", self.answer_account),
            AuthenticatedRoute("GET", "/v1/devices", self.list_devices),
            AuthenticatedRoute("DELETE", "/v1/devices/{id}", self.revoke_device),
        ]

    async def create_nonce(self, request: web.Request) -> web.Response:
        """Return a fresh nonce to sign."""
        self._check_rate(request)
        return build_json_response({"nonce": self._context.authenticator.new_nonce()})

    async def log_in(self, request: web.Request) -> web.Response:
        self._check_rate(request)
        limits = self._context.limits
        async with self._context.body_reader.read_body(
            request, request_types.LoginRequest, limits.strangers_body
        ) as login:
            if (
                not self._context.authenticator.take_nonce(login.challenge)
                and self._context.config.nonce_only
            ):
                raise RelayError(401, "sign a nonce of POST /v1/auth/nonce, each one once")
            if not is_signed(login):
                raise RelayError(401, "Invalid signature")
            token = await self._log_in(request, login)
        return build_json_response({"success": True, "token": token})

    async def _log_in(self, request: web.Request, login: request_types.LoginRequest) -> str:
        context, limits = self._context, self._context.limits
        release_reservation: Callable[[], None] | None = None
        if not await context.database.read(accounts.has_account, login.public_key):
            release_reservation = context.authenticator.reserve_account(
                context.proxies.find_client(request)
            )
        admission = Admission(
            context.config.registration_mode,
            limits.accounts,
            login.invite or "",
            now_ms() - round(limits.unused_account * 1000),
        )
        is_new = False
        try:
            token, is_new = await context.database.write(
                accounts.log_in,
                login.public_key,
                login.challenge,
                read_client_header(request),
                admission,
            )
        finally:
            if release_reservation is not None and not is_new:
                release_reservation()
        return token

    async def request_terminal(self, request: web.Request) -> web.Response:
        return await self._request_pairing(request, "terminal")

    async def request_account(self, request: web.Request) -> web.Response:
        return await self._request_pairing(request, "account")

    async def answer_terminal(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return await self._answer_pairing(request, caller, "terminal")

    async def answer_account(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return await self._answer_pairing(request, caller, "account")

    async def terminal_status(self, request: web.Request) -> web.Response:
        return await self._status(request, "terminal")

    async def account_status(self, request: web.Request) -> web.Response:
        return await self._status(request, "account")

    async def _status(self, request: web.Request, kind: str) -> web.Response:
        self._check_rate(request)
        # In a query string a plus may have become a space.
        text = request.query.get("publicKey", "").replace(" ", "+")
        try:
            key = msgspec.convert(text, bytes)
        except msgspec.ValidationError:
            key = b""
        status, supports_v2 = await self._context.database.read(
            pairings.get_pairing_status, kind, check_public_key(key), self._context.limits.pairing
        )
        return build_json_response({"status": status, "supportsV2": supports_v2})

    async def list_devices(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response(
            {"devices": await self._context.database.read(accounts.list_devices, caller)}
        )

    async def revoke_device(self, request: web.Request, caller: AccountDevice) -> web.Response:
        device = request.match_info["id"]
        hashed = await self._context.database.write(accounts.revoke_device, caller.account, device)
        if hashed is None:
            raise build_not_found_error("Device")
        self._context.authenticator.forget_token(hashed)
        self._context.hub.disconnect_device(device)
        return build_json_response({"success": True})

    async def _request_pairing(self, request: web.Request, kind: str) -> web.Response:
        self._check_rate(request)
        limits = self._context.limits
        async with self._context.body_reader.read_body(
            request, request_types.PairingRequest, limits.strangers_body
        ) as body:
            pairing = await self._context.database.write(
                pairings.request_pairing,
                kind,
                check_public_key(body.public_key),
                read_client_header(request),
                supports_v2=bool(body.supports_v2),
                sealed=bool(body.seals_token),
                most=limits.pairings,
                lifetime=limits.pairing,
            )
        return build_json_response(build_pairing_state(pairing))

    async def _answer_pairing(
        self, request: web.Request, caller: AccountDevice, kind: str
    ) -> web.Response:
        limits = self._context.limits
        async with self._context.body_reader.read_body(
            request, request_types.PairingResponse, limits.strangers_body
        ) as response:
            is_known = await self._context.database.write(
                pairings.answer_pairing,
                kind,
                check_public_key(response.public_key),
                caller.account,
                response.response,
                limits.pairing,
            )
        if not is_known:
            raise RelayError(404, "Request not found")
        return build_json_response({"success": True})

    def _check_rate(self, request: web.Request) -> None:
        most = self._context.limits.strangers_requests
        self._context.authenticator.check_rate(
            self._context.proxies.find_client(request), "auth", most
        )


def build_pairing_state(pairing: PairingState) -> dict[str, object]:
    if pairing.sealed_token:
        return {
            "state": "authorized",
            "sealedToken": pairing.sealed_token,
            "response": pairing.response,
        }
    if pairing.token:
        return {"state": "authorized", "token": pairing.token, "response": pairing.response}
    return {"state": "requested"}


def check_public_key(public_key: bytes) -> bytes:
    if len(public_key) != KEY_SIZE:
        raise RelayError(401, "Invalid public key")
    return public_key


def is_signed(login: request_types.LoginRequest) -> bool:
    if len(login.signature) != SIGNATURE_SIZE or not 0 < len(login.challenge) <= MAX_CHALLENGE:
        return False
    try:
        VerifyKey(check_public_key(login.public_key)).verify(login.challenge, login.signature)
    except CryptoError:
        return False
    return True


def read_client_header(request: web.Request) -> str:
    """Return the client's name for itself, such as `cli/1.2.5`."""
    return request.headers.get(CLIENT_HEADER, "")
