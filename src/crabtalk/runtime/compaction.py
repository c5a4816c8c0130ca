"""Compaction: a history folded into a summary that can stand in its place."""

import re
from collections.abc import Sequence

from crabtalk.model import ApiError, ErrorKind, Provider
from crabtalk.model.messages import Message, Request
from crabtalk.storage import Agent

from .model_request import tag_guest_message

TITLE_LENGTH = 60
FIRST_SENTENCE = re.compile(r"[^\n]*?(?:[.!?…](?=\s|$)|[。\uff01\uff1f])|[^\n]+")
TRUNCATED = "... [truncated]"
# Characters of a transcript that is not taken apart any further.
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
    """A transcript in short. One that is longer than the model can read is read in parts: the
    summary of the first half, and then of that and the second.

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
    # Of what is not shorter than what it stands for, there would be no end.
    said = truncate_bytes(first, middle // 2)
    return await summarize_text(
        provider, agent, f"{SUMMARY_PREFIX}{said}\n\n{text[middle:]}", model
    )


def find_middle(text: str) -> int:
    """Between two lines, or at least two words, where there are any nearby."""
    half = len(text) // 2
    for divide in "\n ":
        if (at := text.rfind(divide, half // 2, half)) >= 0:
            return at + 1
    return half


def render_transcript(history: Sequence[Message], agent: Agent) -> str:
    return "\n\n".join(
        filter(None, (indent_continuation(render_message(m, agent)) for m in history))
    )


def make_summary_request(agent: Agent, text: str, model: str) -> Request:
    """As text rather than as messages: every provider takes it, whatever calls are in it."""
    parts: list[str] = []
    if agent.prompt:
        parts.append(f"The agent's own instructions, so that you know who it is:\n\n{agent.prompt}")
    parts.append(f"The conversation to compact:\n\n{text}")
    parts.append("Write the summary now.")
    said = (Message("system", PROMPT), Message("user", "\n\n---\n\n".join(parts)))
    return Request(model=model, messages=said)


def render_message(message: Message, agent: Agent) -> str:
    """One message as it reads in the transcript."""
    pictures = ["[an image]"] * len(message.images)
    if message.role == "tool":
        output = truncate_bytes(message.text, agent.compact_tool_max_len)
        return "\n".join([f"[result of {message.name or 'a tool'}]", output, *pictures])
    calls = [f"[calls {call.name} with {call.arguments}]" for call in message.tool_calls]
    text = tag_guest_message(message).text
    body = "\n".join([*filter(None, [text]), *pictures, *calls])
    return f"{message.role}: {body}" if body else ""


def indent_continuation(text: str) -> str:
    """All but the first line, so that nobody's words can be taken for the start of another's."""
    return "\n  ".join(text.splitlines())


def truncate_bytes(text: str, limit: int) -> str:
    """At most `limit` bytes, cut between characters."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[:limit].decode(errors="ignore") + TRUNCATED


def make_title(summary: str) -> str:
    """Its first sentence, in a line."""
    found = FIRST_SENTENCE.match(summary.strip())
    sentence = found.group().strip() if found else ""
    if len(sentence) <= TITLE_LENGTH:
        return sentence
    return sentence[: TITLE_LENGTH - 1].rstrip() + "…"


def next_archive_name(base: str, last: str) -> str:
    """Archives of a conversation are numbered from 1."""
    number = last.removeprefix(f"{base}-")
    return f"{base}-{int(number) + 1 if number.isdecimal() else 1}"
