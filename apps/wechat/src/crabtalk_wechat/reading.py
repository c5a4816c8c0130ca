"""Reading: a message of iLink as a gateway knows it. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from crabtalk.component.gateway import Attachment, Chat, Person, Update

OF_PERSON = 1
# What stands alone: a command, and numbers that answer a question.
ALONE = re.compile(r"/.*|[\d\s,，、]+", re.DOTALL)  # noqa: RUF001
MOST_QUOTE = 500

Raw = Mapping[str, Any]


class Kind(IntEnum):
    """Of what a message consists of."""

    TEXT = 1
    PICTURE = 2
    VOICE = 3
    FILE = 4
    VIDEO = 5


def read(message: Raw) -> Update | None:
    """None for what nobody says to us: our own words, and what comes from groups."""
    person = text_in(message, "from_user_id")
    if message.get("message_type") != OF_PERSON or not person or message.get("group_id"):
        return None
    items = items_of(message)
    return Update(
        id_of(message),
        Chat(person),
        Person(person, person),
        words_of(items),
        tuple(attachments(items)),
        message_id=str(message.get("message_id") or ""),
        at=number_in(message, "create_time_ms") / 1000,
    )


def id_of(message: Raw) -> str:
    """As WeChat has it; else what can be told of the message itself."""
    if number := message.get("message_id"):
        return str(number)
    person = text_in(message, "from_user_id")
    if client := text_in(message, "client_id"):
        return f"{person}/{client}"
    shown = json.dumps(
        [person, message.get("create_time_ms"), message.get("item_list")], sort_keys=True
    )
    return digest(shown)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def items_of(message: Raw) -> list[Raw]:
    found = message.get("item_list")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


# ── Words ──────────────────────────────────────────────────────────────────────────────────────


def words_of(items: list[Raw]) -> str:
    words = "\n".join(filter(None, map(words_in, items))).strip()
    quotes = [quote for item in items if (quote := quoted(part(item, "ref_msg")))]
    if not quotes or ALONE.fullmatch(words):
        return words
    return "\n\n".join(filter(None, (*quotes, words)))


def words_in(item: Raw) -> str:
    """Spoken ones as WeChat understood them."""
    match item.get("type"):
        case Kind.TEXT:
            return text_in(part(item, "text_item"), "text")
        case Kind.VOICE:
            return text_in(part(item, "voice_item"), "text")
    return ""


def quoted(reference: Raw) -> str:
    inside = text_in(part(part(reference, "message_item"), "text_item"), "text")
    words = (inside or text_in(reference, "title")).strip()[:MOST_QUOTE]
    return "\n".join(f"> {line}" for line in words.splitlines())


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


def attachments(items: list[Raw]) -> Iterator[Attachment]:
    for number, item in enumerate(items, 1):
        match item.get("type"):
            case Kind.PICTURE:
                picture = part(item, "image_item")
                found = picture, f"photo-{number}.jpg", "image/jpeg", text_in(picture, "aeskey")
            case Kind.VOICE if not words_in(item):
                found = part(item, "voice_item"), f"voice-{number}.silk", "audio/silk", ""
            case Kind.FILE:
                file = part(item, "file_item")
                name = text_in(file, "file_name") or f"file-{number}"
                found = file, name, "application/octet-stream", ""
            case Kind.VIDEO:
                found = part(item, "video_item"), f"video-{number}.mp4", "video/mp4", ""
            case _:
                continue
        if made := attachment(*found):
            yield made


def attachment(item: Raw, name: str, kind: str, key: str) -> Attachment | None:
    media = part(item, "media")
    where, key = text_in(media, "encrypt_query_param"), key or text_in(media, "aes_key")
    if not where:
        return None
    size = text_in(item, "len")
    is_size = size.isdecimal() and len(size) < 16
    return Attachment(json.dumps([where, key]), name, int(size) if is_size else 0, kind)


# ── Whatever it is ─────────────────────────────────────────────────────────────────────────────


def part(item: Raw, key: str) -> Raw:
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def text_in(item: Raw, key: str) -> str:
    found = item.get(key)
    return found if isinstance(found, str) else ""


def number_in(item: Raw, key: str) -> float:
    found = item.get(key)
    return float(found) if isinstance(found, int | float) and abs(found) < 1e15 else 0.0
