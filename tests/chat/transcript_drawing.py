"""Render transcripts and Markdown for tests: whole, in pieces, and without colours."""

import re
from collections.abc import Iterable, Sequence

from crabtalk.chat.line_wrapping import measure_text
from crabtalk.chat.markdown_stream import MarkdownStream
from crabtalk.chat.theme import PLAIN_THEME, Theme
from crabtalk.chat.transcript import ChatTranscript
from crabtalk.protocol import wire

THEMES = {"colour": Theme(), "plain": PLAIN_THEME}
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def render_markdown(text: str, width: int = 80, theme: Theme = PLAIN_THEME) -> list[str]:
    stream = MarkdownStream(theme)
    stream.feed(text)
    stream.finish()
    return stream.take_lines(width)


def render_in_pieces(
    text: str, cuts: Iterable[int], width: int, theme: Theme = PLAIN_THEME
) -> list[str]:
    """Feed pieces of the given lengths; after each, take settled lines and draw the others."""
    stream = MarkdownStream(theme)
    lines: list[str] = []
    at = 0
    for length in cuts:
        stream.feed(text[at : at + length])
        at += length
        lines += stream.take_lines(width)
        stream.live_lines(width)
    stream.feed(text[at:])
    stream.finish()
    return lines + stream.take_lines(width)


def strip_escapes(lines: Iterable[str]) -> list[str]:
    return [ESCAPE.sub("", line) for line in lines]


def measure_widest(lines: Iterable[str]) -> int:
    return max((measure_text(line) for line in strip_escapes(lines)), default=0)


class DrawnTranscript:
    """A transcript with a clock of its own, and everything it has printed."""

    def __init__(
        self, width: int = 80, theme: Theme = PLAIN_THEME, *, has_keys: bool = True
    ) -> None:
        self.transcript = ChatTranscript(theme, has_keys=has_keys)
        self.width = width
        self.height = 20
        self.now = 100.0
        self.printed = ""

    def handle_events(self, *events: wire.StreamEvent, after: float = 0.0) -> "DrawnTranscript":
        for event in events:
            self.now += after
            self.transcript.handle_event(event, self.now)
            self.take_text()
        return self

    def handle_feed_events(
        self, *events: wire.AgentEventMsg, after: float = 0.0
    ) -> "DrawnTranscript":
        for event in events:
            self.now += after
            self.transcript.handle_feed_event(event, self.now)
            self.take_text()
        return self

    def take_text(self) -> str:
        text = self.transcript.take_text(self.width)
        assert not text or text.endswith("\n")
        self.printed += text
        return text

    @property
    def live_lines(self) -> list[str]:
        self.take_text()
        lines = self.transcript.live_lines(self.width, self.height, self.now)
        assert len(lines) <= self.height
        return lines

    @property
    def printed_lines(self) -> list[str]:
        """Everything printed so far, without colours."""
        self.take_text()
        return strip_escapes(self.printed.splitlines())


# ── Events ──────────────────────────────────────────────────────────────────────────────────────


def start_event(agent: str = "crab", run_id: str = "r1") -> wire.StreamEvent:
    return wire.StreamEvent(start=wire.StreamStart(agent=agent, run_id=run_id))


def text_events(*pieces: str, agent: str = "crab") -> list[wire.StreamEvent]:
    """Return the events of one segment of text."""
    return [
        wire.StreamEvent(text_start=wire.TextStartEvent(agent=agent)),
        *map(chunk_event, pieces),
        wire.StreamEvent(text_end=wire.TextEndEvent(agent=agent)),
    ]


def chunk_event(text: str) -> wire.StreamEvent:
    return wire.StreamEvent(chunk=wire.StreamChunk(content=text))


def thinking_events(*pieces: str) -> list[wire.StreamEvent]:
    return [
        wire.StreamEvent(thinking_start=wire.ThinkingStartEvent(agent="crab")),
        *(wire.StreamEvent(thinking=wire.StreamThinking(content=piece)) for piece in pieces),
        wire.StreamEvent(thinking_end=wire.ThinkingEndEvent(agent="crab")),
    ]


def make_tool_call(name: str, arguments: str = "", call_id: str = "c1") -> wire.ToolCallInfo:
    return wire.ToolCallInfo(name=name, arguments=arguments, id=call_id)


def tool_start_event(*infos: wire.ToolCallInfo, early: bool = False) -> wire.StreamEvent:
    return wire.StreamEvent(tool_start=wire.ToolStartEvent(calls=infos, early=early))


def tool_result_event(
    output: str, call_id: str = "c1", *, milliseconds: int = 3200, is_error: bool = False
) -> wire.StreamEvent:
    return wire.StreamEvent(
        tool_result=wire.ToolResultEvent(
            call_id=call_id, output=output, duration_ms=milliseconds, is_error=is_error
        )
    )


def tools_complete_event() -> wire.StreamEvent:
    return wire.StreamEvent(tools_complete=wire.ToolsCompleteEvent())


def end_event(
    reason: "wire.StopReason.ValueType" = wire.STOP_REASON_COMPLETED,
    error: str = "",
    agent: str = "crab",
) -> wire.StreamEvent:
    return wire.StreamEvent(end=wire.StreamEnd(agent=agent, error=error, stop_reason=reason))


def feed_event(
    kind: "wire.AgentEventKind.ValueType",
    run_id: str,
    *,
    agent: str = "worker",
    parent: tuple[str, str, int] | None = None,
    tools: Sequence[wire.ToolCallInfo] = (),
    call_id: str = "",
    content: str = "",
) -> wire.AgentEventMsg:
    """Make an event; `parent` is the run, call and task number that started its run."""
    event = wire.AgentEventMsg(
        agent=agent, run_id=run_id, kind=kind, tool_calls=tools, call_id=call_id, content=content
    )
    if parent is not None:
        run, of_call, task = parent
        event.parent.CopyFrom(wire.ParentRun(run_id=run, call_id=of_call, task=task))
    return event
