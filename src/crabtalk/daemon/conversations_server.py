"""ConversationsServer: the requests about what was said: lists, pages, archives, removal."""

import asyncio
from contextlib import suppress
from datetime import datetime

from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Pair

from .answers import Days, add_conversation, archive_list, history, with_damaged
from .daemon import Daemon
from .refusals import answered

PAGE = 100
LARGEST_PAGE = 500
# Of the log, read for one page of records.
RECORD_BYTES = 1024 * 1024
# Rows of a listing made in one go.
SLICE = 500


class ConversationsServer(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def list_active_conversations(
        self, request: wire.ListActiveConversationsMsg
    ) -> wire.ActiveConversationList:
        now = self._daemon.clock.seconds()
        return wire.ActiveConversationList(
            conversations=[
                wire.ActiveConversationInfo(
                    agent=conversation.pair.agent,
                    sender=conversation.pair.sender,
                    message_count=conversation.meta.message_count,
                    alive_secs=int(now - conversation.since),
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
        with answered():
            found = await self._daemon.storage.conversations(request.agent, request.sender)
        found.sort(key=lambda entry: (entry[1].updated_at, entry[0]), reverse=True)
        days = Days(datetime.now().astimezone())
        answer = wire.ConversationList()
        for start in range(0, len(found), SLICE):
            for handle, meta in found[start : start + SLICE]:
                add_conversation(answer, handle, meta, days)
            await asyncio.sleep(0)  # others have their turn
        return answer

    async def get_conversation_history(
        self, request: wire.GetConversationHistoryMsg
    ) -> wire.ConversationHistory:
        pair = await self._resolve(request.file_path)
        with answered():
            stored = await self._daemon.storage.read(pair)
        if stored is None:
            raise no_handle(request.file_path)
        # In a thread: it takes as long as the conversation is.
        return await asyncio.to_thread(history, stored, with_runs=request.with_runs)

    async def delete_conversation(self, request: wire.DeleteConversationMsg) -> None:
        runtime = await self._daemon.ready()
        pair = await self._resolve(request.file_path)
        # What runs elsewhere is killed as what runs here is.
        with suppress(NotFoundError):
            kill = wire.KillMsg(agent=pair.agent, sender=pair.sender)
            await self._is_passed_on(wire.ClientMessage(kill=kill))
        with answered():
            await runtime.delete(*pair)

    async def _resolve(self, handle: str) -> Pair:
        with answered():
            pair = await self._daemon.storage.resolve(handle)
        if pair is None:
            raise no_handle(handle)
        return pair

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        limit = min(request.limit or PAGE, LARGEST_PAGE)
        # A client that asks after a crash whether its message was kept must see accepted texts too.
        await self._daemon.opened()
        await self._daemon.runtime.wait_recovered(pair_of(request))
        with answered():
            page = await self._daemon.storage.page(pair_of(request), request.offset, limit)
        if page is None:
            raise no_conversation(request)
        return wire.MessagePage(
            messages=with_damaged(page.messages, page.damaged, with_runs=request.with_runs),
            total=page.total,
            next_offset=page.next_offset,
        )

    async def list_records(self, request: wire.ListRecordsMsg) -> wire.RecordPage:
        limit = min(request.limit or PAGE, LARGEST_PAGE)
        pair = pair_of(request)
        await self._daemon.opened()
        await self._daemon.runtime.wait_recovered(pair)
        with answered():
            found = await self._daemon.storage.read_records(pair, request.position, RECORD_BYTES)
            if found is not None and request.log_id not in ("", found.origin):
                found = await self._daemon.storage.read_records(pair, 0, RECORD_BYTES)
        if found is None:
            raise no_conversation(request)
        from .record_pages import record_page  # late: for programs that mirror conversations

        return record_page(found, request.position, limit)

    async def list_archives(self, request: wire.ListArchivesMsg) -> wire.ArchiveList:
        with answered():
            archives = await self._daemon.storage.archives(pair_of(request))
        if archives is None:
            raise no_conversation(request)
        return archive_list(archives)

    async def set_title(self, request: wire.SetTitleMsg) -> None:
        runtime = await self._daemon.ready()
        if await self._is_passed_on(wire.ClientMessage(set_title=request)):
            return
        with answered():
            await runtime.set_title(request.agent, request.title, request.sender)

    async def _is_passed_on(self, message: wire.ClientMessage) -> bool:
        """Whether another daemon, which has the turn of its conversation, has carried it out."""
        if self._daemon.fleet is None:
            return False
        with answered():
            return await self._daemon.fleet.pass_on(message)


def pair_of(request: wire.ListMessagesMsg | wire.ListArchivesMsg | wire.ListRecordsMsg) -> Pair:
    return Pair(request.agent, request.sender or DEFAULT_SENDER)


def no_conversation(
    request: wire.ListMessagesMsg | wire.ListArchivesMsg | wire.ListRecordsMsg,
) -> NotFoundError:
    agent, sender = pair_of(request)
    return NotFoundError(f"{agent[:80]} has had no conversation with {sender[:80]} yet")


def no_handle(handle: str) -> NotFoundError:
    return NotFoundError(f"no conversation has the handle {handle[:80]!r}; list_conversations does")
