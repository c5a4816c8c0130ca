"""Telegram: the service, over the Bot API. It moves messages, and knows nothing of agents."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import telegram
from telegram.constants import ChatAction, ParseMode
from telegram.error import TelegramError

from crabtalk.component.gateway import (
    Attachment,
    Away,
    Button,
    Chat,
    Limits,
    Refused,
    Rich,
    TooLong,
    TryLater,
    Update,
)

from .line import RefusalError
from .markdown import bare, has_table, marked
from .pace import Pace
from .polling import number_of, patiently
from .reading import TOPIC, read
from .refusals import SOON, UNCHANGED, UNPARSED, meaning, says, translated

TEXT = 4096
CAPTION = 1024
UPLOAD = 50 * 1024 * 1024
PHOTO = 10 * 1024 * 1024
PHOTOS = (".jpg", ".jpeg", ".png", ".webp")
# Of a file that comes; the library of gateways keeps no larger ones either.
DOWNLOAD = 64 * 1024 * 1024
BLOCK = 64 * 1024
# Buttons side by side, and how long their labels may be together.
IN_ROW, ROW = 3, 24
# Groups that were given another id, and are remembered under both.
MOST_MOVED = 1024
MOST_ERRANDS = 64
NO_PREVIEW = telegram.LinkPreviewOptions(is_disabled=True)
COMMANDS = (
    ("agent", "Talk to another agent"),
    ("agents", "Who there is"),
    ("guest", "Have another agent speak once"),
    ("stop", "Stop what is going on"),
    ("new", "Begin anew"),
    ("compact", "Fold what was said into a summary"),
    ("search", "Find what was said"),
    ("title", "Name this conversation"),
    ("help", "What there is"),
)
MODE = ("mode", "Show or set what the agent may do without asking")

T = TypeVar("T")
log = logging.getLogger(__name__)


class Source(Protocol):
    """Where updates come from. `taken` is called for each of them."""

    port: int

    def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        """As they came, each with a number."""

    def taken(self, number: int) -> None: ...


class Telegram:
    name = "telegram"
    prefix = "tg"
    limits = Limits(
        text=TEXT, edits=True, edit_every=1.5, typing_every=4.0, buttons=True, upload=UPLOAD
    )

    def __init__(
        self,
        bot: telegram.Bot,
        http: httpx.AsyncClient,
        source: Source,
        pace: Pace | None = None,
        owners: Sequence[str] = (),
    ) -> None:
        self._owners = owners
        self._bot = bot
        self._http = http
        self._source = source
        self._errands: set[asyncio.Future[None]] = set()  # what nobody waits for
        self._pace = pace or Pace()
        self._presses: dict[str, str] = {}  # of updates: what Telegram calls the press
        self._moved: dict[str, str] = {}

    @property
    def port(self) -> int:
        """Where updates are brought to; 0 where they are asked for."""
        return self._source.port

    async def aclose(self) -> None:
        errands = list(self._errands)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)

    def measure(self, text: Rich) -> int:
        """In UTF-16 units, as Telegram counts what is seen: never more than was written, but for
        tables."""
        longest = units(text)
        return max(longest, units(bare(text))) if has_table(text) else longest

    # ── What comes ──────────────────────────────────────────────────────────────────────────

    async def updates(self) -> AsyncGenerator[Update, None]:
        me = await patiently(self._bot.get_me)
        log.info("this is @%s", me.username)
        self._errand(self._offer_commands())
        async with aclosing(self._source.updates()) as found:
            async for one in found:
                update = self._read(one, me)
                if update is None:
                    self._source.taken(number_of(one))
                else:
                    yield update

    def _read(self, raw: dict[str, Any], me: telegram.User) -> Update | None:
        try:
            one = telegram.Update.de_json(raw, self._bot)
            update = read(one, me)
            if update is not None and one.callback_query is not None:
                self._presses[update.id] = one.callback_query.id
        except Exception as error:  # whatever it is, it must not hold up the others
            log.warning("update %d makes no sense: %r", number_of(raw), error)
            return Update.left_out(str(number_of(raw)), json.dumps(raw))
        return update

    async def taken(self, update: Update) -> None:
        self._source.taken(int(update.id))
        if query := self._presses.pop(update.id, ""):
            self._errand(self._acknowledge(query))

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._errands) >= MOST_ERRANDS:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _acknowledge(self, query: str) -> None:
        """The button stops turning. One that was pressed long ago has stopped by itself."""
        with suppress(TelegramError):
            await self._bot.answer_callback_query(query)

    async def _offer_commands(self) -> None:
        """/mode is in the menus of the owner's own chats alone."""
        with suppress(TelegramError):
            await self._bot.set_my_commands(COMMANDS)
        for owner in self._owners:
            if owner.isdecimal():
                scope = telegram.BotCommandScopeChat(int(owner))
                with suppress(TelegramError):
                    await self._bot.set_my_commands((*COMMANDS, MODE), scope=scope)

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
        await self._pace.send()

        async def send(shown: dict[str, Any]) -> telegram.Message:
            return await self._to(
                chat,
                lambda place: self._bot.send_message(
                    **place, **shown, reply_markup=keyboard(buttons), **replying(reply_to)
                ),
            )

        with translated():
            return str((await render_text(send, text, is_literal=is_literal)).message_id)

    async def edit(
        self,
        chat: Chat,
        message_id: str,
        text: Rich,
        *,
        buttons: Sequence[Button] = (),
        is_literal: bool = False,
    ) -> None:
        await self._pace.change(chat.id, is_group=chat.is_group)

        async def edit(shown: dict[str, Any]) -> None:
            await self._to(
                chat,
                lambda place: self._bot.edit_message_text(
                    chat_id=place["chat_id"],
                    message_id=int(message_id),
                    reply_markup=keyboard(buttons),
                    **shown,
                ),
            )

        with translated():
            try:
                await render_text(edit, text, is_literal=is_literal)
            except TelegramError as error:
                if not says(error, UNCHANGED):
                    raise

    async def typing(self, chat: Chat) -> None:
        with translated():
            await self._to(
                chat, lambda place: self._bot.send_chat_action(action=ChatAction.TYPING, **place)
            )

    async def _to(self, chat: Chat, call: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """Where the chat is now: a group that becomes a larger one has another id from then on."""
        number, _, topic = chat.id.partition(TOPIC)
        place: dict[str, Any] = {"chat_id": int(self._moved.get(number, number))}
        if topic:
            place["message_thread_id"] = int(topic)
        try:
            return await call(place)
        except RefusalError as error:
            if not error.moved_to:
                raise
            self._moved[number] = error.moved_to
            while len(self._moved) > MOST_MOVED:
                del self._moved[next(iter(self._moved))]
            return await call({**place, "chat_id": int(error.moved_to)})

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        with translated():
            file = await self._bot.get_file(attachment.id)
        url = file.file_path or ""
        if not url.startswith(("http://", "https://")):
            raise Refused("the Bot API server keeps its files to itself; run it without --local")
        try:
            async with self._http.stream("GET", url) as reply:
                if reply.status_code >= 500:
                    raise Away(f"a file cannot be had: status {reply.status_code}")
                if reply.status_code != 200:
                    raise Refused(f"a file cannot be had: status {reply.status_code}")
                await store(reply, path)
        except httpx.ConnectError:
            raise TryLater(SOON, "files cannot be reached") from None
        except httpx.HTTPError as error:
            raise Away(f"a file broke off: {type(error).__name__}") from None

    async def upload(self, chat: Chat, path: Path, caption: str) -> str:
        await self._pace.send()
        data = await asyncio.to_thread(path.read_bytes)
        if units(caption) > CAPTION:
            raise TooLong("a caption has 1024 characters at most")
        with translated():
            if path.suffix.lower() in PHOTOS and len(data) <= PHOTO:
                try:
                    return str((await self._photo(chat, path.name, data, caption)).message_id)
                except RefusalError as error:
                    if not isinstance(meaning(error), Refused):
                        raise
                    log.info("%s is sent as a file: %s", path.name, error)
            return str((await self._document(chat, path.name, data, caption)).message_id)

    async def _photo(self, chat: Chat, name: str, data: bytes, caption: str) -> telegram.Message:
        return await self._to(
            chat,
            lambda place: self._bot.send_photo(
                photo=data, filename=name, caption=caption or None, **place
            ),
        )

    async def _document(self, chat: Chat, name: str, data: bytes, caption: str) -> telegram.Message:
        return await self._to(
            chat,
            lambda place: self._bot.send_document(
                document=data, filename=name, caption=caption or None, **place
            ),
        )


async def render_text(
    call: Callable[[dict[str, Any]], Awaitable[T]], text: Rich, *, is_literal: bool
) -> T:
    if not is_literal:
        return await rendered(call, text)
    # Telegram is given no marks to read: what is monospaced is said by place and length.
    block = telegram.MessageEntity(telegram.MessageEntity.PRE, 0, units(text))
    return await call({"text": text, "entities": [block], "link_preview_options": NO_PREVIEW})


async def rendered(call: Callable[[dict[str, Any]], Awaitable[T]], text: Rich) -> T:
    """Says a text with its marks; as bare text where Telegram cannot read them."""
    plain: dict[str, Any] = {"link_preview_options": NO_PREVIEW, "text": bare(text)}
    if not plain["text"].strip():  # marks around nothing
        return await call({**plain, "text": text})
    try:
        return await call({**plain, "text": marked(text), "parse_mode": ParseMode.MARKDOWN_V2})
    except TelegramError as error:
        if not says(error, UNPARSED):
            raise
        log.warning("a message goes without its marks: %s", error)
    return await call(plain)


def replying(reply_to: str) -> dict[str, Any]:
    if not reply_to:
        return {}
    message = int(reply_to)
    return {"reply_parameters": telegram.ReplyParameters(message, allow_sending_without_reply=True)}


def keyboard(buttons: Sequence[Button]) -> telegram.InlineKeyboardMarkup | None:
    """Short ones side by side."""
    if not buttons:
        return None
    rows: list[list[telegram.InlineKeyboardButton]] = []
    room = 0
    for label, payload in buttons:
        if not rows or len(rows[-1]) == IN_ROW or len(label) > room:
            rows.append([])
            room = ROW
        room -= len(label)
        rows[-1].append(telegram.InlineKeyboardButton(label, callback_data=payload))
    return telegram.InlineKeyboardMarkup(rows)


async def store(reply: httpx.Response, path: Path) -> None:
    size = 0
    with path.open("xb") as file:
        async for block in reply.aiter_bytes(BLOCK):
            size += len(block)
            if size > DOWNLOAD:
                raise Refused("a file is larger than is taken")
            await asyncio.to_thread(file.write, block)


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
