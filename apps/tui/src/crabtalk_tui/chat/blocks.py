"""Blocks: how the things in a chat look that are no answer: calls, thoughts, edits, notices,
questions, what people say. Each is lines of a width; what is theirs to say comes from outside.
"""

import difflib
from collections.abc import Iterable, Sequence

from crabtalk.component.command import visible

from .calls import Call
from .flow import Flow, Span, filled, fitted, joined, paint
from .look import Look

OUTPUT, FAILED_OUTPUT = 5, 10  # lines
SAID = 20  # lines of what people say
CHANGES = 16  # lines of an edit
COMPARED = 400  # lines of a text, beyond which the difference is not looked for
INDENT: Span = ("  ", "")


class Blocks:
    """`has_keys` says whether there are keys that show more."""

    def __init__(self, look: Look, *, has_keys: bool = True) -> None:
        self.look = look
        self._has_keys = has_keys

    # ── People ──────────────────────────────────────────────────────────────────────────────

    def said(self, text: str, width: int, guest: str = "") -> list[str]:
        """What the user says; to whom, if it is a guest who shall answer."""
        name = f"@{visible(guest)} " if guest and not text.startswith(f"@{guest}") else ""
        lines = visible(text, layout=True).expandtabs(4).splitlines() or [""]
        hidden = len(lines) - SAID
        if hidden > 0:
            lines = lines[:SAID]
        first: list[Span] = [(name, self.look.guest(guest))] if name else []
        rows: list[list[Span]] = []
        for line in lines:
            rows += filled([*first, (line, self.look.styles.user)], max(1, width - 2))
            first = []
        mark = self.look.glyphs.prompt
        shown = [
            paint([(f"{mark} ", self.look.styles.name) if not number else INDENT, *row])
            for number, row in enumerate(rows)
        ]
        return [*shown, *self._more(hidden, width, key="")]

    def name(self, name: str) -> str:
        """Above what a guest says."""
        return paint([(visible(name), joined(self.look.styles.name, self.look.guest(name)))])

    def notice(self, text: str, kind: str, width: int) -> list[str]:
        styles, glyphs = self.look.styles, self.look.glyphs
        style = {"error": styles.failed, "hint": styles.hint}.get(kind, styles.dim)
        mark = glyphs.failed if kind == "error" else glyphs.between
        rows = wrapped(visible(text, layout=True), style, width - 2)
        return [
            paint([(f"{mark} ", style) if not number else INDENT, *row])
            for number, row in enumerate(rows or [[]])
        ]

    # ── Thinking ────────────────────────────────────────────────────────────────────────────

    def thinking(self, text: str, seconds: float, now: float, width: int) -> list[str]:
        """While it goes on: how long, and the last of it."""
        dim = self.look.styles.dim
        head = [(f"{self.look.spinner(now)} thinking  {duration(seconds)}", dim)]
        tail = visible(" ".join(text[-4 * width :].split()))
        rows = wrapped(tail, joined(dim, self.look.styles.emphasis), width - 2)
        return [paint(fitted(head, width)), *(paint([INDENT, *row]) for row in rows[-2:])]

    def thought(self, seconds: float, width: int) -> list[str]:
        key = f" {self.look.glyphs.between} Ctrl+T" if self._has_keys else ""
        text = f"thought for {duration(seconds)}{key}"
        return [paint(fitted([(text, self.look.styles.dim)], width))]

    def thought_in_full(self, text: str, width: int) -> list[str]:
        rows: list[list[Span]] = []
        for line in visible(text, layout=True).splitlines():
            rows += wrapped(line, self.look.styles.dim, width) or [[]]
        return [paint(row) for row in rows]

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    def running(self, call: Call, now: float, width: int) -> str:
        mark = (f"{self.look.spinner(now)} ", self.look.styles.running)
        time = f"  {duration(now - call.started)}"
        return self._call(mark, call, time, width)

    def head(self, call: Call, width: int) -> str:
        """Of a call that has ended."""
        time = f"  {duration(call.seconds)}" if call.seconds is not None else ""
        return self._call(self._state(call.is_error), call, time, width)

    def ended(self, call: Call, width: int) -> list[str]:
        """With the first of what it gave back."""
        head = self.head(call, width)
        if call.name == "ask_user" and call.questions and not call.is_error:
            return [head, *self._answers(call, width)]
        if call.name == "edit" and not call.is_error and (changes := self._changes(call, width)):
            return [head, *changes]
        return [head, *self._output(call, width)]

    def in_full(self, call: Call, width: int) -> list[str]:
        lines = [self.head(call, width)]
        if call.name == "edit" and not call.is_error:
            return lines + self._changes(call, width, most=None)
        for line in visible(call.shown, layout=True).expandtabs(4).splitlines():
            lines += [paint([INDENT, *row]) for row in filled([(line, "")], width - 2)]
        return lines

    def _state(self, is_error: bool | None) -> Span:
        glyphs, styles = self.look.glyphs, self.look.styles
        if is_error is None:
            return f"{glyphs.tool} ", styles.dim
        return (
            (f"{glyphs.failed} ", styles.failed) if is_error else (f"{glyphs.done} ", styles.done)
        )

    def _call(self, mark: Span, call: Call, time: str, width: int) -> str:
        """The time is seen however long the rest is."""
        styles = self.look.styles
        spans = [mark, (visible(call.name), styles.name)]
        if call.about:
            spans.append((f"({call.about})", ""))
        right: list[Span] = [(time, styles.dim)]
        if call.progress and call.seconds is None:
            right = fitted([(f"  {call.progress}", styles.dim)], width // 2) + right
        room = width - sum(len(text) for text, _ in right)
        return paint([*fitted(spans, max(1, room), self.look.glyphs.more), *right])

    def _output(self, call: Call, width: int) -> list[str]:
        most = FAILED_OUTPUT if call.is_error else OUTPUT
        style = self.look.styles.failed if call.is_error else self.look.styles.dim
        shown: list[str] = []
        hidden = 0
        for line in call.shown.splitlines():
            if not line.strip():
                continue
            if len(shown) == most:
                hidden += 1
                continue
            text = visible(line[: 4 * width].expandtabs(4))
            shown.append(paint([INDENT, *self._fit([(text, style)], width - 2)]))
        return [*shown, *self._more(hidden, width)]

    def _answers(self, call: Call, width: int) -> list[str]:
        lines: list[str] = []
        for question, answer in call.answers():
            asked = [(visible(" ".join(question.split())), self.look.styles.dim)]
            lines.append(paint([INDENT, *self._fit(asked, width - 2)]))
            answer = visible(" ".join(answer.split()))
            lines += [
                paint([("    ", ""), *row])
                for row in wrapped(answer, self.look.styles.strong, width - 4)[:OUTPUT]
            ]
        return lines

    def _changes(self, call: Call, width: int, most: int | None = CHANGES) -> list[str]:
        old, new = call.values.get("old_string"), call.values.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str):
            return []
        styles = self.look.styles
        style = {"+": styles.added, "-": styles.removed}
        changes = difference(old.splitlines(), new.splitlines())
        shown = [
            paint(
                [INDENT, *self._fit([(visible(text), style.get(text[0], styles.dim))], width - 2)]
            )
            for text in (change[: 4 * width].expandtabs(4) for change in changes[:most])
        ]
        return [*shown, *self._more(len(changes) - len(shown), width)]

    def _more(self, hidden: int, width: int, key: str = ", Ctrl+O shows all") -> list[str]:
        if hidden <= 0:
            return []
        lines = "line" if hidden == 1 else "lines"
        key = key if self._has_keys else ""
        text = f"{self.look.glyphs.more} {hidden} more {lines}{key}"
        return [paint([INDENT, *self._fit([(text, self.look.styles.dim)], width - 2)])]

    def _fit(self, spans: Iterable[Span], width: int) -> list[Span]:
        return fitted(spans, max(1, width), self.look.glyphs.more)


def difference(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Lines that begin with `-`, `+` or a space."""
    if len(old) > COMPARED or len(new) > COMPARED:
        return [*(f"- {line}" for line in old), *(f"+ {line}" for line in new)]
    found = list(difflib.unified_diff(old, new, n=2, lineterm=""))[2:]  # after the files' names
    return [f"{line[0]} {line[1:]}" for line in found if not line.startswith("@@")]


def wrapped(text: str, style: str, width: int) -> list[list[Span]]:
    flow = Flow()
    flow.push([(text, style)])
    return flow.lines(width, final=True)


def duration(seconds: float) -> str:
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
