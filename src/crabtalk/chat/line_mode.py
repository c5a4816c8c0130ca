"""The chat line by line: for terminals without cursor movement, and for pipes.

It uses the same controller and transcript, prints only finished text and redraws nothing. An input
line is a message, or the answer to a question.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from crabtalk.cli.approval_text import match_option
from crabtalk.service.command_line import escape_controls, get_line_width
from crabtalk.transport import default_home

from .controller import ChatController
from .form import FormPage, TerminalForm
from .greeting import build_greeting
from .settings import read_settings
from .theme import PLAIN_THEME, Theme

SECOND_INTERRUPT_SECONDS = 2.0  # seconds in which a second Ctrl+C leaves
HISTORY_MESSAGES = 20  # messages
PROMPT = "> "
LATER_WORD = "later"  # postpones a review of approvals


async def run_line_mode(
    home: Path | None,
    agent: str | None,
    sender: str,
    start: bool,
    words: str = "",
    *,
    mode: str = "",
) -> int:
    """Run until the end of the input, or /quit; return the exit status."""
    settings, problem = read_settings(home)
    theme = Theme(
        PLAIN_THEME.styles, Theme.detect(os.environ, sys.stdout.encoding).glyphs, has_colour=False
    )
    chat = LineModeChat()
    controller = ChatController(
        chat,
        theme,
        settings,
        home=home,
        agent=agent,
        sender=sender,
        start=start,
        mode=mode,
        has_keys=False,
    )
    chat.controller = controller
    async with controller:
        if problem:
            controller.show_notice(problem, "error")
        messages = await controller.session.load_history(HISTORY_MESSAGES)
        controller.transcript.add_history(messages)
        for line in (
            [] if messages else await build_greeting(controller.session, home or default_home())
        ):
            controller.transcript.add_notice(line, "info")
        if words:
            controller.submit_text(words)
        return await chat.run()


class LineModeChat:
    """The ChatInterface of line mode."""

    controller: ChatController

    def __init__(self) -> None:
        self._form: TerminalForm | None = None
        self._wakeup = asyncio.Event()
        self._input_lines: list[str] = []
        self._partial_line = b""
        self._is_input_closed = False
        self._last_interrupt = 0.0
        self._is_prompted = False
        self._pending_replies: dict[str, asyncio.Task[None]] = {}  # answers being sent, by ask id
        self._is_reviewing = False  # approvals of other people's runs are asked too

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._handle_interrupt)
        loop.add_reader(sys.stdin.fileno(), self._read_input)
        try:
            while True:
                self._print_finished()
                while self._input_lines:
                    self._handle_line(self._input_lines.pop(0))
                    self._print_finished()
                if self._is_input_closed and not self.controller.is_busy:
                    break
                self._show_prompt()
                await self._wakeup.wait()
                self._wakeup.clear()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGINT)
        self._print_finished()
        return 0

    def schedule_redraw(self) -> None:
        self._wakeup.set()

    def restore_unsent(self, text: str) -> None:
        self.controller.show_notice(f"not sent: {text}", "hint")

    def leave_chat(self) -> None:
        self._is_input_closed = True
        self._input_lines.clear()
        self.controller.stop_in_background()
        self._wakeup.set()

    def review_approvals(self) -> None:
        self._is_reviewing = True
        self._end_prompt()
        self._wakeup.set()

    # ── Input ───────────────────────────────────────────────────────────────────────────────

    def _read_input(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if not data:
            self._is_input_closed = True
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            lines, self._partial_line = [self._partial_line], b""
        self._input_lines += [line.decode(errors="replace") for line in lines]
        self._is_prompted = False
        self._wakeup.set()

    def _handle_line(self, line: str) -> None:
        if (
            self._form is not None
            and line.strip().casefold() == LATER_WORD
            and self._is_review(self._form)
        ):
            self._form, self._is_reviewing = None, False
        elif self._form is not None and line.strip():
            if not answer_page(self._form, line.strip()):
                self._repeat_question()
            elif self._form.current_page is None or len(self._form.pages) == 1:
                self._pending_replies[self._form.ask_id] = (
                    self.controller.send_answer_in_background(self._form)
                )
                self._form = None
        elif line.strip():
            self.controller.submit_text(line)

    def _repeat_question(self) -> None:
        """Ask again: an approval accepts only its options."""
        self._end_prompt()
        self.controller.show_notice("answer with a number or the word beside it", "hint")

    def _end_prompt(self) -> None:
        if self._is_prompted:
            sys.stdout.write("\n")
        self._is_prompted = False

    def _is_review(self, form: TerminalForm) -> bool:
        return self.controller.session.approvals.get(form.ask_id) is not None

    def _handle_interrupt(self) -> None:
        now = time.monotonic()
        if now - self._last_interrupt < SECOND_INTERRUPT_SECONDS or not self.controller.is_busy:
            self.leave_chat()
        else:
            self.controller.stop_in_background()
            self.controller.show_notice("stopping; Ctrl+C again leaves", "hint")
        self._last_interrupt = now

    # ── Output ──────────────────────────────────────────────────────────────────────────────

    def _print_finished(self) -> None:
        text = self.controller.transcript.take_text(get_line_width())
        if text:
            sys.stdout.write(f"\n{text}" if self._is_prompted else text)
            self._is_prompted = False
        sys.stdout.flush()

    def _show_prompt(self) -> None:
        """Show the question to answer, or the prompt for a message."""
        session = self.controller.session
        waiting = [*session.questions, *(session.approvals if self._is_reviewing else ())]
        self._pending_replies = {
            ask: task for ask, task in self._pending_replies.items() if not task.done()
        }
        questions = {q.ask_id: q for q in waiting if q.ask_id not in self._pending_replies}
        self._is_reviewing = self._is_reviewing and bool(questions)
        if self._form is not None and self._form.ask_id not in questions:
            self._form = None
        if self._form is None and questions:
            question = next(iter(questions.values()))
            self._form = TerminalForm(question.ask, self.controller.describe_asker(question))
            self._is_prompted = False
        if self._form is not None and self._is_input_closed:
            self.controller.stop_in_background()  # the input has ended, so no answer can come
            return
        if self._is_prompted or (self.controller.is_busy and self._form is None):
            return
        if self._form is not None and self._form.current_page is not None:
            sys.stdout.write(format_page(self._form, self._form.current_page))
            if self._is_review(self._form):
                sys.stdout.write(f"  {LATER_WORD} goes back to the chat\n")
        sys.stdout.write(PROMPT)
        sys.stdout.flush()
        self._is_prompted = True


def format_page(form: TerminalForm, page: FormPage) -> str:
    lines = [form.get_question_text(page, get_line_width())]
    for number, (label, about) in enumerate(page.options, 1):
        lines.append(escape_controls(f"  {number} {label}{f' ({about})' if about else ''}"))
    if page.approval is not None:
        lines.append("  a number, or its word")
    elif page.options:
        several = "numbers with commas between them" if page.allows_several else "a number"
        lines.append(f"  {several}, or your own words")
    return "\n".join([*lines, ""])


def answer_page(form: TerminalForm, line: str) -> bool:
    """Take a typed line as the answer to the page in view. Returns False if it is not valid."""
    page = form.current_page
    if page is None:
        return True
    if page.approval is not None:
        labels = [label for label, _ in page.options]
        chosen = match_option(line, labels)
        if chosen is None:
            return False
        line = str(labels.index(chosen) + 1)
    numbers = [word.strip() for word in line.split(",")] if page.allows_several else [line]
    if all(word.isdecimal() and 0 < int(word) <= page.own_row for word in numbers):
        page.chosen = {int(word) - 1 for word in numbers}
    else:
        page.add_text(line)
    if len(form.pages) > 1:
        form.press_key("right")
    return True
