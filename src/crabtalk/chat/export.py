"""Export a conversation as a file for people (md, html) or programs (json).

Exporters write in pieces, so that a long conversation need not be in memory: `begin`, `add` for
each page, `end`. Messages are escaped: the HTML has no script and no markup but ours.
"""

import html
import re
from collections.abc import Iterable
from typing import Any, Literal, Protocol

from crabtalk.cli.times import format_local_time
from crabtalk.protocol import wire
from crabtalk.service.command_line import escape_controls, format_json_line, to_one_line

ExportFormat = Literal["md", "json", "html"]
# By the suffix of the file.
FORMATS: dict[str, ExportFormat] = {".md": "md", ".json": "json", ".html": "html"}


class ConversationExporter(Protocol):
    """Writes the pieces of a file, in order."""

    def begin(self) -> str: ...

    def add(self, messages: Iterable[wire.ConversationMessage]) -> str: ...

    def end(self) -> str: ...


def create_exporter(
    file_format: ExportFormat, *, agent: str, sender: str, title: str = ""
) -> ConversationExporter:
    exporters: dict[ExportFormat, type[MarkdownExporter | JsonExporter | HtmlExporter]] = {
        "md": MarkdownExporter,
        "json": JsonExporter,
        "html": HtmlExporter,
    }
    return exporters[file_format](agent, sender or "user", title)


def export_messages(
    messages: Iterable[wire.ConversationMessage],
    *,
    title: str,
    agent: str,
    sender: str,
    kind: ExportFormat,
) -> str:
    """Export messages that are all in memory."""
    exporter = create_exporter(kind, agent=agent, sender=sender, title=title)
    return exporter.begin() + exporter.add(messages) + exporter.end()


class MarkdownExporter:
    """Markdown as in the chat. Tool output is fenced, with fences longer than any inside."""

    def __init__(self, agent: str, sender: str, title: str) -> None:
        self._agent = agent
        self._sender = sender
        self._title = title

    def begin(self) -> str:
        head = to_one_line(self._title or f"{self._agent} and {self._sender}")
        return f"# {head}\n\n{to_one_line(self._agent)} with {to_one_line(self._sender)}\n"

    def add(self, messages: Iterable[wire.ConversationMessage]) -> str:
        return "".join(map(self._render_message, messages))

    def end(self) -> str:
        return ""

    def _render_message(self, message: wire.ConversationMessage) -> str:
        speaker = to_one_line(get_speaker(message, self._agent, self._sender))
        parts = [f"\n## {speaker}{format_time(message)}\n"]
        if message.reasoning:
            quoted = escape_controls(message.reasoning.strip(), layout=True).replace("\n", "\n> ")
            parts.append(f"> {quoted}\n")
        if message.content and message.role == "tool":
            parts.append(fence_text(message.content))
        elif message.content:
            parts.append(f"{escape_controls(message.content.strip(), layout=True)}\n")
        parts += [
            f"`{escape_code(call.name)}`\n\n{fence_text(call.arguments)}"
            for call in message.tool_calls
        ]
        return "\n".join(parts)


class JsonExporter:
    """One JSON document with the field names of the wire."""

    def __init__(self, agent: str, sender: str, title: str) -> None:
        self._head = {"agent": agent, "sender": sender, "title": title}
        self._separator = ""

    def begin(self) -> str:
        return format_json_line(self._head)[:-1] + ', "messages": ['

    def add(self, messages: Iterable[wire.ConversationMessage]) -> str:
        pieces: list[str] = []
        for message in messages:
            pieces.append(f"{self._separator}\n{format_json_line(message_to_json(message))}")
            self._separator = ","
        return "".join(pieces)

    def end(self) -> str:
        return "\n]}\n"


class HtmlExporter:
    """One self-contained HTML page."""

    def __init__(self, agent: str, sender: str, title: str) -> None:
        self._agent = agent
        self._sender = sender
        self._title = to_one_line(title) or f"{agent} and {sender}"

    def begin(self) -> str:
        title = escape_html(self._title)
        pair = escape_html(f"{self._agent} with {self._sender}")
        return PAGE.format(title=title, pair=pair, style=STYLE)

    def add(self, messages: Iterable[wire.ConversationMessage]) -> str:
        return "".join(map(self._render_message, messages))

    def end(self) -> str:
        return "</main>\n</body>\n</html>\n"

    def _render_message(self, message: wire.ConversationMessage) -> str:
        who = escape_html(get_speaker(message, self._agent, self._sender) + format_time(message))
        body: list[str] = []
        if message.reasoning:
            body.append(render_details("thought", message.reasoning))
        if message.content and message.role == "tool":
            body.append(render_details("output", message.content))
        elif message.content:
            body.append(f"<pre>{escape_html(message.content)}</pre>")
        body += [render_details(call.name, call.arguments) for call in message.tool_calls]
        role = message.role if message.role in ("user", "assistant", "tool") else "other"
        return f'<article class="{role}">\n<h2>{who}</h2>\n{"".join(body)}\n</article>\n'


STYLE = """
body { margin: 2rem auto; max-width: 50rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }
h2 { font-size: .9rem; margin: 1.5rem 0 .3rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: inherit; }
details pre { font: .85rem/1.4 ui-monospace, monospace; padding: .3rem 0 .3rem 1rem; }
.user h2 { color: #a2542d; } .tool, details { color: #666; }
@media (prefers-color-scheme: dark) {
body { background: #1b1b1b; color: #ddd; } .tool, details { color: #999; }
}
"""
PAGE = """<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{pair}</p>
<main>
"""


def message_to_json(message: wire.ConversationMessage) -> dict[str, Any]:
    """Convert a message; empty fields are left out."""
    calls = [
        {"id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    fields = {
        "id": message.id,
        "timestamp": message.timestamp,
        "role": message.role,
        "agent": message.agent,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": calls,
        "call_id": message.call_id,
    }
    return {key: value for key, value in fields.items() if value or key in ("id", "content")}


def get_speaker(message: wire.ConversationMessage, agent: str, sender: str) -> str:
    match message.role:
        case "user":
            return sender
        case "assistant":
            return message.agent or agent
    return message.role


def format_time(message: wire.ConversationMessage) -> str:
    return f" · {format_local_time(message.timestamp)}" if message.timestamp else ""


def render_details(summary: str, text: str) -> str:
    return (
        f"<details><summary>{escape_html(summary)}</summary>"
        f"<pre>{escape_html(text)}</pre></details>\n"
    )


def escape_html(text: str) -> str:
    return html.escape(escape_controls(text, layout=True))


def fence_text(text: str) -> str:
    text = escape_controls(text, layout=True)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}\n"


def escape_code(text: str) -> str:
    return to_one_line(text).replace("`", "'")
