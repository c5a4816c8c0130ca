"""The relay server: all parts together, listening on a port.

It writes no access log, and its log contains no content of any client.
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
from .authentication import Authenticator
from .blobs import BlobStore
from .config import RelayConfig
from .context import RelayContext
from .database import RelayDatabase
from .errors import RelayConfigError, RelayError
from .ids import now_ms
from .machine_routes import MachineRoutes
from .message_routes import MessageRoutes
from .page_server import PageServer
from .presence import PresenceTracker
from .request_bodies import BodyReader, build_json_response
from .routing import AuthenticatedRoute, RequestHandler, authenticate_first
from .session_routes import SessionRoutes
from .socket_hub import SocketHub
from .socket_route import SocketRoute
from .stub_routes import StubRoutes

ROUTE_GROUPS = (
    AuthRoutes,
    SessionRoutes,
    MessageRoutes,
    MachineRoutes,
    AttachmentRoutes,
    AccountRoutes,
    StubRoutes,
)
UPDATES = "/v1/updates"
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Happy-Client",
    "Access-Control-Max-Age": "86400",
}
TICK, FLUSH, SWEEP, CLEAN = 1.0, 5.0, 60.0, 600.0
SHUTDOWN_TIMEOUT = 5.0

log = logging.getLogger(__name__)
# aiohttp logs malformed requests with their content.
SILENT_LOG = logging.getLogger(f"{__name__}.http")
SILENT_LOG.setLevel(logging.CRITICAL)


class RelayServer:
    """As a context manager: listens until it is left. Raises RelayConfigError."""

    def __init__(self, config: RelayConfig) -> None:
        self.config = config
        self.port = config.port

    async def __aenter__(self) -> "RelayServer":
        config, limits = self.config, self.config.limits
        tls = config.tls()
        blobs = BlobStore(config.data / "blobs")
        database = RelayDatabase(config.data / "relay.db", flush=config.durability == "fsync")
        hub = SocketHub(limits)
        self.context = RelayContext(
            config=config,
            database=database,
            blobs=blobs,
            hub=hub,
            presence=PresenceTracker(database, hub, limits),
            authenticator=Authenticator(database, limits),
            body_reader=BodyReader(limits),
            proxies=TrustedProxies(config.trusted_proxies),
        )
        self._runner = web.AppRunner(
            build_application(self.context),
            access_log=None,
            logger=SILENT_LOG,
            shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
        # Before the first request: a token that is read earlier must not outlive its account.
        self._last_removal = await database.read(administration.find_last_removal)
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
        self._periodic_tasks = [
            asyncio.get_running_loop().create_task(run_periodically(seconds, task))
            for seconds, task in (
                (min(TICK, limits.ping_interval), self._tick),
                (FLUSH, self._flush),
                (SWEEP, self.context.presence.expire_inactive),
                (CLEAN, self.remove_expired),
            )
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._periodic_tasks:
            task.cancel()
        await asyncio.gather(*self._periodic_tasks, return_exceptions=True)
        for socket in self.context.hub.list_sockets():
            socket.close()
        await self._runner.cleanup()
        with suppress(RelayError):
            await self._flush()
        await self.context.database.close()

    @property
    def url(self) -> str:
        return self.config.url(self.port)

    def statistics(self) -> dict[str, Any]:
        database = self.context.database.statistics
        return {
            "sockets": self.context.hub.count,
            "writes": database.jobs,
            "transactions": database.transactions,
            "waiting": database.waiting,
        }

    async def remove_expired(self) -> None:
        """Remove expired files, and files without a row."""
        context, limits, now = self.context, self.config.limits, now_ms()
        names = await context.database.write(
            attachments.delete_old_attachments,
            now - round(limits.file_retention * 1000),
            now - round(limits.upload * 1000),
        )
        await context.remove_blobs(names)
        known = await context.database.read(attachments.list_names)
        await asyncio.to_thread(context.blobs.remove_unknown, known, limits.upload)
        await context.database.write(registration.forget_old_invites)
        await context.database.write(administration.forget_removals, self._last_removal)

    async def create_invite(self, uses: int, seconds: float) -> str:
        """Return the code of an invite that admits `uses` accounts."""
        expires_at = administration.compute_invite_expiry(seconds)
        return await self.context.database.write(registration.create_invite, uses, expires_at)

    async def _tick(self) -> None:
        for socket in self.context.hub.list_sockets():
            socket.check_alive()
        self.context.hub.remove_empty_accounts()
        await self._disconnect_removed_accounts()

    async def _disconnect_removed_accounts(self) -> None:
        """Accounts are removed by a command in another process, which cannot close sockets."""
        removals = await self.context.database.read(
            administration.list_removals, self._last_removal
        )
        for number, account in removals:
            self._last_removal = number
            self.context.authenticator.forget_account(account)
            self.context.hub.disconnect_account(account)

    async def _flush(self) -> None:
        await self.context.presence.flush()
        await self.context.authenticator.flush()


def build_application(context: RelayContext) -> web.Application:
    app = web.Application(middlewares=[answer_errors_as_json], client_max_size=context.limits.body)
    for route_group in ROUTE_GROUPS:
        for route in route_group(context).routes():
            handler: RequestHandler
            if isinstance(route, AuthenticatedRoute):
                handler = authenticate_first(context.authenticator, route.handler)
            else:
                handler = route.handler
            app.router.add_route(route.method, route.path, handler)
    updates = SocketRoute(context)
    for path in (UPDATES, f"{UPDATES}/"):
        app.router.add_get(path, updates.get)
    app.router.add_get("/{path:.*}", PageServer(context.config.static).get)
    app.on_response_prepare.append(allow_any_origin)
    return app


@web.middleware
async def answer_errors_as_json(
    request: web.Request, handler: RequestHandler
) -> web.StreamResponse:
    """Every failure becomes a JSON response."""
    if request.method == "OPTIONS":
        return web.Response(status=204)
    try:
        return await handler(request)
    except RelayError as error:
        return build_json_response(error.body, error.status)
    except web.HTTPException as error:
        return build_json_response({"error": error.reason}, error.status)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        resource = request.match_info.route.resource
        log.exception("%s %s failed", request.method, resource.canonical if resource else "?")
        return build_json_response({"error": "the relay failed; try again"}, 500)


async def allow_any_origin(request: web.Request, response: web.StreamResponse) -> None:
    """Requests carry a token that no browser adds by itself, so the origin does not matter."""
    response.headers.update(CORS)


async def run_periodically(seconds: float, task: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await task()
        except RelayError as error:
            log.warning("a chore is put off: %s", error)
        except Exception:
            log.exception("a chore failed")
