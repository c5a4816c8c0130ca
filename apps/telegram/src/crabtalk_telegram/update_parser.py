"""Parses an update of the Bot API into an Update of the gateway. Pure."""

import re
from collections.abc import Iterator

import telegram
from telegram.constants import ChatType, MessageEntityType

from crabtalk.gateway import Attachment, Chat, Person, Update

PRIVATE_CHAT = ChatType.PRIVATE
GROUP_CHATS = (ChatType.GROUP, ChatType.SUPERGROUP)
# Separates a chat's id from a topic's id.
TOPIC_SEPARATOR = "/"
MENTION_TYPES = (MessageEntityType.MENTION, MessageEntityType.TEXT_MENTION)


def parse_update(update: telegram.Update, me: telegram.User) -> Update | None:
    """None for updates without a person: from bots, channels and the service itself."""
    if update.callback_query is not None:
        return parse_press(update.update_id, update.callback_query)
    message = update.message
    if message is None or message.from_user is None or message.from_user.is_bot:
        return None
    chat = make_chat(message)
    if chat is None:
        return None
    return Update(
        str(update.update_id),
        chat,
        make_person(message.from_user),
        extract_text(message, me),
        tuple(iterate_attachments(message)),
        is_to_us=not chat.is_group or is_addressed_to(message, me),
        message_id=str(message.message_id),
        at=message.date.timestamp(),
    )


def parse_press(number: int, query: telegram.CallbackQuery) -> Update | None:
    message = query.message
    if message is None or not query.data or query.from_user.is_bot:
        return None
    chat = make_chat(message)
    if chat is None:
        return None
    return Update(
        str(number),
        chat,
        make_person(query.from_user),
        press=query.data,
        message_id=str(message.message_id),
    )


def make_chat(message: telegram.MaybeInaccessibleMessage) -> Chat | None:
    """The chat of a message. A topic of a forum is a chat of its own."""
    chat = message.chat
    if chat.type == PRIVATE_CHAT:
        return Chat(str(chat.id))
    if chat.type not in GROUP_CHATS:
        return None
    is_topic = isinstance(message, telegram.Message) and message.is_topic_message
    topic = f"{TOPIC_SEPARATOR}{message.message_thread_id}" if is_topic else ""  # type: ignore[attr-defined]
    return Chat(f"{chat.id}{topic}", is_group=True, title=chat.title or "")


def make_person(user: telegram.User) -> Person:
    return Person(str(user.id), user.full_name)


# ── In groups ──────────────────────────────────────────────────────────────────────────────────


def is_addressed_to(message: telegram.Message, me: telegram.User) -> bool:
    """Whether it mentions us, replies to us, or is a command that is not for another bot."""
    text = message.text or message.caption or ""
    if text.startswith("/"):
        _, at, name = text.split(maxsplit=1)[0].partition("@")
        return not at or name.lower() == (me.username or "").lower()
    replied = message.reply_to_message
    if replied is not None and replied.from_user is not None and replied.from_user.id == me.id:
        return True
    return any(
        mention.lower() == f"@{me.username}".lower()
        or (entity.user is not None and entity.user.id == me.id)
        for entity, mention in iterate_mentions(message)
    )


def iterate_mentions(message: telegram.Message) -> Iterator[tuple[telegram.MessageEntity, str]]:
    of_text, of_caption = message.parse_entities, message.parse_caption_entities
    mentions = of_text(list(MENTION_TYPES)) if message.text else of_caption(list(MENTION_TYPES))
    yield from mentions.items()


def extract_text(message: telegram.Message, me: telegram.User) -> str:
    """The message without our name."""
    text = message.text or message.caption or describe_content(message)
    if message.chat.type == PRIVATE_CHAT or not me.username:
        return text
    ours = re.compile(rf"(?<![\w/])@{re.escape(me.username)}(?!\w)[ \t]*", re.IGNORECASE)
    return ours.sub("", text).strip()


def describe_content(message: telegram.Message) -> str:
    """The content of a message without text, in words."""
    if message.sticker is not None:
        return message.sticker.emoji or ""
    if message.location is not None:
        return f"Location: {message.location.latitude}, {message.location.longitude}"
    if message.contact is not None:
        contact = message.contact
        name = " ".join(filter(None, (contact.first_name, contact.last_name)))
        return f"Contact: {name}, {contact.phone_number}"
    return ""


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


def iterate_attachments(message: telegram.Message) -> Iterator[Attachment]:
    if message.photo:  # the same photo in several sizes
        photo = max(message.photo, key=lambda size: size.width * size.height)
        yield make_attachment(photo, "photo", "image/jpeg", ".jpg")
    if message.animation is not None:  # Telegram sends it as a document as well
        yield make_attachment(message.animation, "animation", "video/mp4", ".mp4")
    elif message.document is not None:
        yield make_attachment(message.document, "document", "application/octet-stream", "")
    if message.video is not None:
        yield make_attachment(message.video, "video", "video/mp4", ".mp4")
    if message.video_note is not None:
        yield make_attachment(message.video_note, "video", "video/mp4", ".mp4")
    if message.audio is not None:
        yield make_attachment(message.audio, "audio", "audio/mpeg", ".mp3")
    if message.voice is not None:
        yield make_attachment(message.voice, "voice", "audio/ogg", ".ogg")


def make_attachment(
    file: telegram.PhotoSize
    | telegram.Animation
    | telegram.Document
    | telegram.Video
    | telegram.VideoNote
    | telegram.Audio
    | telegram.Voice,
    fallback_name: str,
    kind: str,
    suffix: str,
) -> Attachment:
    return Attachment(
        file.file_id,
        getattr(file, "file_name", None) or f"{fallback_name}-{file.file_unique_id}{suffix}",
        file.file_size or 0,
        getattr(file, "mime_type", None) or kind,
    )
