"""Authentication: tokens, rate limits for requests without a token, and login nonces."""

import asyncio
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from aiohttp import web

from . import accounts
from .accounts import AccountDevice
from .database import RelayDatabase
from .errors import RelayError
from .ids import hash_token, now_ms
from .limits import RelayLimits

CLIENT_HEADER = "X-Happy-Client"
MAX_REMEMBERED = 10_000
MAX_NONCES = 10_000
MINUTE = 60.0
HOUR = 3600.0
# How stale a stored `seenAt` of a device may be, in milliseconds.
SEEN_PRECISION = 60_000


class Authenticator:
    def __init__(self, database: RelayDatabase, limits: RelayLimits) -> None:
        self._database = database
        self._limits = limits
        self._devices: OrderedDict[bytes, AccountDevice] = OrderedDict()
        self._revoked: OrderedDict[bytes, None] = OrderedDict()
        self._removed: OrderedDict[str, None] = OrderedDict()  # accounts
        self._seen: dict[str, int] = {}
        self._unwritten: dict[str, int] = {}
        self._renamed: dict[str, str] = {}
        self._nonces: OrderedDict[bytes, float] = OrderedDict()
        self._request_counts: Counter[tuple[str, str]] = Counter()
        self._minute_started_at = 0.0
        self._creation_times: dict[str, deque[float]] = {}  # account creation times by address

    async def authenticate(self, request: web.Request) -> AccountDevice:
        """Raises RelayError 401."""
        header = request.headers.get("Authorization", "")
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or not token:
            raise RelayError(401, "Missing authorization header")
        device = await self.find_device(token.strip())
        if device is None:
            raise RelayError(401, "Invalid token")
        client = request.headers.get(CLIENT_HEADER, "")[: accounts.MAX_CLIENT_NAME]
        if client and client != device.client:
            device = AccountDevice(device.id, device.account, client)
            self._devices[hash_token(token.strip())] = device
            self._renamed[device.id] = client
        return device

    async def find_device(self, token: str) -> AccountDevice | None:
        hashed = hash_token(token)
        device = self._devices.get(hashed)
        if device is None:
            device = await self._database.read(accounts.find_device, hashed)
            # It may have been revoked during the read.
            if device is None or hashed in self._revoked or device.account in self._removed:
                return None
            self._devices[hashed] = device
            if len(self._devices) > MAX_REMEMBERED:
                self._devices.popitem(last=False)
        self._mark_seen(device.id)
        return device

    def forget_token(self, hashed: bytes) -> None:
        self._devices.pop(hashed, None)
        self._revoked[hashed] = None
        if len(self._revoked) > MAX_REMEMBERED:
            self._revoked.popitem(last=False)

    def forget_account(self, account: str) -> None:
        """The account was removed, and its tokens with it."""
        self._removed[account] = None
        if len(self._removed) > MAX_REMEMBERED:
            self._removed.popitem(last=False)
        for hashed in [
            token_hash for token_hash, device in self._devices.items() if device.account == account
        ]:
            self.forget_token(hashed)

    def reserve_account(self, client: str) -> Callable[[], None]:
        """Count an account that an address is about to create. The returned function takes this
        back if none was created. Raises RelayError 429."""
        now, limit = asyncio.get_running_loop().time(), self._limits.accounts_an_hour
        times = self._creation_times.setdefault(client, deque())
        while times and times[0] < now - HOUR:
            times.popleft()
        if len(times) >= limit:
            raise RelayError(
                429, f"at most {limit} new accounts an hour from one address; try again later"
            )
        times.append(now)
        if len(self._creation_times) > MAX_REMEMBERED:
            recent = {
                address: recent_times
                for address, recent_times in self._creation_times.items()
                if recent_times and recent_times[-1] > now - HOUR
            }
            self._creation_times = recent
        return lambda: times.remove(now) if now in times else None

    def check_rate(self, client: str, kind: str, limit: int) -> None:
        """Count a request of the current minute. Raises RelayError 429."""
        now = asyncio.get_running_loop().time()
        if now - self._minute_started_at > MINUTE:
            self._minute_started_at = now
            self._request_counts.clear()
        self._request_counts[kind, client] += 1
        if self._request_counts[kind, client] > limit:
            raise RelayError(429, f"at most {limit} of these requests a minute; try again later")

    def new_nonce(self) -> bytes:
        nonce = secrets.token_bytes(32)
        self._nonces[nonce] = asyncio.get_running_loop().time() + self._limits.nonce
        if len(self._nonces) > MAX_NONCES:
            self._nonces.popitem(last=False)
        return nonce

    def take_nonce(self, nonce: bytes) -> bool:
        """Return whether it is one of our recent nonces, and use it up."""
        return self._nonces.pop(nonce, 0.0) > asyncio.get_running_loop().time()

    async def flush(self) -> None:
        seen, self._unwritten = self._unwritten, {}
        if seen:
            await self._database.write(accounts.save_seen_times, seen)
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.clear()
        renamed, self._renamed = self._renamed, {}
        if renamed:
            await self._database.write(accounts.rename_devices, renamed)

    def _mark_seen(self, device: str) -> None:
        now = now_ms()
        if now - self._seen.get(device, 0) > SEEN_PRECISION:
            self._seen[device] = self._unwritten[device] = now
