"""Reading: a message of iLink as a gateway knows it. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from crabtalk.gateway import Attachment, Chat, Person, Update

PERSON_MESSAGE = 1
# What stands alone: a command, and numbers that answer a question.
STANDALONE_PATTERN = re.compile(r"/.*|[\d\s,，、]+", re.DOTALL)  # noqa: RUF001
MAX_QUOTE = 500

RawItem = Mapping[str, Any]


class ItemKind(IntEnum):
    """Of what a message consists of."""

    TEXT = 1
    PICTURE = 2
    VOICE = 3
    FILE = 4
    VIDEO = 5


def parse_message(message: RawItem) -> Update | None:
    """None for what nobody says to us: our own words, and what comes from groups."""
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
    """As WeChat has it; else what can be told of the message itself."""
    if number := message.get("message_id"):
        return str(number)
    person = get_text(message, "from_user_id")
    if client := get_text(message, "client_id"):
        return f"{person}/{client}"
    shown = json.dumps(
        [person, message.get("create_time_ms"), message.get("item_list")], sort_keys=True
    )
    return hash_text(shown)


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def get_items(message: RawItem) -> list[RawItem]:
    found = message.get("item_list")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


# ── Words ──────────────────────────────────────────────────────────────────────────────────────


def extract_text(items: list[RawItem]) -> str:
    words = "\n".join(filter(None, map(extract_item_text, items))).strip()
    quotes = [quote for item in items if (quote := render_quote(get_part(item, "ref_msg")))]
    if not quotes or STANDALONE_PATTERN.fullmatch(words):
        return words
    return "\n\n".join(filter(None, (*quotes, words)))


def extract_item_text(item: RawItem) -> str:
    """Spoken ones as WeChat understood them."""
    match item.get("type"):
        case ItemKind.TEXT:
            return get_text(get_part(item, "text_item"), "text")
        case ItemKind.VOICE:
            return get_text(get_part(item, "voice_item"), "text")
    return ""


def render_quote(reference: RawItem) -> str:
    inside = get_text(get_part(get_part(reference, "message_item"), "text_item"), "text")
    words = (inside or get_text(reference, "title")).strip()[:MAX_QUOTE]
    return "\n".join(f"> {line}" for line in words.splitlines())


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


def iterate_attachments(items: list[RawItem]) -> Iterator[Attachment]:
    for number, item in enumerate(items, 1):
        match item.get("type"):
            case ItemKind.PICTURE:
                picture = get_part(item, "image_item")
                found = picture, f"photo-{number}.jpg", "image/jpeg", get_text(picture, "aeskey")
            case ItemKind.VOICE if not extract_item_text(item):
                found = get_part(item, "voice_item"), f"voice-{number}.silk", "audio/silk", ""
            case ItemKind.FILE:
                file = get_part(item, "file_item")
                name = get_text(file, "file_name") or f"file-{number}"
                found = file, name, "application/octet-stream", ""
            case ItemKind.VIDEO:
                found = get_part(item, "video_item"), f"video-{number}.mp4", "video/mp4", ""
            case _:
                continue
        if made := make_attachment(*found):
            yield made


def make_attachment(item: RawItem, name: str, kind: str, key: str) -> Attachment | None:
    media = get_part(item, "media")
    where, key = get_text(media, "encrypt_query_param"), key or get_text(media, "aes_key")
    if not where:
        return None
    size = get_text(item, "len")
    is_size = size.isdecimal() and len(size) < 16
    return Attachment(json.dumps([where, key]), name, int(size) if is_size else 0, kind)


# ── Whatever it is ─────────────────────────────────────────────────────────────────────────────


def get_part(item: RawItem, key: str) -> RawItem:
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def get_text(item: RawItem, key: str) -> str:
    found = item.get(key)
    return found if isinstance(found, str) else ""


def get_number(item: RawItem, key: str) -> float:
    found = item.get(key)
    return float(found) if isinstance(found, int | float) and abs(found) < 1e15 else 0.0
