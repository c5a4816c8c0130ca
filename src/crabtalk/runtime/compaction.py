"""Compaction: the text side of it. Transcripts, the prompt for the summary, and archive names.

Storing the archive is the business of `compaction_run` and `conversation`.
"""

import re
from collections.abc import Sequence

from crabtalk.model import ApiError, ErrorKind, Provider
from crabtalk.model.messages import Message, Request
from crabtalk.storage import Agent

from .model_request import tag_guest_message

TITLE_LENGTH = 60
FIRST_SENTENCE = re.compile(r"[^\n]*?(?:[.!?…](?=\s|$)|[。\uff01\uff1f])|[^\n]+")
TRUNCATED = "... [truncated]"
# A transcript of fewer characters is not split any further.
MIN_SPLIT_LENGTH = 2000
SUMMARY_PREFIX = "A summary of what was said before: "

PROMPT = """\
You compact conversations. Write a summary that takes the place of the one you are shown: the \
agent will go on from your text alone and will not see the messages again.

Keep: who the user is and what they want; decisions, and the reasons for them; facts, names, \
numbers, paths and identifiers exactly as they were; what was done, what failed, what is still \
open; constraints and preferences; results of tools that still matter; who said what, where \
several agents spoke. Leave out greetings, repetition, and what was replaced by something later.

Write dense, plain prose in the language of the conversation. Begin with one short sentence that \
names the subject. Write nothing but the summary."""


async def summarize_text(provider: Provider, agent: Agent, text: str, model: str) -> str:
    """Summarizes a transcript. When it exceeds the model's context, the first half is summarized,
    then that summary together with the second half.

    Raises ApiError.
    """
    try:
        response = await provider.complete(make_summary_request(agent, text, model))
        return response.message.text.strip()
    except ApiError as error:
        if error.kind is not ErrorKind.CONTEXT or len(text) < MIN_SPLIT_LENGTH:
            raise
    middle = find_middle(text)
    first = await summarize_text(provider, agent, text[:middle], model)
    # The summary must be shorter than its half, or the recursion would not end.
    summary = truncate_bytes(first, middle // 2)
    return await summarize_text(
        provider, agent, f"{SUMMARY_PREFIX}{summary}\n\n{text[middle:]}", model
    )


def find_middle(text: str) -> int:
    """An index near the middle: after a line feed or a space if there is one, else the half."""
    half = len(text) // 2
    for separator in "\n ":
        if (at := text.rfind(separator, half // 2, half)) >= 0:
            return at + 1
    return half


def render_transcript(history: Sequence[Message], agent: Agent) -> str:
    return "\n\n".join(
        filter(None, (indent_continuation(render_message(m, agent)) for m in history))
    )


def make_summary_request(agent: Agent, text: str, model: str) -> Request:
    """The transcript goes in as text rather than as messages, because every provider takes text,
    whatever tool calls it mentions."""
    parts: list[str] = []
    if agent.prompt:
        parts.append(f"The agent's own instructions, so that you know who it is:\n\n{agent.prompt}")
    parts.append(f"The conversation to compact:\n\n{text}")
    parts.append("Write the summary now.")
    messages = (Message("system", PROMPT), Message("user", "\n\n---\n\n".join(parts)))
    return Request(model=model, messages=messages)


def render_message(message: Message, agent: Agent) -> str:
    images = ["[an image]"] * len(message.images)
    if message.role == "tool":
        output = truncate_bytes(message.text, agent.compact_tool_max_len)
        return "\n".join([f"[result of {message.name or 'a tool'}]", output, *images])
    calls = [f"[calls {call.name} with {call.arguments}]" for call in message.tool_calls]
    text = tag_guest_message(message).text
    body = "\n".join([*filter(None, [text]), *images, *calls])
    return f"{message.role}: {body}" if body else ""


def indent_continuation(text: str) -> str:
    """Indents all but the first line, so that no text looks like the start of another message."""
    return "\n  ".join(text.splitlines())


def truncate_bytes(text: str, limit: int) -> str:
    """Shortens a text to `limit` bytes without splitting a character."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[:limit].decode(errors="ignore") + TRUNCATED


def make_title(summary: str) -> str:
    """The first sentence of the summary, on one line."""
    match = FIRST_SENTENCE.match(summary.strip())
    sentence = match.group().strip() if match else ""
    if len(sentence) <= TITLE_LENGTH:
        return sentence
    return sentence[: TITLE_LENGTH - 1].rstrip() + "…"


def next_archive_name(base: str, last: str) -> str:
    """The archives of a conversation are numbered from 1."""
    number = last.removeprefix(f"{base}-")
    return f"{base}-{int(number) + 1 if number.isdecimal() else 1}"
