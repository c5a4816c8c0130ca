"""Told: what the messages of a conversation say about one turn. Pure.

For turns that nobody watched: the gateway, or the daemon, was away when they went on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from crabtalk.protocol import wire

Message = wire.ConversationMessage
SEND_FILE = "send_file"
# What results of calls begin with that failed: messages say it in no other way.
FAILURES = ("interrupted:", "invalid arguments:", "permission denied:", "tool not available:")


@dataclass(frozen=True, slots=True)
class Told:
    """`was_said` is whether the conversation has the turn at all."""

    was_said: bool
    text: str = ""
    is_complete: bool = False
    files: tuple[tuple[str, str], ...] = ()  # call and path


def told(messages: Sequence[Message]) -> Told:
    """Of the turn that these, from its offset on, are all about."""
    start = next((n for n, message in enumerate(messages) if message.role == "user"), None)
    if start is None:
        return Told(was_said=False)
    turn = messages[start + 1 :]
    texts = [m.content for m in turn if m.role == "assistant" and m.content.strip()]
    last = turn[-1] if turn else None
    is_complete = last is not None and last.role == "assistant" and not last.tool_calls
    results = {m.call_id: m.content for m in turn if m.role == "tool"}
    files = tuple(
        (call.id, path_in(call.arguments))
        for message in turn
        for call in message.tool_calls
        if is_send_file(call.name) and is_success(results.get(call.id))
    )
    return Told(True, "\n\n".join(texts), is_complete, files)


def times_said(messages: Sequence[Message], text: str) -> int:
    """How often something was said into the turn that these are all about."""
    said = [message.content for message in messages if message.role == "user"]
    return said[1:].count(text)


def is_send_file(name: str) -> bool:
    """Also as a tool of a server is called: `server__send_file`."""
    return name == SEND_FILE or name.endswith(f"__{SEND_FILE}")


def is_success(result: str | None) -> bool:
    return result is not None and not result.startswith(FAILURES)


def path_in(arguments: str) -> str:
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return ""
    path = found.get("path") if isinstance(found, dict) else None
    return path if isinstance(path, str) else ""
