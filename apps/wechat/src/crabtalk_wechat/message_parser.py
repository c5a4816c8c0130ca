"""Parses a message of iLink into an Update of the gateway. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from crabtalk.gateway import Attachment, Chat, Person, Update

PERSON_MESSAGE = 1
# Sent without the quoted message: a command, and numbers that answer a question.
STANDALONE_PATTERN = re.compile(r"/.*|[\d\s,，、]+", re.DOTALL)  # noqa: RUF001
MAX_QUOTE = 500

RawItem = Mapping[str, Any]


class ItemKind(IntEnum):
    """The kinds of items in a message."""

    TEXT = 1
    PICTURE = 2
    VOICE = 3
    FILE = 4
    VIDEO = 5


def parse_message(message: RawItem) -> Update | None:
    """None for messages that are not for us: our own, and messages of groups."""
    person = get_text(message, "from_user_id")
    if message.get("message_type") != PERSON_MESSAGE or not person or message.get("group_id"):
        return None
    items = get_items(message)
    return Update(
        make_message_id(message),
        Chat(person),
        Person(person, person),
        extract_text(items),
        tuple(iterate_attachments(items)),
        message_id=str(message.get("message_id") or ""),
        at=get_number(message, "create_time_ms") / 1000,
    )


def make_message_id(message: RawItem) -> str:
    """WeChat's id if there is one; else an id made of the message's content."""
    if number := message.get("message_id"):
        return str(number)
    person = get_text(message, "from_user_id")
    if client := get_text(message, "client_id"):
        return f"{person}/{client}"
    content = json.dumps(
        [person, message.get("create_time_ms"), message.get("item_list")], sort_keys=True
    )
    return hash_text(content)


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def get_items(message: RawItem) -> list[RawItem]:
    items = message.get("item_list")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


# ── Text ───────────────────────────────────────────────────────────────────────────────────────


def extract_text(items: list[RawItem]) -> str:
    text = "\n".join(filter(None, map(extract_item_text, items))).strip()
    quotes = [quote for item in items if (quote := render_quote(get_part(item, "ref_msg")))]
    if not quotes or STANDALONE_PATTERN.fullmatch(text):
        return text
    return "\n\n".join(filter(None, (*quotes, text)))


def extract_item_text(item: RawItem) -> str:
    """The text of an item; for a voice item, WeChat's transcript."""
    match item.get("type"):
        case ItemKind.TEXT:
            return get_text(get_part(item, "text_item"), "text")
        case ItemKind.VOICE:
            return get_text(get_part(item, "voice_item"), "text")
    return ""


def render_quote(reference: RawItem) -> str:
    quoted = get_text(get_part(get_part(reference, "message_item"), "text_item"), "text")
    text = (quoted or get_text(reference, "title")).strip()[:MAX_QUOTE]
    return "\n".join(f"> {line}" for line in text.splitlines())


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


def iterate_attachments(items: list[RawItem]) -> Iterator[Attachment]:
    for number, item in enumerate(items, 1):
        match item.get("type"):
            case ItemKind.PICTURE:
                picture = get_part(item, "image_item")
                parts = picture, f"photo-{number}.jpg", "image/jpeg", get_text(picture, "aeskey")
            case ItemKind.VOICE if not extract_item_text(item):
                parts = get_part(item, "voice_item"), f"voice-{number}.silk", "audio/silk", ""
            case ItemKind.FILE:
                file = get_part(item, "file_item")
                name = get_text(file, "file_name") or f"file-{number}"
                parts = file, name, "application/octet-stream", ""
            case ItemKind.VIDEO:
                parts = get_part(item, "video_item"), f"video-{number}.mp4", "video/mp4", ""
            case _:
                continue
        if attachment := make_attachment(*parts):
            yield attachment


def make_attachment(item: RawItem, name: str, kind: str, key: str) -> Attachment | None:
    media = get_part(item, "media")
    location, key = get_text(media, "encrypt_query_param"), key or get_text(media, "aes_key")
    if not location:
        return None
    size = get_text(item, "len")
    is_size = size.isdecimal() and len(size) < 16
    return Attachment(json.dumps([location, key]), name, int(size) if is_size else 0, kind)


# ── Typed access ───────────────────────────────────────────────────────────────────────────────


def get_part(item: RawItem, key: str) -> RawItem:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def get_text(item: RawItem, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def get_number(item: RawItem, key: str) -> float:
    value = item.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else 0.0
