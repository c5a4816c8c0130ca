"""A form: what an agent asks a person, a page a question, and the keys that fill it in.

Approvals are forms too. Keys go in by name, styled lines come out; it touches no terminal, and what
it is left with is the answer the daemon gets.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prompt_toolkit.utils import get_cwidth

from crabtalk.cli.approval_text import (
    DENY,
    combine_answers,
    is_approval,
    list_approval_options,
    render_approval,
)
from crabtalk.protocol import wire
from crabtalk.service.command_line import escape_controls, to_one_line

from .approval_view import SCROLL_KEYS, ApprovalView

StyledLine = list[tuple[str, str]]  # pieces of text, each with its style
FormOutcome = Literal["", "sent", "left"]

# Of words of one's own. A letter fits; what is longer belongs in a message.
MAX_OWN_TEXT = 20_000


@dataclass(slots=True)
class FormPage:
    """One question. Its rows are the options, and last the words of one's own."""

    question: str
    header: str
    options: Sequence[tuple[str, str]] = ()
    allows_several: bool = False
    row: int = 0
    chosen: set[int] = field(default_factory=set)
    own_text: str = ""
    is_printed_above: bool = False  # the question was printed in full
    approval: ApprovalView | None = None  # the call that is to be allowed or denied

    @property
    def own_row(self) -> int:
        """The row for words of one's own."""
        return len(self.options)

    @property
    def last_row(self) -> int:
        """Approvals take their options and nothing else, so they have no row for words."""
        return self.own_row if self.approval is None else self.own_row - 1

    @property
    def is_unread_allow(self) -> bool:
        """Whether the cursor is on a yes to a call whose end was not in view yet."""
        if self.approval is None or self.approval.is_read:
            return False
        return self.options[self.row][0] != DENY

    @property
    def answer(self) -> str:
        labels = [label for row, (label, _) in enumerate(self.options) if row in self.chosen]
        if self.own_row in self.chosen and self.own_text.strip():
            labels.append(self.own_text.strip())
        return ", ".join(labels)

    def choose(self, row: int) -> None:
        if self.allows_several:
            self.chosen ^= {row}
        else:
            self.chosen = {row}

    def add_text(self, words: str) -> None:
        """Into the words of one's own, wherever the cursor is."""
        if self.approval is not None:
            return
        self.row = self.own_row
        self.own_text = (self.own_text + words)[:MAX_OWN_TEXT]
        self._update_own_choice()

    def erase_text(self, count: int) -> None:
        self.own_text = self.own_text[: max(len(self.own_text) - count, 0)]
        self._update_own_choice()

    def _update_own_choice(self) -> None:
        if not self.own_text.strip():
            self.chosen.discard(self.own_row)
        elif self.allows_several:
            self.chosen.add(self.own_row)
        else:
            self.chosen = {self.own_row}


class TerminalForm:
    """Pages, and one more to send it from when there are several questions."""

    def __init__(self, ask: wire.AskUserEvent, asker: str = "") -> None:
        """`asker` is who asks, where that has to be said."""
        self.ask_id = ask.ask_id
        self.asker = asker
        self.questions = list(ask.questions)
        self.pages = [create_page(question, asker) for question in ask.questions]
        self.page_index = 0

    @property
    def current_page(self) -> FormPage | None:
        """None where it is sent from."""
        return self.pages[self.page_index] if self.page_index < len(self.pages) else None

    @property
    def answers(self) -> str:
        """As `reply_to_ask` wants it: a JSON object from each question to what was chosen."""
        given = combine_answers([(page.question, page.answer) for page in self.pages])
        return json.dumps(given, ensure_ascii=False)

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Header and answer of each."""
        return [(page.header or "answer", page.answer) for page in self.pages]

    def press_key(self, key: str) -> FormOutcome:
        """One key: its name (`up`, `enter`, …), or what it writes."""
        if key == "escape":
            return "left"
        if key in ("right", "tab"):
            self.page_index = min(self.page_index + 1, self._last_index)
        elif key in ("left", "backtab"):
            self.page_index = max(self.page_index - 1, 0)
        elif self.current_page is None:
            return self._submit() if key == "enter" else ""
        elif key == "enter":
            return self._confirm_page(self.current_page)
        else:
            return self._edit_page(self.current_page, key)
        return ""

    def paste_text(self, text: str) -> None:
        if self.current_page is not None:
            self.current_page.add_text(text)

    # ── What keys do ────────────────────────────────────────────────────────────────────────

    @property
    def _last_index(self) -> int:
        """One question is sent by its answer."""
        return len(self.pages) if len(self.pages) > 1 else 0

    def _edit_page(self, page: FormPage, key: str) -> FormOutcome:
        if page.approval is not None and key in SCROLL_KEYS:
            page.approval.scroll(key)
            return ""
        is_writing = page.row == page.own_row
        match key:
            case "up":
                page.row = max(page.row - 1, 0)
            case "down":
                page.row = min(page.row + 1, page.last_row)
            case "backspace":
                page.erase_text(1)
            case "clear":
                page.erase_text(len(page.own_text))
            case " " if not is_writing:
                page.choose(page.row)
            case _ if key.isdecimal() and not is_writing and 0 < int(key) <= page.own_row:
                page.row = int(key) - 1
                if page.allows_several:
                    page.choose(page.row)
                else:
                    return self._confirm_page(page)
            case _ if len(key) == 1 and key.isprintable():
                page.add_text(key)
        return ""

    def _confirm_page(self, page: FormPage) -> FormOutcome:
        """What the cursor is on is the answer, unless several may be and some are."""
        if page.approval is not None and page.is_unread_allow:
            page.approval.scroll("pagedown")
            return ""
        if page.row < page.own_row and not (page.allows_several and page.chosen):
            page.chosen = {*page.chosen, page.row} if page.allows_several else {page.row}
        if not page.answer:
            return ""
        if self._last_index == 0:
            return "sent"
        self.page_index += 1
        return ""

    def _submit(self) -> FormOutcome:
        """Not before every question has an answer: it shows the first without one."""
        for number, page in enumerate(self.pages):
            if not page.answer:
                self.page_index = number
                return ""
        return "sent"

    # ── What it looks like ──────────────────────────────────────────────────────────────────

    def render_lines(self, width: int, height: int) -> list[StyledLine]:
        """At most `height` of them; a question too long for that is cut, its options are not."""
        head: list[StyledLine] = [self._render_tabs(width)] if self._last_index else []
        foot: list[StyledLine] = [[("class:form.hint", truncate_text(self._get_key_hint(), width))]]
        page = self.current_page
        if page is None:
            return [*head, *self._render_summary(width)[: self._count_content_rows(height)], *foot]
        if page.approval is not None:
            return self._render_approval(page, page.approval, width, height)
        question = self.wrap_question(page, width)
        if page.is_printed_above and len(question) > 1:
            question = [truncate_text(f"{question[0]} …", width)]
        rows, spare = self._render_rows(page, len(question), width, height)
        if len(question) > spare:
            question = [*question[: max(spare - 1, 0)], "…"][:spare]
        shown: list[StyledLine] = [[("class:form.question", line)] for line in question]
        return [*head, *shown, *rows, *foot]

    def _render_approval(
        self, page: FormPage, view: ApprovalView, width: int, height: int
    ) -> list[StyledLine]:
        """The call as far as there is room, its options, and how to read on."""
        has_tabs = bool(self._last_index) and height > 3
        head: list[StyledLine] = [self._render_tabs(width)] if has_tabs else []
        room = max(height - 1 - has_tabs, 2)
        rows, row = render_option_rows(page, width)
        total = view.count_rows(width)
        if len(rows) > room - 1:
            rows = scroll_rows(rows, row, max(room - min(total, 2), 1))
        spare = room - len(rows)
        has_position_row = total > spare > 2
        text = view.visible_rows(width, spare - has_position_row)
        where = view.position
        if has_position_row:
            more = "the rest must be read before a yes" if not view.is_read else "PgUp goes back"
            text = [*text, [("class:form.missing", truncate_text(f"{where} · {more}", width))]]
        hint = self._get_key_hint()
        if where and not has_position_row:
            hint = f"{where} · {hint}"
        return [*head, *text, *rows, [("class:form.hint", truncate_text(hint, width))]]

    def get_question_text(self, page: FormPage, width: int = 0) -> str:
        """All of its question, with who asks. An approval is wrapped where a width is given."""
        if page.approval is not None:
            return render_approval(self.questions[self.pages.index(page)], self.asker, width)
        text = f"{self.asker} asks: {page.question}" if self.asker else page.question
        return escape_controls(text, layout=True)

    def wrap_question(self, page: FormPage, width: int) -> list[str]:
        return wrap_text(self.get_question_text(page), width)

    def is_question_cut(self, page: FormPage, width: int, height: int) -> bool:
        """Whether some of its question does not fit. The text of an approval is scrolled."""
        if page.approval is not None:
            return False
        lines = len(self.wrap_question(page, width))
        _, spare = self._render_rows(page, lines, width, height)
        return lines > spare

    def _count_content_rows(self, height: int) -> int:
        """Between the tabs and the hint."""
        return max(height - 1 - bool(self._last_index), 1)

    def _render_rows(
        self, page: FormPage, lines: int, width: int, height: int
    ) -> tuple[list[StyledLine], int]:
        """Those in view, and what they leave for a question of so many lines."""
        room = self._count_content_rows(height)
        rows, row = render_option_rows(page, width)
        if len(rows) > room - 1:
            rows = scroll_rows(rows, row, max(room - min(lines, 2), 1))
        return rows, max(room - len(rows), 0)

    def _render_tabs(self, width: int) -> StyledLine:
        """The page in view is always among those that fit; arrows say where there are more."""
        names = [
            f" {'✓ ' if page.answer else ''}{to_one_line(page.header, 14) or number} "
            for number, page in enumerate(self.pages, 1)
        ]
        names.append(" send ")
        first, end = fit_tabs([get_cwidth(name) for name in names], self.page_index, width)
        line: StyledLine = [("class:form.hint", "←")] if first else []
        for number in range(first, end):
            style = "class:form.tab.current" if number == self.page_index else "class:form.tab"
            line.append((style, truncate_text(names[number], width - 2)))
        return [*line, ("class:form.hint", "→")] if end < len(names) else line

    def _render_summary(self, width: int) -> list[StyledLine]:
        lines: list[StyledLine] = []
        for header, answer in self.summary:
            name = f"{to_one_line(header, 14)}: "
            room = max(width - get_cwidth(name), 1)
            said = (
                ("", truncate_text(to_one_line(answer), room))
                if answer
                else ("class:form.missing", truncate_text("no answer yet", room))
            )
            lines.append([("class:form.question", name), said])
        return lines

    def _get_key_hint(self) -> str:
        page = self.current_page
        if page is None:
            return "Enter sends · ← back · Esc later"
        goes_on = "next" if self._last_index else "sends"
        if page.approval is not None:
            picks = (
                "reads on" if page.is_unread_allow else ("picks" if self._last_index else goes_on)
            )
            scrolls = " · PgUp PgDn End scroll" if page.approval.position else ""
            return f"↑↓ Enter {picks}{scrolls} · Esc later"
        if page.row == page.own_row:
            options = "↑ options · " if page.options else ""
            return f"write, Enter {goes_on} · {options}Esc later"
        if page.allows_several:
            return f"Space picks · Enter {goes_on} · Esc later"
        return f"↑↓ Enter {'picks' if self._last_index else goes_on} · or write · Esc later"


def create_page(question: wire.AskQuestion, asker: str = "") -> FormPage:
    if is_approval(question):
        return FormPage(
            question=question.question,
            header=question.approval.tool or question.header,
            options=list_approval_options(question),
            approval=ApprovalView(question, asker),
        )
    return FormPage(
        question=question.question,
        header=question.header,
        options=tuple((option.label, option.description) for option in question.options),
        allows_several=question.multi_select,
    )


def render_option_rows(page: FormPage, width: int) -> tuple[list[StyledLine], int]:
    """A line a row, and which of them the cursor is on."""
    marks = {(True, True): "[x]", (True, False): "[ ]", (False, True): "●", (False, False): "○"}
    rows: list[StyledLine] = []
    for number in range(page.last_row + 1):
        here = number == page.row
        style = "class:form.current" if here else ""
        mark = marks[page.allows_several, number in page.chosen]
        left = width - 2 - len(mark) - 1
        line: StyledLine = [(style, f"{'▸ ' if here else '  '}{mark} ")]
        if here and number < page.own_row:
            line.insert(0, ("[SetCursorPosition]", ""))
        if number == page.own_row:
            line.extend(render_own_text(page, left, style, here=here))
        else:
            label, description = (
                escape_controls(" ".join(text.split())) for text in page.options[number]
            )
            line.append((style, truncate_text(label, left)))
            left -= get_cwidth(label) + 2
            if description and left > 8:
                line.append(("class:form.description", f"  {truncate_text(description, left)}"))
        rows.append(line)
    return rows, page.row


def render_own_text(page: FormPage, width: int, style: str, *, here: bool) -> StyledLine:
    """The end of what was written, which is where one writes."""
    if not page.own_text:
        name = "something else" if page.options else "your answer"
        words: StyledLine = [
            ("class:form.description", truncate_text(f"{name}: write it", max(width - 1, 1)))
        ]
        return [("[SetCursorPosition]", ""), *words] if here else words
    text = escape_controls(page.own_text.replace("\n", " ↵ "))
    while get_cwidth(text) > width - 1:
        text = text[1 + (len(text) > width) * (len(text) - width) :]
    return [(style, text), ("[SetCursorPosition]", "")] if here else [(style, text)]


def scroll_rows(rows: list[StyledLine], row: int, count: int) -> list[StyledLine]:
    """So many of them, the given one among them, and where there is room, how many more."""
    first = min(max(row - count // 2, 0), max(len(rows) - count, 0))
    shown = rows[first : first + count]
    below = len(rows) - first - count
    if count >= 3 and first > 0:
        shown[0] = [("class:form.hint", f"  ↑ {first + 1} more")]
    if count >= 3 and below > 0:
        shown[-1] = [("class:form.hint", f"  ↓ {below + 1} more")]
    return shown


def fit_tabs(widths: Sequence[int], at: int, room: int) -> tuple[int, int]:
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


def truncate_text(text: str, width: int) -> str:
    return text if get_cwidth(text) <= width else f"{take_prefix(text, width - 1)}…"


def take_prefix(text: str, width: int) -> str:
    """As much of its beginning as fits."""
    taken = 0
    for place, character in enumerate(text):
        taken += get_cwidth(character)
        if taken > width:
            return text[:place]
    return text


def wrap_text(text: str, width: int) -> list[str]:
    return [line for paragraph in text.split("\n") for line in wrap_paragraph(paragraph, width)]


def wrap_paragraph(paragraph: str, width: int) -> Iterable[str]:
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
            piece = take_prefix(word, width) or word[0]
            yield piece
            word = word[len(piece) :]
            size = get_cwidth(word)
        line, taken = word, size
    yield line
