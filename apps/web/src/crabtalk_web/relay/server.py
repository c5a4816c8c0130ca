"""The relay: everything together, listening on a port.

It writes no access log, and nothing it logs has words of anybody in it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from aiohttp import web

from . import administration, attachments, registration
from .account_routes import AccountRoutes
from .addresses import TrustedProxies
from .attachment_routes import AttachmentRoutes
from .auth_routes import AuthRoutes
from .blobs import Blobs
from .config import RelayConfig
from .core import Core
from .database import Database
from .doorman import Doorman
from .errors import RelayConfigError, RelayError
from .hub import Hub
from .ids import now_ms
from .machine_routes import MachineRoutes
from .mailroom import Mailroom, answer
from .message_routes import MessageRoutes
from .page import Page
from .presence import Presence
from .quiet_routes import QuietRoutes
from .routing import Handler, Route, guarded
from .session_routes import SessionRoutes
from .socket_route import SocketRoute

DESKS = (
    AuthRoutes,
    SessionRoutes,
    MessageRoutes,
    MachineRoutes,
    AttachmentRoutes,
    AccountRoutes,
    QuietRoutes,
)
UPDATES = "/v1/updates"
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Happy-Client",
    "Access-Control-Max-Age": "86400",
}
TICK, FLUSH, SWEEP, CLEAN = 1.0, 5.0, 60.0, 600.0
STOPPING = 5.0

log = logging.getLogger(__name__)
# The server tells of requests that are none with their words in it.
QUIET = logging.getLogger(f"{__name__}.http")
QUIET.setLevel(logging.CRITICAL)


class Relay:
    """As a context: listens until it is left. Raises RelayConfigError."""

    def __init__(self, config: RelayConfig) -> None:
        self.config = config
        self.port = config.port

    async def __aenter__(self) -> "Relay":
        config, limits = self.config, self.config.limits
        tls = config.tls()
        blobs = Blobs(config.data / "blobs")
        database = Database(config.data / "relay.db", flush=config.durability == "fsync")
        hub = Hub(limits)
        self.core = Core(
            config=config,
            database=database,
            blobs=blobs,
            hub=hub,
            presence=Presence(database, hub, limits),
            doorman=Doorman(database, limits),
            mailroom=Mailroom(limits),
            proxies=TrustedProxies(config.trusted_proxies),
        )
        self._runner = web.AppRunner(
            application(self.core), access_log=None, logger=QUIET, shutdown_timeout=STOPPING
        )
        # Before the first request: a token that is read earlier must not outlive its account.
        self._last_removal = await database.read(administration.last_removal)
        await self._runner.setup()
        site = web.TCPSite(self._runner, config.host, config.port, ssl_context=tls, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            await database.close()
            raise RelayConfigError(
                f"cannot listen on {config.host}:{config.port}: {error.strerror};"
                " choose another port"
            ) from None
        self.port = self._runner.addresses[0][1]
        self._chores = [
            asyncio.get_running_loop().create_task(repeat(seconds, chore))
            for seconds, chore in (
                (min(TICK, limits.ping_interval), self._tick),
                (FLUSH, self._flush),
                (SWEEP, self.core.presence.sweep),
                (CLEAN, self.clean),
            )
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        for socket in self.core.hub.sockets():
            socket.close()
        await self._runner.cleanup()
        with suppress(RelayError):
            await self._flush()
        await self.core.database.close()

    @property
    def url(self) -> str:
        return self.config.url(self.port)

    def statistics(self) -> dict[str, Any]:
        database = self.core.database.statistics
        return {
            "sockets": self.core.hub.count,
            "writes": database.works,
            "transactions": database.transactions,
            "waiting": database.waiting,
        }

    async def clean(self) -> None:
        """Removes files whose time is over, and those that no row speaks of."""
        core, limits, now = self.core, self.config.limits, now_ms()
        names = await core.database.write(
            attachments.forget_old,
            now - round(limits.file_retention * 1000),
            now - round(limits.upload * 1000),
        )
        await core.remove_blobs(names)
        known = await core.database.read(attachments.names)
        await asyncio.to_thread(core.blobs.sweep, known, limits.upload)
        await core.database.write(registration.forget_old_invites)
        await core.database.write(administration.forget_removals, self._last_removal)

    async def create_invite(self, uses: int, seconds: float) -> str:
        """The code of an invite that lets so many people make an account."""
        expires_at = administration.invite_lifetime(seconds)
        return await self.core.database.write(registration.create_invite, uses, expires_at)

    async def _tick(self) -> None:
        for socket in self.core.hub.sockets():
            socket.check()
        self.core.hub.tidy()
        await self._shut_out_removed()

    async def _shut_out_removed(self) -> None:
        """Accounts are removed by a command in another process, which cannot close sockets."""
        found = await self.core.database.read(administration.removals_after, self._last_removal)
        for number, account in found:
            self._last_removal = number
            self.core.doorman.forget_account(account)
            self.core.hub.kick_account(account)

    async def _flush(self) -> None:
        await self.core.presence.flush()
        await self.core.doorman.flush()


def application(core: Core) -> web.Application:
    app = web.Application(middlewares=[plainly], client_max_size=core.limits.body)
    for desk in DESKS:
        for route in desk(core).routes():
            handler: Handler
            if isinstance(route, Route):
                handler = guarded(core.doorman, route.handler)
            else:
                handler = route.handler
            app.router.add_route(route.method, route.path, handler)
    updates = SocketRoute(core)
    for path in (UPDATES, f"{UPDATES}/"):
        app.router.add_get(path, updates.get)
    app.router.add_get("/{path:.*}", Page(core.config.static).get)
    app.on_response_prepare.append(allow_any_origin)
    return app


@web.middleware
async def plainly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Failures as JSON, whatever failed."""
    if request.method == "OPTIONS":
        return web.Response(status=204)
    try:
        return await handler(request)
    except RelayError as error:
        return answer(error.body, error.status)
    except web.HTTPException as error:
        return answer({"error": error.reason}, error.status)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        resource = request.match_info.route.resource
        log.exception("%s %s failed", request.method, resource.canonical if resource else "?")
        return answer({"error": "the relay failed; try again"}, 500)


async def allow_any_origin(request: web.Request, response: web.StreamResponse) -> None:
    """Whoever asks shows a token that no browser adds by itself: the origin says nothing."""
    response.headers.update(CORS)


async def repeat(seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except RelayError as error:
            log.warning("a chore is put off: %s", error)
        except Exception:
            log.exception("a chore failed")
