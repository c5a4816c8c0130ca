"""WeChat: the service, over the iLink bot API. It moves messages, and knows nothing of agents.

Messages are text without marks, cannot be changed and have no buttons. WeChat takes an answer only
with the context of something its person wrote, and only about ten with each.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from crabtalk.component.gateway import (
    Attachment,
    Button,
    Chat,
    Limits,
    Refused,
    Rich,
    ServiceError,
    TooLong,
    TryLater,
    Update,
)

from .ilink import EXPIRED, SOON, SPENT, ILink, RefusalError
from .plain import plain
from .polling import Polling
from .reading import Kind
from .state import MOST_PEOPLE, State
from .store import FILE, PICTURE, Kept, Store, kind_of

TEXT = 4000
UPLOAD = 50 * 1024 * 1024
# Of a message: from a bot, and complete.
OF_BOT, COMPLETE = 2, 2
# Seconds: a message waits so long for its person to write again, and is tried again after so long
# without that.
FOR_WORD, SPENT_FOR = 20.0, 60.0


class WeChat:
    name = "wechat"
    prefix = "wx"
    limits = Limits(
        text=TEXT, edits=False, edit_every=0.0, typing_every=5.0, buttons=False, upload=UPLOAD
    )

    def __init__(self, ilink: ILink, store: Store, state: State, polling: Polling) -> None:
        self._ilink = ilink
        self._store = store
        self._state = state
        self._polling = polling
        self._spent: dict[str, float] = {}  # who has to write first, and when to try without
        self._heard = asyncio.Event()  # somebody; another one each time
        self._tickets: dict[str, str] = {}  # for typing

    def measure(self, text: Rich) -> int:
        """In UTF-16 units. Without its marks a text is no longer than with them."""
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    async def updates(self) -> AsyncGenerator[Update, None]:
        async with aclosing(self._polling.updates()) as found:
            async for update in found:
                self._spent.pop(update.person.id, None)
                self._heard.set()
                self._heard = asyncio.Event()
                yield update

    async def taken(self, update: Update) -> None:
        self._polling.taken(update.id)

    # ── What goes ───────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        chat: Chat,
        text: Rich,
        *,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
        is_literal: bool = False,
    ) -> str:
        shown = text if is_literal else plain(text)
        if self.measure(shown) > TEXT:
            raise TooLong(f"a message has {TEXT} characters at most")
        return await self._send(chat.id, {"type": Kind.TEXT, "text_item": {"text": shown}})

    async def edit(
        self,
        chat: Chat,
        message_id: str,
        text: Rich,
        *,
        buttons: Sequence[Button] = (),
        is_literal: bool = False,
    ) -> None:
        raise Refused("messages in WeChat cannot be changed")

    async def typing(self, chat: Chat) -> None:
        person = chat.id
        self._must_be_known()
        try:
            if person not in self._tickets:
                answer = await self._ilink.config(person, self._state.context(person))
                trim(self._tickets)
                self._tickets[person] = str(answer.get("typing_ticket") or "")
            if ticket := self._tickets[person]:
                await self._ilink.typing(person, ticket)
        except RefusalError as error:
            self._tickets.pop(person, None)
            raise meaning(error) from None

    async def _send(self, person: str, item: dict[str, Any]) -> str:
        self._must_be_known()
        context = await self._context(person)
        name = f"crabtalk-{uuid.uuid4()}"
        message = {
            "from_user_id": "",
            "to_user_id": person,
            "client_id": name,
            "message_type": OF_BOT,
            "message_state": COMPLETE,
            "context_token": context,
            "item_list": [item],
        }
        try:
            await self._ilink.send(message)
        except RefusalError as error:
            # Who has written in the meantime has another.
            if error.code == SPENT and context == self._state.context(person):
                trim(self._spent)
                self._spent[person] = now() + SPENT_FOR
            raise meaning(error) from None
        self._spent.pop(person, None)
        return name

    async def _context(self, person: str) -> str:
        """That of the last thing they wrote; while that is used up, they are waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FOR_WORD):
                while self._spent.get(person, 0.0) > now():
                    await self._heard.wait()
        if self._spent.get(person, 0.0) > now():
            raise TryLater(SOON, "WeChat takes no more until this person writes again")
        return self._state.context(person)

    def _must_be_known(self) -> None:
        if self._polling.is_expired:
            raise TryLater(SOON, "the session with WeChat is over")

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        await self._store.fetch(attachment.id, path)

    async def upload(self, chat: Chat, path: Path, caption: str) -> str:
        self._must_be_known()
        data = await asyncio.to_thread(path.read_bytes)
        kind = kind_of(path)
        try:
            kept = await self._store.keep(self._ilink, chat.id, kind, data)
        except RefusalError as error:
            raise meaning(error) from None
        if caption:  # a message has either words or a file
            await self.send(chat, caption)
        return await self._send(chat.id, item_of(kept, kind, path.name, len(data)))


def item_of(kept: Kept, kind: int, name: str, size: int) -> dict[str, Any]:
    media = kept.media()
    if kind == PICTURE:
        return {"type": Kind.PICTURE, "image_item": {"media": media, "mid_size": kept.size}}
    if kind == FILE:
        return {
            "type": Kind.FILE,
            "file_item": {"media": media, "file_name": name, "len": str(size)},
        }
    return {"type": Kind.VIDEO, "video_item": {"media": media, "video_size": kept.size}}


def meaning(error: RefusalError) -> ServiceError:
    if error.code in (EXPIRED, SPENT):  # nothing was done, and it may go later
        return TryLater(SOON, str(error))
    return Refused(str(error))


def trim(known: dict[str, Any]) -> None:
    """Makes room for one more; who was there first is forgotten."""
    while len(known) >= MOST_PEOPLE:
        del known[next(iter(known))]


def now() -> float:
    return asyncio.get_running_loop().time()
