"""Routes of accounts and pairing: how a token is come by, and how it is taken away."""

from collections.abc import Callable

import msgspec
from aiohttp import web
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from . import accounts, pairings, shapes
from .accounts import Device
from .core import Core
from .doorman import CLIENT_HEADER
from .errors import RelayError, not_found
from .ids import now_ms
from .mailroom import answer
from .pairings import Asked
from .registration import Admission
from .routing import OpenRoute, Route

KEY_SIZE = 32
SIGNATURE_SIZE = 64
CHALLENGE = 1024


class AuthRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        return [
            OpenRoute("POST", "/v1/auth/nonce", self.nonce),
            OpenRoute("POST", "/v1/auth", self.log_in),
            OpenRoute("POST", "/v1/auth/request", self.ask_terminal),
            OpenRoute("GET", "/v1/auth/request/status", self.status),
            Route("POST", "/v1/auth/response", self.answer_terminal),
            OpenRoute("POST", "/v1/auth/account/request", self.ask_account),
            OpenRoute("GET", "/v1/auth/account/request/status", self.account_status),
            Route("POST", "/v1/auth/account/response", self.answer_account),
            Route("GET", "/v1/devices", self.devices),
            Route("DELETE", "/v1/devices/{id}", self.revoke),
        ]

    async def nonce(self, request: web.Request) -> web.Response:
        """Something to sign that nobody has signed before."""
        self._knock(request)
        return answer({"nonce": self._core.doorman.new_nonce()})

    async def log_in(self, request: web.Request) -> web.Response:
        self._knock(request)
        limits = self._core.limits
        async with self._core.mailroom.parsed(
            request, shapes.Login, limits.strangers_body
        ) as login:
            if not self._core.doorman.take_nonce(login.challenge) and self._core.config.nonce_only:
                raise RelayError(401, "sign a nonce of POST /v1/auth/nonce, each one once")
            if not is_signed(login):
                raise RelayError(401, "Invalid signature")
            token = await self._log_in(request, login)
        return answer({"success": True, "token": token})

    async def _log_in(self, request: web.Request, login: shapes.Login) -> str:
        core, limits = self._core, self._core.limits
        give_back: Callable[[], None] | None = None
        if not await core.database.read(accounts.is_known, login.public_key):
            give_back = core.doorman.reserve_account(core.proxies.client_of(request))
        admission = Admission(
            core.config.registration_mode,
            limits.accounts,
            login.invite or "",
            now_ms() - round(limits.unused_account * 1000),
        )
        is_new = False
        try:
            token, is_new = await core.database.write(
                accounts.log_in, login.public_key, login.challenge, client_of(request), admission
            )
        finally:
            if give_back is not None and not is_new:
                give_back()
        return token

    async def ask_terminal(self, request: web.Request) -> web.Response:
        return await self._ask(request, "terminal")

    async def ask_account(self, request: web.Request) -> web.Response:
        return await self._ask(request, "account")

    async def answer_terminal(self, request: web.Request, caller: Device) -> web.Response:
        return await self._answer(request, caller, "terminal")

    async def answer_account(self, request: web.Request, caller: Device) -> web.Response:
        return await self._answer(request, caller, "account")

    async def status(self, request: web.Request) -> web.Response:
        return await self._status(request, "terminal")

    async def account_status(self, request: web.Request) -> web.Response:
        return await self._status(request, "account")

    async def _status(self, request: web.Request, kind: str) -> web.Response:
        self._knock(request)
        # In a query string a plus may have become a space.
        text = request.query.get("publicKey", "").replace(" ", "+")
        try:
            key = msgspec.convert(text, bytes)
        except msgspec.ValidationError:
            key = b""
        status, supports_v2 = await self._core.database.read(
            pairings.status, kind, checked(key), self._core.limits.pairing
        )
        return answer({"status": status, "supportsV2": supports_v2})

    async def devices(self, request: web.Request, caller: Device) -> web.Response:
        return answer({"devices": await self._core.database.read(accounts.devices, caller)})

    async def revoke(self, request: web.Request, caller: Device) -> web.Response:
        device = request.match_info["id"]
        hashed = await self._core.database.write(accounts.revoke, caller.account, device)
        if hashed is None:
            raise not_found("Device")
        self._core.doorman.revoked(hashed)
        self._core.hub.kick(device)
        return answer({"success": True})

    async def _ask(self, request: web.Request, kind: str) -> web.Response:
        self._knock(request)
        limits = self._core.limits
        async with self._core.mailroom.parsed(
            request, shapes.PairingRequest, limits.strangers_body
        ) as asked:
            known = await self._core.database.write(
                pairings.ask,
                kind,
                checked(asked.public_key),
                client_of(request),
                supports_v2=bool(asked.supports_v2),
                sealed=bool(asked.seals_token),
                most=limits.pairings,
                lifetime=limits.pairing,
            )
        return answer(state_of(known))

    async def _answer(self, request: web.Request, caller: Device, kind: str) -> web.Response:
        limits = self._core.limits
        async with self._core.mailroom.parsed(
            request, shapes.PairingResponse, limits.strangers_body
        ) as response:
            is_known = await self._core.database.write(
                pairings.answer,
                kind,
                checked(response.public_key),
                caller.account,
                response.response,
                limits.pairing,
            )
        if not is_known:
            raise RelayError(404, "Request not found")
        return answer({"success": True})

    def _knock(self, request: web.Request) -> None:
        most = self._core.limits.strangers_requests
        self._core.doorman.knock(self._core.proxies.client_of(request), "auth", most)


def state_of(asked: Asked) -> dict[str, object]:
    if asked.sealed_token:
        return {
            "state": "authorized",
            "sealedToken": asked.sealed_token,
            "response": asked.response,
        }
    if asked.token:
        return {"state": "authorized", "token": asked.token, "response": asked.response}
    return {"state": "requested"}


def checked(public_key: bytes) -> bytes:
    if len(public_key) != KEY_SIZE:
        raise RelayError(401, "Invalid public key")
    return public_key


def is_signed(login: shapes.Login) -> bool:
    if len(login.signature) != SIGNATURE_SIZE or not 0 < len(login.challenge) <= CHALLENGE:
        return False
    try:
        VerifyKey(checked(login.public_key)).verify(login.challenge, login.signature)
    except CryptoError:
        return False
    return True


def client_of(request: web.Request) -> str:
    """What kind of program it says it is: `cli/1.2.5`."""
    return request.headers.get(CLIENT_HEADER, "")
