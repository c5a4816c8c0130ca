"""Converts errors of other packages to the RequestErrors that clients get."""

from collections.abc import Iterator
from contextlib import contextmanager

from crabtalk.daemon.config.config_file import ConfigError
from crabtalk.memory import MemoryStoreError
from crabtalk.model import ApiError, ProviderSettingsError
from crabtalk.protocol import (
    BadRequestError,
    ConflictError,
    InternalError,
    NotFoundError,
    RequestError,
    UnavailableError,
)
from crabtalk.runtime import (
    BusyError,
    CompactionError,
    KeyConflictError,
    NothingInFlightError,
    NothingToCompactError,
    UnknownAgentError,
    UnknownConversationError,
    UnknownToolError,
)
from crabtalk.storage import AgentError, StorageError, StorageUnavailableError


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of the runtime, storage, memory and models as RequestErrors."""
    try:
        yield
    except (UnknownAgentError, UnknownConversationError, NothingInFlightError) as error:
        raise NotFoundError(str(error)) from error
    except (NothingToCompactError, AgentError, UnknownToolError) as error:
        raise BadRequestError(str(error)) from error
    except KeyConflictError as error:
        raise ConflictError(str(error)) from error
    except (BusyError, StorageUnavailableError) as error:
        raise UnavailableError(str(error)) from error
    except MemoryStoreError as error:
        raise to_request_error(error) from error
    except (CompactionError, StorageError, ConfigError, ProviderSettingsError, ApiError) as error:
        raise InternalError(str(error)) from error


def to_request_error(error: MemoryStoreError) -> RequestError:
    """Memory errors have codes that the wire does not; those become bad requests."""
    match error.code:
        case 404:
            return NotFoundError(str(error))
        case 500:
            return InternalError(str(error))
        case 503:
            return UnavailableError(str(error))
    return BadRequestError(str(error))


def unknown_agent_error(name: str) -> NotFoundError:
    return NotFoundError(f"no agent is called {name[:80]!r}")
