"""A server that speaks the Bot API over real HTTP, for testing the gateway.

    async with run_bot_api() as api:
        api.add_message("hello", person="7")
        await api.wait_until(lambda: api.texts_in("7"))

It counts, parses and refuses as Telegram does. Injected faults happen once:
`api.inject_faults("sendMessage", TelegramFault(429, retry_after=1))`.
"""

import asyncio
import itertools
import json
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from apps.telegram.tests.markdown_v2_parser import (
    MarkdownEntity,
    MarkdownV2Error,
    parse_markdown_v2,
)

PATIENCE = 45
TOKEN = "4242:crab-and-shell"
ME = {"id": 4242, "is_bot": True, "first_name": "Crab", "username": "crab_bot"}
ENTITY_PATTERN = re.compile(r"(?<!\w)(?:@\w+|/\w+(?:@\w+)?)", re.ASCII)
AUTH_HEADER = "X-Telegram-Bot-Api-Secret-Token"


@dataclass(frozen=True)
class TelegramFault:
    """A status; 0 cuts the connection, before or after the request was carried out. `page` is
    a body that is no JSON."""

    status: int
    description: str = "as told"
    retry_after: int = 0
    is_done: bool = False
    moved_to: int = 0
    page: bool = False


@dataclass
class TelegramMessage:
    id: str
    chat: str
    text: str  # the visible text
    raw: str
    entities: list[MarkdownEntity] = field(default_factory=list)
    buttons: list[list[dict[str, str]]] = field(default_factory=list)
    reply_to: str = ""
    topic: str = ""
    file: tuple[str, str, bytes] | None = None  # photo or document, name, data
    history: list[str] = field(default_factory=list)

    def payload_of(self, label: str) -> str:
        return next(b["callback_data"] for row in self.buttons for b in row if label in b["text"])


class BotApiRefusalError(Exception):
    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters


class BotApiServer:
    def __init__(self) -> None:
        self.url = ""
        self.token = TOKEN
        self.pending: dict[int, dict[str, Any]] = {}
        self.messages: list[TelegramMessage] = []
        self.files: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.answered_presses: list[str] = []
        self.typing: list[str] = []
        self.offered: list[str] = []
        self.offered_in: dict[str, list[str]] = {}  # by chat
        self.blocked: set[str] = set()
        self.webhook: dict[str, Any] = {}
        self.listener = ""  # where a proxy would send requests for the webhook's address
        self.redelivers = False  # repeats updates, even confirmed ones
        self.is_away = False
        self.offsets: list[int] = []
        self._faults: dict[str, deque[TelegramFault]] = {}
        self._numbers = itertools.count(100)
        self.changed = asyncio.Event()

    # ── People ──────────────────────────────────────────────────────────────────────────────

    def add_message(
        self,
        text: str = "",
        person: str = "7",
        *,
        name: str = "Ann",
        chat: Mapping[str, Any] | None = None,
        update: int = 0,
        is_bot: bool = False,
        **more: Any,
    ) -> int:
        """Returns the id of the update. `more` has fields of the message in the Bot API."""
        number = update or next(self._numbers)
        message = {
            "message_id": number + 1_000_000,
            "date": int(time.time()),
            "chat": chat or {"id": int(person), "type": "private", "first_name": name},
            "from": {"id": int(person), "is_bot": is_bot, "first_name": name},
            **more,
        }
        if text:
            message["text"] = text
            message.setdefault("entities", find_entities(text))
        return self._add_update(number, {"message": message})

    def press_button(self, message: TelegramMessage, label: str, person: str = "7") -> int:
        return self.press_payload(message, message.payload_of(label), person)

    def press_payload(self, message: TelegramMessage, payload: str, person: str = "7") -> int:
        number = next(self._numbers)
        kind = "private" if not message.chat.startswith("-") else "supergroup"
        query = {
            "id": f"q{number}",
            "from": {"id": int(person), "is_bot": False, "first_name": "Ann"},
            "chat_instance": "1",
            "data": payload,
            "message": {
                "message_id": int(message.id),
                "date": int(time.time()),
                "chat": {"id": int(message.chat), "type": kind},
                "from": ME,
                "text": message.text,
            },
        }
        return self._add_update(number, {"callback_query": query})

    def add_file(self, name: str, data: bytes, person: str = "7", **more: Any) -> int:
        key = f"f{next(self._numbers)}"
        self.files[key] = data
        document = {
            "file_id": key,
            "file_unique_id": f"u{key}",
            "file_name": name,
            "file_size": len(data),
            "mime_type": "text/plain",
        }
        return self.add_message("", person, document=document, **more)

    def add_photo(self, data: bytes, person: str = "7", **more: Any) -> int:
        sizes = []
        for size in (90, 800):
            key = f"p{next(self._numbers)}"
            self.files[key] = data if size == 800 else b"small"
            sizes.append(
                {"file_id": key, "file_unique_id": f"u{size}", "width": size, "height": size}
            )
        return self.add_message("", person, photo=sizes, **more)

    def _add_update(self, number: int, update: dict[str, Any]) -> int:
        self.pending[number] = {"update_id": number, **update}
        self.changed.set()
        return number

    def messages_in(self, chat: str) -> list[TelegramMessage]:
        return [message for message in self.messages if message.chat == chat]

    def texts_in(self, chat: str = "7") -> list[str]:
        return [message.text for message in self.messages_in(chat)]

    def inject_faults(self, method: str, *faults: TelegramFault) -> None:
        self._faults.setdefault(method, deque()).extend(faults)

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                if not condition():
                    await self.changed.wait()

    # ── The service ─────────────────────────────────────────────────────────────────────────

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._handle_request(request)
        except BotApiRefusalError as error:
            body: dict[str, Any] = {
                "ok": False,
                "error_code": error.status,
                "description": error.description,
            }
            if error.parameters:
                body["parameters"] = error.parameters
            return web.json_response(body, status=error.status)
        finally:
            self.changed.set()

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path.startswith("/file/bot"):
            return self._file(path.removeprefix("/file/bot"))
        bot, _, method = path.removeprefix("/bot").rpartition("/")
        if bot != self.token:
            raise BotApiRefusalError(401, "Unauthorized")
        self.calls[method] += 1
        faults = self._faults.get(method)
        fault = faults.popleft() if faults else None
        if self.is_away:
            fault = TelegramFault(502, "Bad Gateway")
        result: Any = None
        if fault is None or fault.is_done:
            result = await self._call_method(method, await self._read_arguments(request))
        return (
            self._apply_fault(request, fault)
            if fault
            else web.json_response({"ok": True, "result": result})
        )

    def _apply_fault(self, request: web.Request, fault: TelegramFault) -> web.StreamResponse:
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault.page:
            return web.Response(status=fault.status, text="<html>Please log in.</html>")
        parameters = {}
        if fault.retry_after:
            parameters["retry_after"] = fault.retry_after
        if fault.moved_to:
            parameters["migrate_to_chat_id"] = fault.moved_to
        raise BotApiRefusalError(fault.status, fault.description, **parameters)

    async def _read_arguments(self, request: web.Request) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for key, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                arguments[key] = (value.filename, value.file.read())
            else:
                arguments[key] = value
        return arguments

    async def _call_method(self, method: str, arguments: dict[str, Any]) -> Any:
        match method:
            case "getMe":
                return ME
            case "getUpdates":
                return await self._updates(arguments)
            case "deleteWebhook":
                self.webhook = {}
                return True
            case "setWebhook":
                self.webhook = arguments
                return True
            case "setMyCommands":
                offered = [item["command"] for item in json.loads(arguments["commands"])]
                if "scope" in arguments:
                    self.offered_in[str(json.loads(arguments["scope"])["chat_id"])] = offered
                else:
                    self.offered = offered
                return True
            case "answerCallbackQuery":
                self.answered_presses.append(arguments["callback_query_id"])
                return True
            case "sendChatAction":
                self._check_blocked(arguments["chat_id"])
                self.typing.append(arguments["chat_id"])
                return True
            case "getFile":
                if arguments["file_id"] not in self.files:
                    raise BotApiRefusalError(400, "Bad Request: invalid file_id")
                path = f"documents/{arguments['file_id']}"
                return {"file_id": arguments["file_id"], "file_unique_id": "u", "file_path": path}
            case "sendMessage":
                return self._send(arguments)
            case "editMessageText":
                return self._edit(arguments)
            case "sendPhoto" | "sendDocument":
                return self._upload(method.removeprefix("send").lower(), arguments)
        raise BotApiRefusalError(404, "Not Found")

    async def _updates(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        if self.webhook:
            raise BotApiRefusalError(
                409, "Conflict: can't use getUpdates method while webhook is active"
            )
        offset = int(arguments.get("offset", 0))
        if offset:
            self.offsets.append(offset)
        repeated = [one for key, one in self.pending.items() if key < offset]
        for key in [key for key in self.pending if key < offset]:
            del self.pending[key]
        if self.redelivers and repeated:
            return repeated
        # Shorter than requested, so that no test waits for it at its end.
        deadline = time.monotonic() + min(float(arguments.get("timeout", 0)), 0.5)
        while True:
            found = [one for key, one in self.pending.items() if key >= offset]
            if found or time.monotonic() > deadline or self.webhook:
                return found[:100]
            await asyncio.sleep(0.01)

    def _file(self, path: str) -> web.StreamResponse:
        bot, _, name = path.partition("/documents/")
        fault = self._faults.get("file")
        if fault:
            one = fault.popleft()
            return web.Response(status=one.status)
        if bot != self.token or name not in self.files:
            return web.Response(status=404)
        return web.Response(body=self.files[name])

    def _check_blocked(self, chat: str) -> None:
        if chat in self.blocked:
            raise BotApiRefusalError(403, "Forbidden: bot was blocked by the user")

    def _parse_text(
        self, arguments: dict[str, Any], key: str = "text"
    ) -> tuple[str, list[MarkdownEntity]]:
        text: str = arguments.get(key, "")
        entities: list[MarkdownEntity] = []
        if arguments.get("parse_mode") == "MarkdownV2":
            try:
                text, entities = parse_markdown_v2(text)
            except MarkdownV2Error as error:
                raise BotApiRefusalError(
                    400, f"Bad Request: can't parse entities: {error}"
                ) from None
        if "entities" in arguments:
            entities = [read_entity(item, text) for item in json.loads(arguments["entities"])]
        text = text.strip()
        if key == "text" and not text:
            raise BotApiRefusalError(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > (4096 if key == "text" else 1024):
            raise BotApiRefusalError(400, "Bad Request: message is too long")
        return text, entities

    def _send(self, arguments: dict[str, Any]) -> dict[str, Any]:
        chat = arguments["chat_id"]
        self._check_blocked(chat)
        text, entities = self._parse_text(arguments)
        return self._add_bot_message(
            TelegramMessage(
                str(next(self._numbers)),
                chat,
                text,
                arguments["text"],
                entities,
                parse_buttons(arguments),
                str(json.loads(arguments.get("reply_parameters", "{}")).get("message_id", "")),
                arguments.get("message_thread_id", ""),
            )
        )

    def _upload(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        chat = arguments["chat_id"]
        self._check_blocked(chat)
        text, entities = self._parse_text(arguments, "caption")
        attached = arguments[kind]
        if isinstance(attached, str):  # attach://name
            attached = arguments[attached.removeprefix("attach://")]
        name, data = attached
        message = TelegramMessage(str(next(self._numbers)), chat, text, text, entities)
        message.file = (kind, name, data)
        return self._add_bot_message(message)

    def _edit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        chat = arguments["chat_id"]
        self._check_blocked(chat)
        text, entities = self._parse_text(arguments)
        message = next(
            (
                message
                for message in self.messages_in(chat)
                if message.id == arguments["message_id"]
            ),
            None,
        )
        if message is None:
            raise BotApiRefusalError(400, "Bad Request: message to edit not found")
        buttons = parse_buttons(arguments)
        if (message.text, message.entities, message.buttons) == (text, entities, buttons):
            raise BotApiRefusalError(
                400,
                "Bad Request: message is not modified: specified new message content and reply "
                "markup are exactly the same",
            )
        message.text, message.raw, message.entities = text, arguments["text"], entities
        message.buttons = buttons
        message.history.append(text)
        return self._to_json(message)

    def _add_bot_message(self, message: TelegramMessage) -> dict[str, Any]:
        message.history.append(message.text)
        self.messages.append(message)
        return self._to_json(message)

    def _to_json(self, message: TelegramMessage) -> dict[str, Any]:
        return {
            "message_id": int(message.id),
            "date": int(time.time()),
            "chat": {"id": int(message.chat), "type": "private"},
            "from": ME,
            "text": message.text,
        }

    # ── The webhook ─────────────────────────────────────────────────────────────────────────

    async def deliver_to_webhook(self, secret: str | None = None, data: bytes | None = None) -> int:
        """Deliver the oldest pending update, as Telegram would. Returns the answer's status."""
        number = next(iter(self.pending), 0)
        body = data if data is not None else json.dumps(self.pending[number]).encode()
        headers = {AUTH_HEADER: self.webhook["secret_token"] if secret is None else secret}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.listener}/hook", data=body, headers=headers) as reply,
        ):
            if reply.status == 200 and data is None:
                self.pending.pop(number, None)
            return reply.status


def read_entity(arguments: Mapping[str, Any], text: str) -> MarkdownEntity:
    """Read an entity. Its offset and length count UTF-16 units."""
    start, end = 2 * arguments["offset"], 2 * (arguments["offset"] + arguments["length"])
    units = text.encode("utf-16-le")
    if not 0 <= start < end <= len(units):
        raise BotApiRefusalError(400, "Bad Request: entity is outside of the text")
    return MarkdownEntity(arguments["type"], units[start:end].decode("utf-16-le"))


def parse_buttons(arguments: dict[str, Any]) -> list[list[dict[str, str]]]:
    found = json.loads(arguments.get("reply_markup", "{}")).get("inline_keyboard", [])
    assert all(len(cell["callback_data"].encode()) <= 64 for row in found for cell in row)
    return [[dict(cell) for cell in row] for row in found]


def find_entities(text: str) -> Sequence[dict[str, Any]]:
    """Find mentions and commands, as Telegram does."""
    return [
        {
            "type": "mention" if match[0][0] == "@" else "bot_command",
            "offset": len(text[: match.start()].encode("utf-16-le")) // 2,
            "length": len(match[0]),
        }
        for match in ENTITY_PATTERN.finditer(text)
    ]


@asynccontextmanager
async def run_bot_api() -> AsyncIterator[BotApiServer]:
    api = BotApiServer()
    app = web.Application(client_max_size=2**27)
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
