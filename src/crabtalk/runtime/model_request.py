"""The messages of a model request: prompt, history with tags, and framing.

Framing is built again for each run and inserted right before the user's last message. It is never
part of the history, so it cannot pile up or reach the disk.
"""

import re
from collections.abc import Sequence

import msgspec

from crabtalk.model.messages import Message, Request

# As lenient as a model that reads them: white space inside a tag must not bypass the escaping.
FROM_TAG = re.compile(r"<(?=\s*+/?\s*+from\b)", re.IGNORECASE)
INSTRUCTIONS_TAG = re.compile(r"<(?=\s*+/?\s*+instructions\b)", re.IGNORECASE)
# The characters `html.escape` replaces. Importing html would load its table of 2,231 entities.
MARKUP = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
MARKUP_AND_QUOTES = {**MARKUP, ord('"'): "&quot;", ord("'"): "&#x27;"}
# Only messages that crabtalk itself adds may begin with such a tag.
LEADING_TAG = re.compile(r"\s*+<(?=\s*+/?\s*+(?:from|instructions)\b)", re.IGNORECASE)

IMAGE_OMITTED = "(the image itself is left out: this model does not take it)"
PRIMARY_NOTICE = (
    "Other agents have joined this conversation as guests. A message inside "
    '<from agent="NAME">…</from> was written by the guest of that name, not by you. '
    "Go on answering as yourself, without such tags."
)
GUEST_NOTICE = (
    "You are joining this conversation as a guest. It belongs to the agent {primary}, whose "
    'messages carry no tag. A message inside <from agent="NAME">…</from> was written by the agent '
    "of that name; those with your own name, {guest}, are yours. You have no tools here. Answer "
    "the last message as yourself, without such tags."
)


def build_framing(
    history: Sequence[Message], instructions: str, *, primary: str, guest: str = ""
) -> list[Message]:
    """The messages to insert before the user's last message."""
    injected: list[Message] = []
    if instructions:
        escaped = INSTRUCTIONS_TAG.sub("&lt;", instructions)
        injected.append(Message("user", f"<instructions>\n{escaped}\n</instructions>"))
    if guest:
        injected.append(
            Message(
                "user",
                GUEST_NOTICE.format(primary=escape_markup(primary), guest=escape_markup(guest)),
            )
        )
    elif any(message.agent for message in history):
        injected.append(Message("user", PRIMARY_NOTICE))
    return injected


def build_messages(
    prompt: str, history: Sequence[Message], injected: Sequence[Message], at: int
) -> tuple[Message, ...]:
    """The request's messages: prompt, history before `at`, framing, the rest."""
    system = [Message("system", prompt)] if prompt else []
    before = [tag_guest_message(message) for message in history[:at]]
    after = [tag_guest_message(message) for message in history[at:]]
    return (*system, *before, *injected, *after)


def has_tool_images(request: Request) -> bool:
    return any(message.images for message in request.messages if message.role == "tool")


def drop_tool_images(request: Request) -> Request:
    """Replaces images in tool results by a notice, for a model that does not take them."""
    return msgspec.structs.replace(
        request,
        messages=tuple(
            msgspec.structs.replace(message, text=f"{message.text}\n{IMAGE_OMITTED}", images=())
            if message.role == "tool" and message.images
            else message
            for message in request.messages
        ),
    )


def tag_guest_message(message: Message) -> Message:
    """Wraps a guest's message in a tag with its name. Other messages stay as they are, except that
    a leading tag like those of `build_framing` is escaped.

    A guest's text cannot close its own tag or open another one.
    """
    if not message.agent or message.role != "assistant":
        return message if message.role == "tool" else escape_leading_tag(message)
    escaped = FROM_TAG.sub("&lt;", message.text)
    agent = escape_markup(message.agent)
    return Message("assistant", f'<from agent="{agent}">\n{escaped}\n</from>')


def escape_leading_tag(message: Message) -> Message:
    """Only a leading tag could mislead the model; further on, people may write about such tags."""
    match = LEADING_TAG.match(message.text)
    if match is None:
        return message
    before, after = message.text[: match.end() - 1], message.text[match.end() :]
    return msgspec.structs.replace(message, text=f"{before}&lt;{after}")


def escape_markup(text: str, *, quotes: bool = True) -> str:
    """Escapes characters that could open or end a tag, and with `quotes` those that could end an
    attribute."""
    return text.translate(MARKUP_AND_QUOTES if quotes else MARKUP)
