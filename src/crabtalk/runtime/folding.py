"""Folding: a conversation's turn that says nothing, but puts its history into an archive.

It is carried out whole or not at all. What a summary is made of is the compaction's business.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from crabtalk.model import ApiError
from crabtalk.storage import Archive, StorageError, StorageUnavailableError, log_name

from .compaction import next_name, title_of
from .conversation import Archiving, Conversation, Place, to_the_end, uncancel
from .errors import (
    CompactionError,
    NothingToCompactError,
    RuntimeRefusalError,
    no_conversation,
)
from .run import Run

log = logging.getLogger(__name__)

Summarising: TypeAlias = Callable[[], Awaitable[str]]


async def folded(
    run: Run,
    conversation: Conversation,
    place: Place,
    summarising: Summarising | None,
    archiving: Archiving,
) -> Archive:
    """The whole life of a compaction: its place in the line, the summary, the archive. Without
    `summarising`, the conversation begins afresh.

    Raises RuntimeRefusalError and StorageUnavailableError; nothing has changed then.
    """
    try:
        async with conversation.turn(place):
            conversation.run = run
            try:
                return await fold(conversation, summarising, archiving)
            finally:
                conversation.run = None
    except asyncio.CancelledError:
        uncancel()
        raise CompactionError("the compaction was killed; nothing changed") from None
    except (RuntimeRefusalError, StorageUnavailableError):
        raise
    except (ApiError, StorageError) as error:
        raise CompactionError(f"{error}; nothing changed") from error
    except Exception as error:
        log.exception("the compaction %s failed", run.id)
        sentence = f"internal error ({type(error).__name__}); nothing changed"
        raise CompactionError(sentence) from error


async def fold(
    conversation: Conversation, summarising: Summarising | None, archiving: Archiving
) -> Archive:
    await to_the_end(conversation.load())
    if not conversation.exists:
        raise no_conversation(conversation.pair)
    marker = conversation.marker
    carried = 1 if marker is not None and marker.summary and summarising is not None else 0
    if len(conversation.history) <= carried:
        raise NothingToCompactError("nothing was said that is not in an archive already")
    base = log_name(conversation.pair)
    name = next_name(base, marker.archive_name if marker is not None else "")
    if summarising is None:
        ending: Awaitable[Archive] = conversation.begin_afresh(name)
    else:
        summary = await summarising()
        ending = conversation.fold(name, title_of(summary), summary, archiving)
    folding = asyncio.ensure_future(ending)
    try:
        return await to_the_end(folding)
    except asyncio.CancelledError:
        uncancel()
        return folding.result()  # too late to say that nothing changed
