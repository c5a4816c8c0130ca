"""Folding: a conversation's turn that says nothing, but puts its history into an archive.

It is carried out whole or not at all. What a summary is made of is the compaction's business.
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
    place: ConversationClaim,
    summarising: SummaryWriter | None,
    archiving: ArchiveCallback,
) -> Archive:
    """The whole life of a compaction: its place in the line, the summary, the archive. Without
    `summarising`, the conversation begins afresh.

    Raises RuntimeRefusalError and StorageUnavailableError; nothing has changed then.
    """
    try:
        async with conversation.hold_turn(place):
            conversation.run = run
            try:
                return await compact_history(conversation, summarising, archiving)
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
    conversation: Conversation, summarising: SummaryWriter | None, archiving: ArchiveCallback
) -> Archive:
    await run_to_completion(conversation.load())
    if not conversation.exists:
        raise unknown_conversation_error(conversation.pair)
    marker = conversation.marker
    carried = 1 if marker is not None and marker.summary and summarising is not None else 0
    if len(conversation.history) <= carried:
        raise NothingToCompactError("nothing was said that is not in an archive already")
    base = make_log_name(conversation.pair)
    name = next_archive_name(base, marker.archive_name if marker is not None else "")
    if summarising is None:
        ending: Awaitable[Archive] = conversation.archive_without_summary(name)
    else:
        summary = await summarising()
        ending = conversation.archive_with_summary(name, make_title(summary), summary, archiving)
    folding = asyncio.ensure_future(ending)
    try:
        return await run_to_completion(folding)
    except asyncio.CancelledError:
        clear_cancellation()
        return folding.result()  # too late to say that nothing changed
