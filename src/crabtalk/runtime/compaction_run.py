"""Compaction as a turn of a conversation: it moves the whole history into an archive, or nothing.

The text of the summary is the business of `compaction`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from crabtalk.model import ApiError
from crabtalk.storage import Archive, StorageError, StorageUnavailableError, make_log_name

from .compaction import make_title, next_archive_name
from .conversation import (
    ArchiveCallback,
    Conversation,
    ConversationClaim,
    clear_cancellation,
    run_to_completion,
)
from .errors import (
    CompactionError,
    NothingToCompactError,
    RuntimeRefusalError,
    unknown_conversation_error,
)
from .run import Run

log = logging.getLogger(__name__)

SummaryWriter: TypeAlias = Callable[[], Awaitable[str]]


async def run_compaction(
    run: Run,
    conversation: Conversation,
    claim: ConversationClaim,
    write_summary: SummaryWriter | None,
    store_archive: ArchiveCallback,
) -> Archive:
    """The whole life of a compaction: waiting in the queue, the summary, the archive. Without
    `write_summary`, the conversation starts over.

    Raises RuntimeRefusalError and StorageUnavailableError; nothing has changed then.
    """
    try:
        async with conversation.hold_turn(claim):
            conversation.run = run
            try:
                return await compact_history(conversation, write_summary, store_archive)
            finally:
                conversation.run = None
    except asyncio.CancelledError:
        clear_cancellation()
        raise CompactionError("the compaction was killed; nothing changed") from None
    except (RuntimeRefusalError, StorageUnavailableError):
        raise
    except (ApiError, StorageError) as error:
        raise CompactionError(f"{error}; nothing changed") from error
    except Exception as error:
        log.exception("the compaction %s failed", run.id)
        sentence = f"internal error ({type(error).__name__}); nothing changed"
        raise CompactionError(sentence) from error


async def compact_history(
    conversation: Conversation, write_summary: SummaryWriter | None, store_archive: ArchiveCallback
) -> Archive:
    await run_to_completion(conversation.load())
    if not conversation.exists:
        raise unknown_conversation_error(conversation.pair)
    marker = conversation.marker
    summaries = 1 if marker is not None and marker.summary and write_summary is not None else 0
    if len(conversation.history) <= summaries:
        raise NothingToCompactError("nothing was said that is not in an archive already")
    base = make_log_name(conversation.pair)
    name = next_archive_name(base, marker.archive_name if marker is not None else "")
    if write_summary is None:
        work: Awaitable[Archive] = conversation.archive_without_summary(name)
    else:
        summary = await write_summary()
        work = conversation.archive_with_summary(name, make_title(summary), summary, store_archive)
    task = asyncio.ensure_future(work)
    try:
        return await run_to_completion(task)
    except asyncio.CancelledError:
        clear_cancellation()
        return task.result()  # the archive is stored, so the cancellation came too late
