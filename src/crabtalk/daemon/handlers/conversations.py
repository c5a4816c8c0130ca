"""ConversationHandlers: the requests about stored conversations, such as list, page and delete."""

import asyncio
from contextlib import suppress
from datetime import datetime

from crabtalk.daemon.daemon import Daemon
from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Pair

from .error_mapping import translate_errors
from .wire_conversion import (
    DayNames,
    add_conversation,
    insert_damaged_messages,
    to_archive_list,
    to_conversation_history,
)

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
# Bytes of the log to read for one page of records.
RECORD_PAGE_BYTES = 1024 * 1024
# Rows of a listing to build before other tasks run.
ROWS_PER_SLICE = 500


class ConversationHandlers(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def list_active_conversations(
        self, request: wire.ListActiveConversationsMsg
    ) -> wire.ActiveConversationList:
        now = self._daemon.clock.monotonic()
        return wire.ActiveConversationList(
            conversations=[
                wire.ActiveConversationInfo(
                    agent=conversation.pair.agent,
                    sender=conversation.pair.sender,
                    message_count=conversation.meta.message_count,
                    alive_secs=int(now - conversation.created_at),
                    title=conversation.meta.title,
                    mode=conversation.meta.mode or None,
                )
                for conversation in self._daemon.runtime.conversations
                if conversation.exists
                and request.agent in ("", conversation.pair.agent)
                and request.sender in ("", conversation.pair.sender)
            ]
        )

    async def list_conversations(self, request: wire.ListConversationsMsg) -> wire.ConversationList:
        with translate_errors():
            conversations = await self._daemon.storage.list_conversations(
                request.agent, request.sender
            )
        conversations.sort(key=lambda entry: (entry[1].updated_at, entry[0]), reverse=True)
        days = DayNames(datetime.now().astimezone())
        answer = wire.ConversationList()
        for start in range(0, len(conversations), ROWS_PER_SLICE):
            for handle, meta in conversations[start : start + ROWS_PER_SLICE]:
                add_conversation(answer, handle, meta, days)
            await asyncio.sleep(0)  # let other tasks run
        return answer

    async def get_conversation_history(
        self, request: wire.GetConversationHistoryMsg
    ) -> wire.ConversationHistory:
        pair = await self._resolve_handle(request.file_path)
        with translate_errors():
            stored = await self._daemon.storage.read_conversation(pair)
        if stored is None:
            raise unknown_handle_error(request.file_path)
        # In a thread: the time grows with the length of the conversation.
        return await asyncio.to_thread(to_conversation_history, stored, with_runs=request.with_runs)

    async def delete_conversation(self, request: wire.DeleteConversationMsg) -> None:
        runtime = await self._daemon.wait_until_ready()
        pair = await self._resolve_handle(request.file_path)
        # Also kill a turn that runs in another daemon.
        with suppress(NotFoundError):
            kill = wire.KillMsg(agent=pair.agent, sender=pair.sender)
            await self._forward_to_owner(wire.ClientMessage(kill=kill))
        with translate_errors():
            await runtime.delete_conversation(*pair)

    async def _resolve_handle(self, handle: str) -> Pair:
        with translate_errors():
            pair = await self._daemon.storage.resolve_handle(handle)
        if pair is None:
            raise unknown_handle_error(handle)
        return pair

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        limit = min(request.limit or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        # After a crash, a client that looks for its message must also see accepted messages.
        await self._daemon.wait_until_opened()
        await self._daemon.runtime.wait_until_recovered(get_pair(request))
        with translate_errors():
            page = await self._daemon.storage.read_page(get_pair(request), request.offset, limit)
        if page is None:
            raise unknown_conversation_error(request)
        return wire.MessagePage(
            messages=insert_damaged_messages(
                page.messages, page.damaged, with_runs=request.with_runs
            ),
            total=page.total,
            next_offset=page.next_offset,
        )

    async def list_records(self, request: wire.ListRecordsMsg) -> wire.RecordPage:
        limit = min(request.limit or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        pair = get_pair(request)
        await self._daemon.wait_until_opened()
        await self._daemon.runtime.wait_until_recovered(pair)
        with translate_errors():
            record_slice = await self._daemon.storage.read_records(
                pair, request.position, RECORD_PAGE_BYTES
            )
            if record_slice is not None and request.log_id not in ("", record_slice.origin):
                record_slice = await self._daemon.storage.read_records(pair, 0, RECORD_PAGE_BYTES)
        if record_slice is None:
            raise unknown_conversation_error(request)
        # Late: only used by programs that mirror conversations.
        from .record_pages import to_record_page

        return to_record_page(record_slice, request.position, limit)

    async def list_archives(self, request: wire.ListArchivesMsg) -> wire.ArchiveList:
        with translate_errors():
            archives = await self._daemon.storage.list_archives(get_pair(request))
        if archives is None:
            raise unknown_conversation_error(request)
        return to_archive_list(archives)

    async def set_title(self, request: wire.SetTitleMsg) -> None:
        runtime = await self._daemon.wait_until_ready()
        if await self._forward_to_owner(wire.ClientMessage(set_title=request)):
            return
        with translate_errors():
            await runtime.set_title(request.agent, request.title, request.sender)

    async def _forward_to_owner(self, message: wire.ClientMessage) -> bool:
        """Whether another daemon, which runs the conversation's turn, has carried it out."""
        if self._daemon.fleet is None:
            return False
        with translate_errors():
            return await self._daemon.fleet.forward(message)


def get_pair(request: wire.ListMessagesMsg | wire.ListArchivesMsg | wire.ListRecordsMsg) -> Pair:
    return Pair(request.agent, request.sender or DEFAULT_SENDER)


def unknown_conversation_error(
    request: wire.ListMessagesMsg | wire.ListArchivesMsg | wire.ListRecordsMsg,
) -> NotFoundError:
    agent, sender = get_pair(request)
    return NotFoundError(f"{agent[:80]} has had no conversation with {sender[:80]} yet")


def unknown_handle_error(handle: str) -> NotFoundError:
    return NotFoundError(f"no conversation has the handle {handle[:80]!r}; list_conversations does")
