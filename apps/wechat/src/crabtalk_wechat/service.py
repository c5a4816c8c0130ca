"""The WeChat service, over the iLink bot API. It moves messages, and knows nothing of agents.

Messages are plain text, cannot be edited and have no buttons. WeChat accepts an answer only with
the context of a message that its person wrote, and only about ten answers with each context.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from crabtalk.gateway import (
    Attachment,
    Button,
    Chat,
    ChatServiceError,
    Markdown,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
    ServiceLimits,
    Update,
)

from .file_store import FILE, PICTURE, StoredFile, WeChatFileStore, get_media_kind
from .ilink import EXPIRED_CODE, RETRY_SECONDS, SPENT_CODE, ILinkClient, ILinkError
from .message_parser import ItemKind
from .plain_text import render_plain
from .polling import WeChatPolling
from .state import MAX_PEOPLE, WeChatState

MAX_TEXT = 4000
MAX_UPLOAD = 50 * 1024 * 1024
# Type and state of a sent message: from a bot, and complete.
BOT_MESSAGE, COMPLETE_MESSAGE = 2, 2
# Seconds. A message waits this long for its person to write again. Without that, it is tried again
# after SPENT_SECONDS.
FOR_WORD, SPENT_SECONDS = 20.0, 60.0


class WeChatService:
    name = "wechat"
    prefix = "wx"
    limits = ServiceLimits(
        text=MAX_TEXT,
        edits=False,
        edit_every=0.0,
        typing_every=5.0,
        buttons=False,
        upload=MAX_UPLOAD,
    )

    def __init__(
        self, ilink: ILinkClient, store: WeChatFileStore, state: WeChatState, polling: WeChatPolling
    ) -> None:
        self._ilink = ilink
        self._file_store = store
        self._state = state
        self._polling = polling
        self._spent_until: dict[str, float] = {}  # by person: when to retry a used-up context
        self._update_received = asyncio.Event()  # replaced by a new event at each update
        self._typing_tickets: dict[str, str] = {}  # by person

    def measure(self, text: Markdown) -> int:
        """The length in UTF-16 units. Rendering as plain text never makes a text longer."""
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    async def updates(self) -> AsyncGenerator[Update, None]:
        async with aclosing(self._polling.updates()) as updates:
            async for update in updates:
                self._spent_until.pop(update.person.id, None)
                self._update_received.set()
                self._update_received = asyncio.Event()
                yield update

    async def acknowledge(self, update: Update) -> None:
        self._polling.acknowledge(update.id)

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        chat: Chat,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
        is_literal: bool = False,
    ) -> str:
        rendered = text if is_literal else render_plain(text)
        if self.measure(rendered) > MAX_TEXT:
            raise MessageTooLongError(f"a message has {MAX_TEXT} characters at most")
        return await self._send_item(
            chat.id, {"type": ItemKind.TEXT, "text_item": {"text": rendered}}
        )

    async def edit(
        self,
        chat: Chat,
        message_id: str,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        is_literal: bool = False,
    ) -> None:
        raise RejectedError("messages in WeChat cannot be changed")

    async def send_typing(self, chat: Chat) -> None:
        person = chat.id
        self._require_session()
        try:
            if person not in self._typing_tickets:
                answer = await self._ilink.get_config(person, self._state.get_context(person))
                make_space(self._typing_tickets)
                self._typing_tickets[person] = str(answer.get("typing_ticket") or "")
            if ticket := self._typing_tickets[person]:
                await self._ilink.send_typing(person, ticket)
        except ILinkError as error:
            self._typing_tickets.pop(person, None)
            raise to_service_error(error) from None

    async def _send_item(self, person: str, item: dict[str, Any]) -> str:
        self._require_session()
        context = await self._wait_for_context(person)
        client_id = f"crabtalk-{uuid.uuid4()}"
        message = {
            "from_user_id": "",
            "to_user_id": person,
            "client_id": client_id,
            "message_type": BOT_MESSAGE,
            "message_state": COMPLETE_MESSAGE,
            "context_token": context,
            "item_list": [item],
        }
        try:
            await self._ilink.send_message(message)
        except ILinkError as error:
            # If the person has written meanwhile, there is a new context.
            if error.code == SPENT_CODE and context == self._state.get_context(person):
                make_space(self._spent_until)
                self._spent_until[person] = get_loop_time() + SPENT_SECONDS
            raise to_service_error(error) from None
        self._spent_until.pop(person, None)
        return client_id

    async def _wait_for_context(self, person: str) -> str:
        """The context of the person's last message. While it is used up, wait for a new message."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FOR_WORD):
                while self._spent_until.get(person, 0.0) > get_loop_time():
                    await self._update_received.wait()
        if self._spent_until.get(person, 0.0) > get_loop_time():
            raise RetryLaterError(
                RETRY_SECONDS, "WeChat takes no more until this person writes again"
            )
        return self._state.get_context(person)

    def _require_session(self) -> None:
        if self._polling.is_expired:
            raise RetryLaterError(RETRY_SECONDS, "the session with WeChat is over")

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        await self._file_store.download_file(attachment.id, path)

    async def upload(self, chat: Chat, path: Path, caption: str) -> str:
        self._require_session()
        data = await asyncio.to_thread(path.read_bytes)
        kind = get_media_kind(path)
        try:
            stored = await self._file_store.upload_file(self._ilink, chat.id, kind, data)
        except ILinkError as error:
            raise to_service_error(error) from None
        if caption:  # a message has either text or a file
            await self.send(chat, caption)
        return await self._send_item(chat.id, make_file_item(stored, kind, path.name, len(data)))


def make_file_item(stored: StoredFile, kind: int, name: str, size: int) -> dict[str, Any]:
    media = stored.to_media()
    if kind == PICTURE:
        return {"type": ItemKind.PICTURE, "image_item": {"media": media, "mid_size": stored.size}}
    if kind == FILE:
        return {
            "type": ItemKind.FILE,
            "file_item": {"media": media, "file_name": name, "len": str(size)},
        }
    return {"type": ItemKind.VIDEO, "video_item": {"media": media, "video_size": stored.size}}


def to_service_error(error: ILinkError) -> ChatServiceError:
    if error.code in (EXPIRED_CODE, SPENT_CODE):  # nothing was done, and a retry may work
        return RetryLaterError(RETRY_SECONDS, str(error))
    return RejectedError(str(error))


def make_space(entries: dict[str, Any]) -> None:
    """Make room for one more entry by removing the oldest ones."""
    while len(entries) >= MAX_PEOPLE:
        del entries[next(iter(entries))]


def get_loop_time() -> float:
    return asyncio.get_running_loop().time()
