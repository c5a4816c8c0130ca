"""The Telegram service, over the Bot API. It moves messages, and knows nothing of agents."""

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

from crabtalk.gateway import (
    Attachment,
    Button,
    Chat,
    DeliveryUnknownError,
    Markdown,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
    ServiceLimits,
    Update,
)

from .bot_requests import BotApiError
from .error_mapping import (
    RETRY_SECONDS,
    UNCHANGED_PHRASE,
    UNPARSED_PHRASE,
    has_phrase,
    to_service_error,
    translate_errors,
)
from .markdown import has_table, render_markdown_v2, render_plain
from .polling import get_update_number, retry_until_done
from .rate_limiter import RateLimiter
from .update_parser import TOPIC_SEPARATOR, parse_update

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_UPLOAD = 50 * 1024 * 1024
MAX_PHOTO = 10 * 1024 * 1024
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
# Bytes of a received file; the gateway library stores no larger ones either.
MAX_DOWNLOAD = 64 * 1024 * 1024
BLOCK_SIZE = 64 * 1024
# Buttons side by side, and the total length of their labels.
MAX_BUTTONS_IN_ROW, MAX_ROW_LENGTH = 3, 24
# Groups that got another id, and are known under both.
MAX_MOVED = 1024
MAX_BACKGROUND_TASKS = 64
NO_PREVIEW = telegram.LinkPreviewOptions(is_disabled=True)
BOT_COMMANDS = (
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
MODE_COMMAND = ("mode", "Show or set what the agent may do without asking")

T = TypeVar("T")
log = logging.getLogger(__name__)


class UpdateSource(Protocol):
    """A source of updates: polling or a webhook. `acknowledge` is called for each update."""

    port: int

    def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        """Raw updates, each with a number."""

    def acknowledge(self, number: int) -> None: ...


class TelegramService:
    name = "telegram"
    prefix = "tg"
    limits = ServiceLimits(
        text=MAX_TEXT, edits=True, edit_every=1.5, typing_every=4.0, buttons=True, upload=MAX_UPLOAD
    )

    def __init__(
        self,
        bot: telegram.Bot,
        http: httpx.AsyncClient,
        source: UpdateSource,
        rate_limiter: RateLimiter | None = None,
        owners: Sequence[str] = (),
    ) -> None:
        self._owners = owners
        self._bot = bot
        self._http = http
        self._source = source
        self._background_tasks: set[asyncio.Future[None]] = set()  # cancelled by `aclose`
        self._rate_limiter = rate_limiter or RateLimiter()
        self._press_ids: dict[str, str] = {}  # by update id: Telegram's id of the button press
        self._moved_chats: dict[str, str] = {}

    @property
    def port(self) -> int:
        """The port of the webhook; 0 for polling."""
        return self._source.port

    async def aclose(self) -> None:
        tasks = list(self._background_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def measure(self, text: Markdown) -> int:
        """The length in UTF-16 units, as Telegram counts the visible text. The markdown is never
        shorter, except for tables."""
        longest = count_utf16_units(text)
        return max(longest, count_utf16_units(render_plain(text))) if has_table(text) else longest

    # ── Receiving ───────────────────────────────────────────────────────────────────────────

    async def updates(self) -> AsyncGenerator[Update, None]:
        me = await retry_until_done(self._bot.get_me)
        log.info("this is @%s", me.username)
        self._start_background(self._offer_commands())
        async with aclosing(self._source.updates()) as raw_updates:
            async for raw in raw_updates:
                update = self._parse_update(raw, me)
                if update is None:
                    self._source.acknowledge(get_update_number(raw))
                else:
                    yield update

    def _parse_update(self, raw: dict[str, Any], me: telegram.User) -> Update | None:
        try:
            telegram_update = telegram.Update.de_json(raw, self._bot)
            update = parse_update(telegram_update, me)
            if update is not None and telegram_update.callback_query is not None:
                self._press_ids[update.id] = telegram_update.callback_query.id
        except Exception as error:  # no parse error may hold up the other updates
            log.warning("update %d makes no sense: %r", get_update_number(raw), error)
            return Update.unreadable(str(get_update_number(raw)), json.dumps(raw))
        return update

    async def acknowledge(self, update: Update) -> None:
        self._source.acknowledge(int(update.id))
        if query := self._press_ids.pop(update.id, ""):
            self._start_background(self._answer_press(query))

    def _start_background(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._background_tasks) >= MAX_BACKGROUND_TASKS:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _answer_press(self, query: str) -> None:
        """End the button's loading animation. After a while Telegram has ended it itself."""
        with suppress(TelegramError):
            await self._bot.answer_callback_query(query)

    async def _offer_commands(self) -> None:
        """Set the command menus. /mode is only in the menus of the owners' own chats."""
        with suppress(TelegramError):
            await self._bot.set_my_commands(BOT_COMMANDS)
        for owner in self._owners:
            if owner.isdecimal():
                scope = telegram.BotCommandScopeChat(int(owner))
                with suppress(TelegramError):
                    await self._bot.set_my_commands((*BOT_COMMANDS, MODE_COMMAND), scope=scope)

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
        await self._rate_limiter.wait_to_send()

        async def send(content: dict[str, Any]) -> telegram.Message:
            return await self._call_in_chat(
                chat,
                lambda target: self._bot.send_message(
                    **target,
                    **content,
                    reply_markup=build_keyboard(buttons),
                    **build_reply_parameters(reply_to),
                ),
            )

        with translate_errors():
            return str((await send_text(send, text, is_literal=is_literal)).message_id)

    async def edit(
        self,
        chat: Chat,
        message_id: str,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        is_literal: bool = False,
    ) -> None:
        await self._rate_limiter.wait_to_edit(chat.id, is_group=chat.is_group)

        async def edit(content: dict[str, Any]) -> None:
            await self._call_in_chat(
                chat,
                lambda target: self._bot.edit_message_text(
                    chat_id=target["chat_id"],
                    message_id=int(message_id),
                    reply_markup=build_keyboard(buttons),
                    **content,
                ),
            )

        with translate_errors():
            try:
                await send_text(edit, text, is_literal=is_literal)
            except TelegramError as error:
                if not has_phrase(error, UNCHANGED_PHRASE):
                    raise

    async def send_typing(self, chat: Chat) -> None:
        with translate_errors():
            await self._call_in_chat(
                chat, lambda target: self._bot.send_chat_action(action=ChatAction.TYPING, **target)
            )

    async def _call_in_chat(self, chat: Chat, call: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """Call the API with the chat's current id, which changes when it becomes a supergroup."""
        number, _, topic = chat.id.partition(TOPIC_SEPARATOR)
        target: dict[str, Any] = {"chat_id": int(self._moved_chats.get(number, number))}
        if topic:
            target["message_thread_id"] = int(topic)
        try:
            return await call(target)
        except BotApiError as error:
            if not error.moved_to:
                raise
            self._moved_chats[number] = error.moved_to
            while len(self._moved_chats) > MAX_MOVED:
                del self._moved_chats[next(iter(self._moved_chats))]
            return await call({**target, "chat_id": int(error.moved_to)})

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        with translate_errors():
            file = await self._bot.get_file(attachment.id)
        url = file.file_path or ""
        if not url.startswith(("http://", "https://")):
            raise RejectedError(
                "the Bot API server keeps its files to itself; run it without --local"
            )
        try:
            async with self._http.stream("GET", url) as reply:
                if reply.status_code >= 500:
                    raise DeliveryUnknownError(f"a file cannot be had: status {reply.status_code}")
                if reply.status_code != 200:
                    raise RejectedError(f"a file cannot be had: status {reply.status_code}")
                await save_response(reply, path)
        except httpx.ConnectError:
            raise RetryLaterError(RETRY_SECONDS, "files cannot be reached") from None
        except httpx.HTTPError as error:
            raise DeliveryUnknownError(f"a file broke off: {type(error).__name__}") from None

    async def upload(self, chat: Chat, path: Path, caption: str) -> str:
        await self._rate_limiter.wait_to_send()
        data = await asyncio.to_thread(path.read_bytes)
        if count_utf16_units(caption) > MAX_CAPTION:
            raise MessageTooLongError("a caption has 1024 characters at most")
        with translate_errors():
            if path.suffix.lower() in PHOTO_SUFFIXES and len(data) <= MAX_PHOTO:
                try:
                    return str((await self._send_photo(chat, path.name, data, caption)).message_id)
                except BotApiError as error:
                    if not isinstance(to_service_error(error), RejectedError):
                        raise
                    log.info("%s is sent as a file: %s", path.name, error)
            return str((await self._send_document(chat, path.name, data, caption)).message_id)

    async def _send_photo(
        self, chat: Chat, name: str, data: bytes, caption: str
    ) -> telegram.Message:
        return await self._call_in_chat(
            chat,
            lambda target: self._bot.send_photo(
                photo=data, filename=name, caption=caption or None, **target
            ),
        )

    async def _send_document(
        self, chat: Chat, name: str, data: bytes, caption: str
    ) -> telegram.Message:
        return await self._call_in_chat(
            chat,
            lambda target: self._bot.send_document(
                document=data, filename=name, caption=caption or None, **target
            ),
        )


async def send_text(
    call: Callable[[dict[str, Any]], Awaitable[T]], text: Markdown, *, is_literal: bool
) -> T:
    if not is_literal:
        return await send_markdown(call, text)
    # Telegram gets no markup to parse: an entity says what is monospaced.
    block = telegram.MessageEntity(telegram.MessageEntity.PRE, 0, count_utf16_units(text))
    return await call({"text": text, "entities": [block], "link_preview_options": NO_PREVIEW})


async def send_markdown(call: Callable[[dict[str, Any]], Awaitable[T]], text: Markdown) -> T:
    """Send a text with its markup; as plain text if Telegram cannot parse it."""
    plain: dict[str, Any] = {"link_preview_options": NO_PREVIEW, "text": render_plain(text)}
    if not plain["text"].strip():  # markup around nothing
        return await call({**plain, "text": text})
    try:
        return await call(
            {**plain, "text": render_markdown_v2(text), "parse_mode": ParseMode.MARKDOWN_V2}
        )
    except TelegramError as error:
        if not has_phrase(error, UNPARSED_PHRASE):
            raise
        log.warning("a message goes without its marks: %s", error)
    return await call(plain)


def build_reply_parameters(reply_to: str) -> dict[str, Any]:
    if not reply_to:
        return {}
    message = int(reply_to)
    return {"reply_parameters": telegram.ReplyParameters(message, allow_sending_without_reply=True)}


def build_keyboard(buttons: Sequence[Button]) -> telegram.InlineKeyboardMarkup | None:
    """Put short buttons side by side."""
    if not buttons:
        return None
    rows: list[list[telegram.InlineKeyboardButton]] = []
    room = 0
    for label, payload in buttons:
        if not rows or len(rows[-1]) == MAX_BUTTONS_IN_ROW or len(label) > room:
            rows.append([])
            room = MAX_ROW_LENGTH
        room -= len(label)
        rows[-1].append(telegram.InlineKeyboardButton(label, callback_data=payload))
    return telegram.InlineKeyboardMarkup(rows)


async def save_response(reply: httpx.Response, path: Path) -> None:
    size = 0
    with path.open("xb") as file:
        async for block in reply.aiter_bytes(BLOCK_SIZE):
            size += len(block)
            if size > MAX_DOWNLOAD:
                raise RejectedError("a file is larger than is taken")
            await asyncio.to_thread(file.write, block)


def count_utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
