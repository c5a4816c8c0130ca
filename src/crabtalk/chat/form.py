"""A form for the questions of an ask, one page per question, filled in with keys.

Approvals are forms too. It takes keys by name and renders styled lines; it touches no terminal. Its
`answers` are what the daemon gets.
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

# Characters of a person's own text in an answer. Longer text belongs in a message.
MAX_OWN_TEXT = 20_000


@dataclass(slots=True)
class FormPage:
    """One question. Its rows are the options, and last the person's own text."""

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
        """The row for the person's own text."""
        return len(self.options)

    @property
    def last_row(self) -> int:
        """The last selectable row. Approvals take only their options and have no own text."""
        return self.own_row if self.approval is None else self.own_row - 1

    @property
    def is_unread_allow(self) -> bool:
        """Whether the cursor is on an allow option before the end of the call was in view."""
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

    def add_text(self, text: str) -> None:
        """Append to the person's own text and move the cursor there."""
        if self.approval is not None:
            return
        self.row = self.own_row
        self.own_text = (self.own_text + text)[:MAX_OWN_TEXT]
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
    """The pages of an ask, and one more to send it from if there are several questions."""

    def __init__(self, ask: wire.AskUserEvent, asker: str = "") -> None:
        """`asker` names who asks, if it is not the chat's own agent."""
        self.ask_id = ask.ask_id
        self.asker = asker
        self.questions = list(ask.questions)
        self.pages = [create_page(question, asker) for question in ask.questions]
        self.page_index = 0

    @property
    def current_page(self) -> FormPage | None:
        """The page in view; None on the page to send from."""
        return self.pages[self.page_index] if self.page_index < len(self.pages) else None

    @property
    def answers(self) -> str:
        """The reply for `reply_to_ask`: a JSON object from each question to its answer."""
        answers = combine_answers([(page.question, page.answer) for page in self.pages])
        return json.dumps(answers, ensure_ascii=False)

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Header and answer of each question."""
        return [(page.header or "answer", page.answer) for page in self.pages]

    def press_key(self, key: str) -> FormOutcome:
        """Handle a key, given by its name (`up`, `enter`, …) or the text it types."""
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

    # ── Keys ────────────────────────────────────────────────────────────────────────────────

    @property
    def _last_index(self) -> int:
        """The last page. A form of one question has no page to send from: its answer sends it."""
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
        """Choose the option at the cursor, unless several are allowed and some are chosen."""
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
        """Send if every question has an answer; else show the first without one."""
        for number, page in enumerate(self.pages):
            if not page.answer:
                self.page_index = number
                return ""
        return "sent"

    # ── Rendering ───────────────────────────────────────────────────────────────────────────

    def render_lines(self, width: int, height: int) -> list[StyledLine]:
        """Render at most `height` lines. A long question is cut, its options are not."""
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
        question_lines: list[StyledLine] = [[("class:form.question", line)] for line in question]
        return [*head, *question_lines, *rows, *foot]

    def _render_approval(
        self, page: FormPage, view: ApprovalView, width: int, height: int
    ) -> list[StyledLine]:
        """Render as much of the call as fits, its options, and how to scroll."""
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
        position = view.position
        if has_position_row:
            more = "the rest must be read before a yes" if not view.is_read else "PgUp goes back"
            text = [*text, [("class:form.missing", truncate_text(f"{position} · {more}", width))]]
        hint = self._get_key_hint()
        if position and not has_position_row:
            hint = f"{position} · {hint}"
        return [*head, *text, *rows, [("class:form.hint", truncate_text(hint, width))]]

    def get_question_text(self, page: FormPage, width: int = 0) -> str:
        """Return the whole question with its asker. An approval is wrapped if a width is given."""
        if page.approval is not None:
            return render_approval(self.questions[self.pages.index(page)], self.asker, width)
        text = f"{self.asker} asks: {page.question}" if self.asker else page.question
        return escape_controls(text, layout=True)

    def wrap_question(self, page: FormPage, width: int) -> list[str]:
        return wrap_text(self.get_question_text(page), width)

    def is_question_cut(self, page: FormPage, width: int, height: int) -> bool:
        """Whether the question does not fit. Approvals are never cut: their text is scrolled."""
        if page.approval is not None:
            return False
        lines = len(self.wrap_question(page, width))
        _, spare = self._render_rows(page, lines, width, height)
        return lines > spare

    def _count_content_rows(self, height: int) -> int:
        """Count the rows between the tabs and the hint."""
        return max(height - 1 - bool(self._last_index), 1)

    def _render_rows(
        self, page: FormPage, lines: int, width: int, height: int
    ) -> tuple[list[StyledLine], int]:
        """Return the option rows in view, and the rows left for a question of `lines` lines."""
        room = self._count_content_rows(height)
        rows, row = render_option_rows(page, width)
        if len(rows) > room - 1:
            rows = scroll_rows(rows, row, max(room - min(lines, 2), 1))
        return rows, max(room - len(rows), 0)

    def _render_tabs(self, width: int) -> StyledLine:
        """Render the tabs that fit, always with that of the page in view; arrows show more."""
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
            answer_span = (
                ("", truncate_text(to_one_line(answer), room))
                if answer
                else ("class:form.missing", truncate_text("no answer yet", room))
            )
            lines.append([("class:form.question", name), answer_span])
        return lines

    def _get_key_hint(self) -> str:
        page = self.current_page
        if page is None:
            return "Enter sends · ← back · Esc later"
        enter_action = "next" if self._last_index else "sends"
        if page.approval is not None:
            approval_action = (
                "reads on"
                if page.is_unread_allow
                else ("picks" if self._last_index else enter_action)
            )
            scroll_hint = " · PgUp PgDn End scroll" if page.approval.position else ""
            return f"↑↓ Enter {approval_action}{scroll_hint} · Esc later"
        if page.row == page.own_row:
            options = "↑ options · " if page.options else ""
            return f"write, Enter {enter_action} · {options}Esc later"
        if page.allows_several:
            return f"Space picks · Enter {enter_action} · Esc later"
        return f"↑↓ Enter {'picks' if self._last_index else enter_action} · or write · Esc later"


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
    """Return a line for each row, and the row of the cursor."""
    marks = {(True, True): "[x]", (True, False): "[ ]", (False, True): "●", (False, False): "○"}
    rows: list[StyledLine] = []
    for number in range(page.last_row + 1):
        is_current = number == page.row
        style = "class:form.current" if is_current else ""
        mark = marks[page.allows_several, number in page.chosen]
        room = width - 2 - len(mark) - 1
        line: StyledLine = [(style, f"{'▸ ' if is_current else '  '}{mark} ")]
        if is_current and number < page.own_row:
            line.insert(0, ("[SetCursorPosition]", ""))
        if number == page.own_row:
            line.extend(render_own_text(page, room, style, is_current=is_current))
        else:
            label, description = (
                escape_controls(" ".join(text.split())) for text in page.options[number]
            )
            line.append((style, truncate_text(label, room)))
            room -= get_cwidth(label) + 2
            if description and room > 8:
                line.append(("class:form.description", f"  {truncate_text(description, room)}"))
        rows.append(line)
    return rows, page.row


def render_own_text(page: FormPage, width: int, style: str, *, is_current: bool) -> StyledLine:
    """Render the end of the person's own text, where the cursor is."""
    if not page.own_text:
        name = "something else" if page.options else "your answer"
        placeholder: StyledLine = [
            ("class:form.description", truncate_text(f"{name}: write it", max(width - 1, 1)))
        ]
        return [("[SetCursorPosition]", ""), *placeholder] if is_current else placeholder
    text = escape_controls(page.own_text.replace("\n", " ↵ "))
    while get_cwidth(text) > width - 1:
        text = text[1 + (len(text) > width) * (len(text) - width) :]
    return [(style, text), ("[SetCursorPosition]", "")] if is_current else [(style, text)]


def scroll_rows(rows: list[StyledLine], row: int, count: int) -> list[StyledLine]:
    """Return `count` rows that contain `row`; if there is room, with how many more there are."""
    first = min(max(row - count // 2, 0), max(len(rows) - count, 0))
    visible = rows[first : first + count]
    below = len(rows) - first - count
    if count >= 3 and first > 0:
        visible[0] = [("class:form.hint", f"  ↑ {first + 1} more")]
    if count >= 3 and below > 0:
        visible[-1] = [("class:form.hint", f"  ↓ {below + 1} more")]
    return visible


def fit_tabs(widths: Sequence[int], at: int, room: int) -> tuple[int, int]:
    """Return the first and the end index of the tabs to show.

    These are all tabs, or as many around tab `at` as leave room for two arrows.
    """
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
    """Return as much of the beginning as fits."""
    used = 0
    for index, character in enumerate(text):
        used += get_cwidth(character)
        if used > width:
            return text[:index]
    return text


def wrap_text(text: str, width: int) -> list[str]:
    return [line for paragraph in text.split("\n") for line in wrap_paragraph(paragraph, width)]


def wrap_paragraph(paragraph: str, width: int) -> Iterable[str]:
    """Wrap at spaces; a word longer than a line is broken."""
    line, used = "", 0
    for word in paragraph.expandtabs(4).split(" "):
        size = get_cwidth(word)
        if line and used + 1 + size <= width:
            line, used = f"{line} {word}", used + 1 + size
            continue
        if line:
            yield line
        while size > width:
            piece = take_prefix(word, width) or word[0]
            yield piece
            word = word[len(piece) :]
            size = get_cwidth(word)
        line, used = word, size
    yield line
