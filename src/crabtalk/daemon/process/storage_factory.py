"""Creates the daemon's storage: files in its home, or a database shared with other daemons."""

from pathlib import Path
from typing import TYPE_CHECKING

from crabtalk.daemon.config.config_file import ConfigError
from crabtalk.daemon.config.settings import Config
from crabtalk.storage import FileStorage, Storage

if TYPE_CHECKING:
    from crabtalk.daemon.fleet.coordinator import Fleet


def open_storage(home: Path, config: Config) -> "tuple[Storage, Fleet | None]":
    """Create the storage without connecting. Raises ConfigError."""
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

    from crabtalk.daemon.fleet.coordinator import Fleet

    storage = PostgresStorage(
        home,
        settings.url,
        lease=settings.lease,
        pool=settings.pool,
        statement_timeout=settings.statement_timeout,
    )
    return storage, Fleet(storage)
