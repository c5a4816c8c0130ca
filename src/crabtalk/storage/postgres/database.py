"""PostgresDatabase: connections to PostgreSQL, their limits, and conversion of its errors.

It connects when a connection is first needed, and again after the database was unreachable. While
it is unreachable, statements fail at once with a sentence.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import asyncpg
from asyncpg.exceptions._base import (
    DataError as ClientDataError,  # the public name is the server's error
)

from crabtalk.storage.errors import StorageError, StorageUnavailableError

log = logging.getLogger(__name__)

POOL_SIZE = 8
STATEMENT_SECONDS = 10.0
MAX_BIGINT = 2**63 - 1  # the largest number in a bigint column
CONNECT_SECONDS = 5.0
# Seconds for a cancelled statement to end, before its connection is closed.
RELEASE_SECONDS = 1.0
# Seconds without connection attempts after a failure; the pause doubles each time.
FIRST_PAUSE, LAST_PAUSE = 0.05, 2.0
# Seconds until an unused connection is closed.
IDLE_SECONDS = 300.0

Rows: TypeAlias = list[asyncpg.Record]

# Temporary errors: the server is stopping, starting, read-only, or too busy.
TRANSIENT_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a connection that broke during a statement
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
)
# The temporary errors after which a statement that only reads can be tried again: it did not begin,
# or its connection broke.
CONNECTION_ERRORS = (
    ConnectionError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)


class PostgresConnection(asyncpg.Connection):
    """Skips the reset query, because we leave no state on a connection. Saves a round trip."""

    def get_reset_query(self) -> str:
        return ""


class PostgresDatabase:
    """One per daemon. All methods raise StorageError; StorageUnavailableError if temporary."""

    def __init__(
        self, url: str, *, pool: int = POOL_SIZE, statement_seconds: float = STATEMENT_SECONDS
    ) -> None:
        self._url = url
        self._size = pool
        self._seconds = statement_seconds
        self._pool: Any = None
        self._open_lock = asyncio.Lock()
        self._reserved: PostgresConnection | None = None
        self._reserved_lock = asyncio.Lock()
        self._closed = False
        self._failures = 0
        self._backoff_until = 0.0
        self._last_failure = ""  # message for statements that fail without an attempt

    @property
    def name(self) -> str:
        """The url without secrets."""
        return strip_credentials(self._url)

    async def fetch(self, statement: str, *values: Any) -> Rows:
        """Run a statement that only reads. Tried again if the connection was lost."""
        try:
            return await self._fetch(statement, values)
        except ConnectionGoneError:
            return await self._fetch(statement, values)

    async def fetch_row(self, statement: str, *values: Any) -> asyncpg.Record | None:
        rows = await self.fetch(statement, *values)
        return rows[0] if rows else None

    async def change(self, statement: str, *values: Any) -> Rows:
        """Run a statement without retries: a failed one may have been carried out."""
        return await self._fetch(statement, values)

    async def _fetch(self, statement: str, values: Sequence[Any]) -> Rows:
        async with self._connection() as connection:
            return list(await connection.fetch(statement, *values))

    async def change_on_reserved(self, statement: str, *values: Any) -> Rows:
        """The same on a connection reserved for this: it waits only for other calls of this
        method."""
        async with self._reserved_lock:
            if self._closed:
                raise StorageError("storage is closed")
            if self._reserved is None or self._reserved.is_closed():
                self._reserved = await self.connect()
            try:
                with translate_database_errors(self):
                    return list(await self._reserved.fetch(statement, *values))
            except BaseException:
                self._reserved.terminate()
                self._reserved = None
                raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresConnection]:
        async with self._connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[PostgresConnection]:
        pool = await self._open_pool()
        with translate_database_errors(self):
            self._check_backoff()
            connection = await self._acquire(pool)
            try:
                yield connection
            except asyncpg.ReadOnlySQLTransactionError:
                # The connection is to a standby; a new one may be to the primary server.
                await pool.expire_connections()
                raise
            finally:
                await self._release(pool, connection)

    async def _acquire(self, pool: Any) -> PostgresConnection:
        try:
            connection: PostgresConnection = await pool.acquire(timeout=CONNECT_SECONDS)
        except TRANSIENT_ERRORS as error:
            if isinstance(error, TimeoutError) and pool.get_size() - pool.get_idle_size() >= (
                self._size
            ):
                raise TimeoutError(
                    f"all {self._size} connections are in use; if that happens often, raise pool "
                    "in [storage] of config.toml"
                ) from error
            self._start_backoff(error)
            raise
        self._failures = 0
        return connection

    async def _release(self, pool: Any, connection: PostgresConnection) -> None:
        """Release a connection, but do not wait for a server that does not answer."""
        try:
            await pool.release(connection, timeout=RELEASE_SECONDS)
        except (*TRANSIENT_ERRORS, asyncpg.PostgresError) as error:
            log.info("a connection is given up: %s", describe_error(error))

    async def connect(self) -> PostgresConnection:
        """A connection outside the pool, for example for listening."""
        with translate_database_errors(self):
            return await asyncpg.connect(
                self._url, connection_class=PostgresConnection, **self._settings()
            )

    async def _open_pool(self) -> Any:
        if self._pool is None:
            async with self._open_lock:
                if self._closed:
                    raise StorageError("storage is closed")
                if self._pool is None:
                    with translate_database_errors(self):
                        self._pool = await asyncpg.create_pool(
                            self._url,
                            min_size=0,
                            max_size=self._size,
                            max_inactive_connection_lifetime=IDLE_SECONDS,
                            connection_class=PostgresConnection,
                            **self._settings(),
                        )
        if self._closed:
            raise StorageError("storage is closed")
        return self._pool

    def _settings(self) -> dict[str, Any]:
        return {
            "timeout": CONNECT_SECONDS,
            # Longer than the server's own timeout, for a server that no longer answers.
            "command_timeout": self._seconds + 1,
            "server_settings": {
                "application_name": "crabtalk",
                "statement_timeout": str(int(self._seconds * 1000)),
                "idle_in_transaction_session_timeout": str(int(self._seconds * 1000)),
                "jit": "off",
                # Plans are made while tables are small, and still used when they are large.
                "enable_seqscan": "off",
            },
        }

    def _check_backoff(self) -> None:
        """Fail at once for a while after a failed connection attempt."""
        if time.monotonic() < self._backoff_until:
            raise ConnectionError(self._last_failure)

    def _start_backoff(self, error: BaseException) -> None:
        self._last_failure = describe_error(error)
        pause = min(FIRST_PAUSE * 2 ** min(self._failures, 10), LAST_PAUSE)
        self._failures += 1
        self._backoff_until = time.monotonic() + pause

    async def close(self) -> None:
        self._closed = True
        if self._reserved is not None:
            self._reserved.terminate()
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await pool.close()
            except (TimeoutError, *TRANSIENT_ERRORS):
                pool.terminate()


class ConnectionGoneError(StorageUnavailableError):
    """The connection was lost before or during the statement."""


@contextmanager
def translate_database_errors(database: PostgresDatabase) -> Iterator[None]:
    """Raise asyncpg errors as StorageErrors with a sentence."""
    try:
        yield
    except (asyncpg.DataError, ClientDataError) as error:
        raise StorageError(f"the database {database.name} cannot hold this: {error}") from error
    except TRANSIENT_ERRORS as error:
        kind = (
            ConnectionGoneError if isinstance(error, CONNECTION_ERRORS) else StorageUnavailableError
        )
        raise kind(
            f"the database {database.name} cannot be used now ({describe_error(error)}); "
            "it is tried again by itself: try again in a moment"
        ) from error
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as e:
        raise StorageError(
            f"the database {database.name} refuses us: {e}; check url in [storage] of config.toml"
        ) from e
    except asyncpg.InsufficientResourcesError as error:
        raise StorageError(f"the database {database.name} is full: {error}") from error
    except asyncpg.PostgresError as error:
        log.exception("the database refused a statement")
        raise StorageError(f"the database {database.name} refused: {error}") from error


def describe_error(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def strip_credentials(url: str) -> str:
    """The url without user, password and parameters."""
    return re.sub(r"^(\w+://)[^@/]*@", r"\1", url.partition("?")[0])
