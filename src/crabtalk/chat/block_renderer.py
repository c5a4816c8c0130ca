"""Render everything in a chat except answers, as lines of a given width.

That is tool calls, thoughts, edits, notices, questions and people's messages.
"""

import difflib
from collections.abc import Iterable, Sequence

from crabtalk.service.command_line import escape_controls

from .line_wrapping import (
    LineWrapper,
    Span,
    break_lines,
    combine_styles,
    render_ansi,
    truncate_spans,
)
from .theme import Theme
from .tool_calls import ChatToolCall

MAX_OUTPUT_LINES, MAX_ERROR_LINES = 5, 10  # lines
MAX_MESSAGE_LINES = 20  # lines of a person's message
MAX_CHANGED_LINES = 16  # lines of an edit
MAX_COMPARED_LINES = 400  # lines; longer texts are not compared
INDENT: Span = ("  ", "")


class BlockRenderer:
    """`has_keys`: whether keys exist that show more, so that hints may name them."""

    def __init__(self, theme: Theme, *, has_keys: bool = True) -> None:
        self.theme = theme
        self._has_keys = has_keys

    # ── People ──────────────────────────────────────────────────────────────────────────────

    def render_message(self, text: str, width: int, guest: str = "") -> list[str]:
        """Render the user's message, with the guest's name if a guest will answer."""
        name = f"@{escape_controls(guest)} " if guest and not text.startswith(f"@{guest}") else ""
        lines = escape_controls(text, layout=True).expandtabs(4).splitlines() or [""]
        hidden = len(lines) - MAX_MESSAGE_LINES
        if hidden > 0:
            lines = lines[:MAX_MESSAGE_LINES]
        prefix: list[Span] = [(name, self.theme.get_guest_colour(guest))] if name else []
        rows: list[list[Span]] = []
        for line in lines:
            rows += break_lines([*prefix, (line, self.theme.styles.user)], max(1, width - 2))
            prefix = []
        mark = self.theme.glyphs.prompt
        rendered = [
            render_ansi([(f"{mark} ", self.theme.styles.name) if not number else INDENT, *row])
            for number, row in enumerate(rows)
        ]
        return [*rendered, *self._render_hidden_count(hidden, width, key="")]

    def render_name(self, name: str) -> str:
        """Render the heading of a guest's answer."""
        return render_ansi(
            [
                (
                    escape_controls(name),
                    combine_styles(self.theme.styles.name, self.theme.get_guest_colour(name)),
                )
            ]
        )

    def render_notice(self, text: str, kind: str, width: int) -> list[str]:
        styles, glyphs = self.theme.styles, self.theme.glyphs
        style = {"error": styles.failed, "hint": styles.hint}.get(kind, styles.dim)
        mark = glyphs.failed if kind == "error" else glyphs.between
        rows = wrap_text(escape_controls(text, layout=True), style, width - 2)
        return [
            render_ansi([(f"{mark} ", style) if not number else INDENT, *row])
            for number, row in enumerate(rows or [[]])
        ]

    # ── Thinking ────────────────────────────────────────────────────────────────────────────

    def render_thinking(self, text: str, seconds: float, now: float, width: int) -> list[str]:
        """Render a thought in progress: its duration and its end."""
        dim = self.theme.styles.dim
        head = [(f"{self.theme.get_spinner(now)} thinking  {format_duration(seconds)}", dim)]
        tail = escape_controls(" ".join(text[-4 * width :].split()))
        rows = wrap_text(tail, combine_styles(dim, self.theme.styles.emphasis), width - 2)
        return [
            render_ansi(truncate_spans(head, width)),
            *(render_ansi([INDENT, *row]) for row in rows[-2:]),
        ]

    def render_thought(self, seconds: float, width: int) -> list[str]:
        key = f" {self.theme.glyphs.between} Ctrl+T" if self._has_keys else ""
        text = f"thought for {format_duration(seconds)}{key}"
        return [render_ansi(truncate_spans([(text, self.theme.styles.dim)], width))]

    def render_full_thought(self, text: str, width: int) -> list[str]:
        rows: list[list[Span]] = []
        for line in escape_controls(text, layout=True).splitlines():
            rows += wrap_text(line, self.theme.styles.dim, width) or [[]]
        return [render_ansi(row) for row in rows]

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    def render_running_call(self, call: ChatToolCall, now: float, width: int) -> str:
        mark = (f"{self.theme.get_spinner(now)} ", self.theme.styles.running)
        time = f"  {format_duration(now - call.started)}"
        return self._render_call(mark, call, time, width)

    def render_call_head(self, call: ChatToolCall, width: int) -> str:
        """Render the first line of a call that has ended."""
        time = f"  {format_duration(call.seconds)}" if call.seconds is not None else ""
        return self._render_call(self._call_mark(call.is_error), call, time, width)

    def render_ended_call(self, call: ChatToolCall, width: int) -> list[str]:
        """Render a call that has ended, with the beginning of its output."""
        head = self.render_call_head(call, width)
        if call.name == "ask_user" and call.questions and not call.is_error:
            return [head, *self._render_answers(call, width)]
        if (
            call.name == "edit"
            and not call.is_error
            and (changes := self._render_changes(call, width))
        ):
            return [head, *changes]
        return [head, *self._render_output(call, width)]

    def render_full_call(self, call: ChatToolCall, width: int) -> list[str]:
        lines = [self.render_call_head(call, width)]
        if call.name == "edit" and not call.is_error:
            return lines + self._render_changes(call, width, limit=None)
        for line in escape_controls(call.display_output, layout=True).expandtabs(4).splitlines():
            lines += [render_ansi([INDENT, *row]) for row in break_lines([(line, "")], width - 2)]
        return lines

    def _call_mark(self, is_error: bool | None) -> Span:
        glyphs, styles = self.theme.glyphs, self.theme.styles
        if is_error is None:
            return f"{glyphs.tool} ", styles.dim
        return (
            (f"{glyphs.failed} ", styles.failed) if is_error else (f"{glyphs.done} ", styles.done)
        )

    def _render_call(self, mark: Span, call: ChatToolCall, time: str, width: int) -> str:
        """Render one line; the time stays visible however long the rest is."""
        styles = self.theme.styles
        spans = [mark, (escape_controls(call.name), styles.name)]
        if call.summary:
            spans.append((f"({call.summary})", ""))
        right: list[Span] = [(time, styles.dim)]
        if call.progress and call.seconds is None:
            right = truncate_spans([(f"  {call.progress}", styles.dim)], width // 2) + right
        room = width - sum(len(text) for text, _ in right)
        return render_ansi([*truncate_spans(spans, max(1, room), self.theme.glyphs.more), *right])

    def _render_output(self, call: ChatToolCall, width: int) -> list[str]:
        limit = MAX_ERROR_LINES if call.is_error else MAX_OUTPUT_LINES
        style = self.theme.styles.failed if call.is_error else self.theme.styles.dim
        lines: list[str] = []
        hidden = 0
        for line in call.display_output.splitlines():
            if not line.strip():
                continue
            if len(lines) == limit:
                hidden += 1
                continue
            text = escape_controls(line[: 4 * width].expandtabs(4))
            lines.append(render_ansi([INDENT, *self._truncate([(text, style)], width - 2)]))
        return [*lines, *self._render_hidden_count(hidden, width)]

    def _render_answers(self, call: ChatToolCall, width: int) -> list[str]:
        lines: list[str] = []
        for question, answer in call.pair_answers():
            question_spans = [(escape_controls(" ".join(question.split())), self.theme.styles.dim)]
            lines.append(render_ansi([INDENT, *self._truncate(question_spans, width - 2)]))
            answer = escape_controls(" ".join(answer.split()))
            lines += [
                render_ansi([("    ", ""), *row])
                for row in wrap_text(answer, self.theme.styles.strong, width - 4)[:MAX_OUTPUT_LINES]
            ]
        return lines

    def _render_changes(
        self, call: ChatToolCall, width: int, limit: int | None = MAX_CHANGED_LINES
    ) -> list[str]:
        old, new = call.parsed_arguments.get("old_string"), call.parsed_arguments.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str):
            return []
        styles = self.theme.styles
        style = {"+": styles.added, "-": styles.removed}
        changes = diff_lines(old.splitlines(), new.splitlines())
        rendered = [
            render_ansi(
                [
                    INDENT,
                    *self._truncate(
                        [(escape_controls(text), style.get(text[0], styles.dim))], width - 2
                    ),
                ]
            )
            for text in (change[: 4 * width].expandtabs(4) for change in changes[:limit])
        ]
        return [*rendered, *self._render_hidden_count(len(changes) - len(rendered), width)]

    def _render_hidden_count(
        self, hidden: int, width: int, key: str = ", Ctrl+O shows all"
    ) -> list[str]:
        if hidden <= 0:
            return []
        lines = "line" if hidden == 1 else "lines"
        key = key if self._has_keys else ""
        text = f"{self.theme.glyphs.more} {hidden} more {lines}{key}"
        return [render_ansi([INDENT, *self._truncate([(text, self.theme.styles.dim)], width - 2)])]

    def _truncate(self, spans: Iterable[Span], width: int) -> list[Span]:
        return truncate_spans(spans, max(1, width), self.theme.glyphs.more)


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the difference as lines that begin with `-`, `+` or a space."""
    if len(old) > MAX_COMPARED_LINES or len(new) > MAX_COMPARED_LINES:
        return [*(f"- {line}" for line in old), *(f"+ {line}" for line in new)]
    diff = list(difflib.unified_diff(old, new, n=2, lineterm=""))[2:]  # without the file names
    return [f"{line[0]} {line[1:]}" for line in diff if not line.startswith("@@")]


def wrap_text(text: str, style: str, width: int) -> list[list[Span]]:
    wrapper = LineWrapper()
    wrapper.push([(text, style)])
    return wrapper.take_lines(width, final=True)


def format_duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"
