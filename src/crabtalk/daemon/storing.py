"""Where a daemon keeps things: in its home, or in a database that it shares with others."""

from pathlib import Path
from typing import TYPE_CHECKING

from crabtalk.storage import FileStorage, Storage

from .config import Config
from .config_file import ConfigError

if TYPE_CHECKING:
    from .fleet import Fleet


def open_storage(home: Path, config: Config) -> "tuple[Storage, Fleet | None]":
    """Connects to nothing yet. Raises ConfigError."""
    settings = config.storage
    if not settings.is_shared:
        return FileStorage(home, flush=config.flush), None
    try:
        from crabtalk.storage.postgres import PostgresStorage
    except ImportError as error:
        raise ConfigError(
            f"url in [storage] needs what is not installed ({error.name}): "
            "install crabtalk[postgres]"
        ) from None

    from .fleet import Fleet

    storage = PostgresStorage(
        home,
        settings.url,
        lease=settings.lease,
        pool=settings.pool,
        statement_timeout=settings.statement_timeout,
    )
    return storage, Fleet(storage)
