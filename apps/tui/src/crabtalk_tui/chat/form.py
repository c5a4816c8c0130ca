"""A form: what an agent asks a person, a page a question, and the keys that fill it in.

Approvals are forms too. Keys go in by name, styled lines come out; it touches no terminal, and what
it is left with is the answer the daemon gets.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prompt_toolkit.utils import get_cwidth

from crabtalk.component.command import one_line, visible
from crabtalk.protocol import wire
from crabtalk_tui.approval_text import (
    DENY,
    approval_options,
    approval_text,
    combine_answers,
    is_approval,
)

from .approval_view import KEYS, ApprovalView

Line = list[tuple[str, str]]  # pieces of text, each with its style
Outcome = Literal["", "sent", "left"]

# Of words of one's own. A letter fits; what is longer belongs in a message.
MOST_WORDS = 20_000


@dataclass(slots=True)
class Page:
    """One question. Its rows are the options, and last the words of one's own."""

    question: str
    header: str
    options: Sequence[tuple[str, str]] = ()
    many: bool = False
    row: int = 0
    chosen: set[int] = field(default_factory=set)
    words: str = ""
    is_above: bool = False  # the question was printed in full
    approval: ApprovalView | None = None  # the call that is to be allowed or denied

    @property
    def own(self) -> int:
        """The row for words of one's own."""
        return len(self.options)

    @property
    def last_row(self) -> int:
        """Approvals take their options and nothing else, so they have no row for words."""
        return self.own if self.approval is None else self.own - 1

    @property
    def is_unread_yes(self) -> bool:
        """Whether the cursor is on a yes to a call whose end was not in view yet."""
        if self.approval is None or self.approval.is_read:
            return False
        return self.options[self.row][0] != DENY

    @property
    def answer(self) -> str:
        labels = [label for row, (label, _) in enumerate(self.options) if row in self.chosen]
        if self.own in self.chosen and self.words.strip():
            labels.append(self.words.strip())
        return ", ".join(labels)

    def choose(self, row: int) -> None:
        if self.many:
            self.chosen ^= {row}
        else:
            self.chosen = {row}

    def write(self, words: str) -> None:
        """Into the words of one's own, wherever the cursor is."""
        if self.approval is not None:
            return
        self.row = self.own
        self.words = (self.words + words)[:MOST_WORDS]
        self._settle_own()

    def unwrite(self, count: int) -> None:
        self.words = self.words[: max(len(self.words) - count, 0)]
        self._settle_own()

    def _settle_own(self) -> None:
        if not self.words.strip():
            self.chosen.discard(self.own)
        elif self.many:
            self.chosen.add(self.own)
        else:
            self.chosen = {self.own}


class Form:
    """Pages, and one more to send it from when there are several questions."""

    def __init__(self, ask: wire.AskUserEvent, asker: str = "") -> None:
        """`asker` is who asks, where that has to be said."""
        self.ask_id = ask.ask_id
        self.asker = asker
        self.questions = list(ask.questions)
        self.pages = [page_of(question, asker) for question in ask.questions]
        self.at = 0

    @property
    def page(self) -> Page | None:
        """None where it is sent from."""
        return self.pages[self.at] if self.at < len(self.pages) else None

    @property
    def answers(self) -> str:
        """As `reply_to_ask` wants it: a JSON object from each question to what was chosen."""
        given = combine_answers([(page.question, page.answer) for page in self.pages])
        return json.dumps(given, ensure_ascii=False)

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Header and answer of each."""
        return [(page.header or "answer", page.answer) for page in self.pages]

    def press(self, key: str) -> Outcome:
        """One key: its name (`up`, `enter`, …), or what it writes."""
        if key == "escape":
            return "left"
        if key in ("right", "tab"):
            self.at = min(self.at + 1, self._last)
        elif key in ("left", "backtab"):
            self.at = max(self.at - 1, 0)
        elif self.page is None:
            return self._send() if key == "enter" else ""
        elif key == "enter":
            return self._settle(self.page)
        else:
            return self._fill(self.page, key)
        return ""

    def paste(self, text: str) -> None:
        if self.page is not None:
            self.page.write(text)

    # ── What keys do ────────────────────────────────────────────────────────────────────────

    @property
    def _last(self) -> int:
        """One question is sent by its answer."""
        return len(self.pages) if len(self.pages) > 1 else 0

    def _fill(self, page: Page, key: str) -> Outcome:
        if page.approval is not None and key in KEYS:
            page.approval.scroll(key)
            return ""
        is_writing = page.row == page.own
        match key:
            case "up":
                page.row = max(page.row - 1, 0)
            case "down":
                page.row = min(page.row + 1, page.last_row)
            case "backspace":
                page.unwrite(1)
            case "clear":
                page.unwrite(len(page.words))
            case " " if not is_writing:
                page.choose(page.row)
            case _ if key.isdecimal() and not is_writing and 0 < int(key) <= page.own:
                page.row = int(key) - 1
                if page.many:
                    page.choose(page.row)
                else:
                    return self._settle(page)
            case _ if len(key) == 1 and key.isprintable():
                page.write(key)
        return ""

    def _settle(self, page: Page) -> Outcome:
        """What the cursor is on is the answer, unless several may be and some are."""
        if page.approval is not None and page.is_unread_yes:
            page.approval.scroll("pagedown")
            return ""
        if page.row < page.own and not (page.many and page.chosen):
            page.chosen = {*page.chosen, page.row} if page.many else {page.row}
        if not page.answer:
            return ""
        if self._last == 0:
            return "sent"
        self.at += 1
        return ""

    def _send(self) -> Outcome:
        """Not before every question has an answer: it shows the first without one."""
        for number, page in enumerate(self.pages):
            if not page.answer:
                self.at = number
                return ""
        return "sent"

    # ── What it looks like ──────────────────────────────────────────────────────────────────

    def lines(self, width: int, height: int) -> list[Line]:
        """At most `height` of them; a question too long for that is cut, its options are not."""
        head: list[Line] = [self._tabs(width)] if self._last else []
        foot: list[Line] = [[("class:form.hint", cut(self._hint(), width))]]
        page = self.page
        if page is None:
            return [*head, *self._sending(width)[: self._room(height)], *foot]
        if page.approval is not None:
            return self._approval_lines(page, page.approval, width, height)
        question = self.question(page, width)
        if page.is_above and len(question) > 1:
            question = [cut(f"{question[0]} …", width)]
        rows, spare = self._rows(page, len(question), width, height)
        if len(question) > spare:
            question = [*question[: max(spare - 1, 0)], "…"][:spare]
        shown: list[Line] = [[("class:form.question", line)] for line in question]
        return [*head, *shown, *rows, *foot]

    def _approval_lines(
        self, page: Page, view: ApprovalView, width: int, height: int
    ) -> list[Line]:
        """The call as far as there is room, its options, and how to read on."""
        has_tabs = bool(self._last) and height > 3
        head: list[Line] = [self._tabs(width)] if has_tabs else []
        room = max(height - 1 - has_tabs, 2)
        rows, row = page_rows(page, width)
        total = view.count_rows(width)
        if len(rows) > room - 1:
            rows = around(rows, row, max(room - min(total, 2), 1))
        spare = room - len(rows)
        has_position_row = total > spare > 2
        text = view.visible_rows(width, spare - has_position_row)
        where = view.position
        if has_position_row:
            more = "the rest must be read before a yes" if not view.is_read else "PgUp goes back"
            text = [*text, [("class:form.missing", cut(f"{where} · {more}", width))]]
        hint = self._hint()
        if where and not has_position_row:
            hint = f"{where} · {hint}"
        return [*head, *text, *rows, [("class:form.hint", cut(hint, width))]]

    def wording(self, page: Page, width: int = 0) -> str:
        """All of its question, with who asks. An approval is wrapped where a width is given."""
        if page.approval is not None:
            return approval_text(self.questions[self.pages.index(page)], self.asker, width)
        text = f"{self.asker} asks: {page.question}" if self.asker else page.question
        return visible(text, layout=True)

    def question(self, page: Page, width: int) -> list[str]:
        return wrapped(self.wording(page), width)

    def is_cut(self, page: Page, width: int, height: int) -> bool:
        """Whether some of its question does not fit. The text of an approval is scrolled."""
        if page.approval is not None:
            return False
        lines = len(self.question(page, width))
        _, spare = self._rows(page, lines, width, height)
        return lines > spare

    def _room(self, height: int) -> int:
        """Between the tabs and the hint."""
        return max(height - 1 - bool(self._last), 1)

    def _rows(self, page: Page, lines: int, width: int, height: int) -> tuple[list[Line], int]:
        """Those in view, and what they leave for a question of so many lines."""
        room = self._room(height)
        rows, row = page_rows(page, width)
        if len(rows) > room - 1:
            rows = around(rows, row, max(room - min(lines, 2), 1))
        return rows, max(room - len(rows), 0)

    def _tabs(self, width: int) -> Line:
        """The page in view is always among those that fit; arrows say where there are more."""
        names = [
            f" {'✓ ' if page.answer else ''}{one_line(page.header, 14) or number} "
            for number, page in enumerate(self.pages, 1)
        ]
        names.append(" send ")
        first, end = fitting([get_cwidth(name) for name in names], self.at, width)
        line: Line = [("class:form.hint", "←")] if first else []
        for number in range(first, end):
            style = "class:form.tab.current" if number == self.at else "class:form.tab"
            line.append((style, cut(names[number], width - 2)))
        return [*line, ("class:form.hint", "→")] if end < len(names) else line

    def _sending(self, width: int) -> list[Line]:
        lines: list[Line] = []
        for header, answer in self.summary:
            name = f"{one_line(header, 14)}: "
            room = max(width - get_cwidth(name), 1)
            said = (
                ("", cut(one_line(answer), room))
                if answer
                else ("class:form.missing", cut("no answer yet", room))
            )
            lines.append([("class:form.question", name), said])
        return lines

    def _hint(self) -> str:
        page = self.page
        if page is None:
            return "Enter sends · ← back · Esc later"
        goes_on = "next" if self._last else "sends"
        if page.approval is not None:
            picks = "reads on" if page.is_unread_yes else ("picks" if self._last else goes_on)
            scrolls = " · PgUp PgDn End scroll" if page.approval.position else ""
            return f"↑↓ Enter {picks}{scrolls} · Esc later"
        if page.row == page.own:
            options = "↑ options · " if page.options else ""
            return f"write, Enter {goes_on} · {options}Esc later"
        if page.many:
            return f"Space picks · Enter {goes_on} · Esc later"
        return f"↑↓ Enter {'picks' if self._last else goes_on} · or write · Esc later"


def page_of(question: wire.AskQuestion, asker: str = "") -> Page:
    if is_approval(question):
        return Page(
            question=question.question,
            header=question.approval.tool or question.header,
            options=approval_options(question),
            approval=ApprovalView(question, asker),
        )
    return Page(
        question=question.question,
        header=question.header,
        options=tuple((option.label, option.description) for option in question.options),
        many=question.multi_select,
    )


def page_rows(page: Page, width: int) -> tuple[list[Line], int]:
    """A line a row, and which of them the cursor is on."""
    marks = {(True, True): "[x]", (True, False): "[ ]", (False, True): "●", (False, False): "○"}
    rows: list[Line] = []
    for number in range(page.last_row + 1):
        here = number == page.row
        style = "class:form.current" if here else ""
        mark = marks[page.many, number in page.chosen]
        left = width - 2 - len(mark) - 1
        line: Line = [(style, f"{'▸ ' if here else '  '}{mark} ")]
        if here and number < page.own:
            line.insert(0, ("[SetCursorPosition]", ""))
        if number == page.own:
            line.extend(own_words(page, left, style, here=here))
        else:
            label, description = (visible(" ".join(text.split())) for text in page.options[number])
            line.append((style, cut(label, left)))
            left -= get_cwidth(label) + 2
            if description and left > 8:
                line.append(("class:form.description", f"  {cut(description, left)}"))
        rows.append(line)
    return rows, page.row


def own_words(page: Page, width: int, style: str, *, here: bool) -> Line:
    """The end of what was written, which is where one writes."""
    if not page.words:
        name = "something else" if page.options else "your answer"
        words: Line = [("class:form.description", cut(f"{name}: write it", max(width - 1, 1)))]
        return [("[SetCursorPosition]", ""), *words] if here else words
    text = visible(page.words.replace("\n", " ↵ "))
    while get_cwidth(text) > width - 1:
        text = text[1 + (len(text) > width) * (len(text) - width) :]
    return [(style, text), ("[SetCursorPosition]", "")] if here else [(style, text)]


def around(rows: list[Line], row: int, count: int) -> list[Line]:
    """So many of them, the given one among them, and where there is room, how many more."""
    first = min(max(row - count // 2, 0), max(len(rows) - count, 0))
    shown = rows[first : first + count]
    below = len(rows) - first - count
    if count >= 3 and first > 0:
        shown[0] = [("class:form.hint", f"  ↑ {first + 1} more")]
    if count >= 3 and below > 0:
        shown[-1] = [("class:form.hint", f"  ↓ {below + 1} more")]
    return shown


def fitting(widths: Sequence[int], at: int, room: int) -> tuple[int, int]:
    """The first and the end of those that are shown: all, or as many on both sides of the given
    one as leave room for two arrows."""
    if sum(widths) <= room:
        return 0, len(widths)
    first, end = at, at + 1
    left = room - 2 - widths[at]
    while True:
        if end < len(widths) and widths[end] <= left:
            left -= widths[end]
            end += 1
        elif first > 0 and widths[first - 1] <= left:
            first -= 1
            left -= widths[first]
        else:
            return first, end


def cut(text: str, width: int) -> str:
    return text if get_cwidth(text) <= width else f"{head(text, width - 1)}…"


def head(text: str, width: int) -> str:
    """As much of its beginning as fits."""
    taken = 0
    for place, character in enumerate(text):
        taken += get_cwidth(character)
        if taken > width:
            return text[:place]
    return text


def wrapped(text: str, width: int) -> list[str]:
    return [line for paragraph in text.split("\n") for line in broken(paragraph, width)]


def broken(paragraph: str, width: int) -> Iterable[str]:
    """At spaces where there are any, else where the line is full."""
    line, taken = "", 0
    for word in paragraph.expandtabs(4).split(" "):
        size = get_cwidth(word)
        if line and taken + 1 + size <= width:
            line, taken = f"{line} {word}", taken + 1 + size
            continue
        if line:
            yield line
        while size > width:
            piece = head(word, width) or word[0]
            yield piece
            word = word[len(piece) :]
            size = get_cwidth(word)
        line, taken = word, size
    yield line
