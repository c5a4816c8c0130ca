"""The chat line by line: for terminals whose cursor cannot be moved, and for no terminal at all.

The same talk and the same transcript; only what is finished is printed, and nothing is ever drawn
over. A line is a message, or the answer to what was asked.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from crabtalk.component.command import line_width, visible
from crabtalk.transport import default_home
from crabtalk_tui.approval_text import match_option

from .form import Form, Page
from .greeting import greeting
from .look import PLAIN, Look
from .settings import read_settings
from .talk import Talk

AGAIN = 2.0  # seconds in which a second Ctrl+C leaves
HISTORY = 20  # messages
PROMPT = "> "
LATER = "later"  # what puts a review of approvals off


async def chat_in_lines(
    home: Path | None,
    agent: str | None,
    sender: str,
    start: bool,
    words: str = "",
    *,
    mode: str = "",
) -> int:
    """Until the end of the input, or /quit: its exit status."""
    settings, complaint = read_settings(home)
    look = Look(PLAIN.styles, Look.of(os.environ, sys.stdout.encoding).glyphs, has_colour=False)
    face = Lines()
    talk = Talk(
        face,
        look,
        settings,
        home=home,
        agent=agent,
        sender=sender,
        start=start,
        mode=mode,
        has_keys=False,
    )
    face.talk = talk
    async with talk:
        if complaint:
            talk.noticed(complaint, "error")
        messages = await talk.session.history(HISTORY)
        talk.transcript.history(messages)
        for line in [] if messages else await greeting(talk.session, home or default_home()):
            talk.transcript.notice(line, "info")
        if words:
            talk.say(words)
        return await face.run()


class Lines:
    """A Face of the talk."""

    talk: Talk

    def __init__(self) -> None:
        self._form: Form | None = None
        self._news = asyncio.Event()
        self._typed: list[str] = []
        self._rest = b""
        self._is_over = False
        self._pressed = 0.0
        self._is_prompted = False
        self._sent: dict[str, asyncio.Task[None]] = {}  # answers on their way, by ask
        self._is_reviewing = False  # approvals of other people's runs are put too

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_reader(sys.stdin.fileno(), self._read)
        try:
            while True:
                self._print()
                while self._typed:
                    self._take(self._typed.pop(0))
                    self._print()
                if self._is_over and not self.talk.is_busy:
                    break
                self._invite()
                await self._news.wait()
                self._news.clear()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGINT)
        self._print()
        return 0

    def changed(self) -> None:
        self._news.set()

    def unsent(self, text: str) -> None:
        self.talk.noticed(f"not sent: {text}", "hint")

    def leave(self) -> None:
        self._is_over = True
        self._typed.clear()
        self.talk.stop_soon()
        self._news.set()

    def review_approvals(self) -> None:
        self._is_reviewing = True
        self._end_prompt()
        self._news.set()

    # ── In ──────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            self._is_over = True
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            lines, self._rest = [self._rest], b""
        self._typed += [line.decode(errors="replace") for line in lines]
        self._is_prompted = False
        self._news.set()

    def _take(self, line: str) -> None:
        if (
            self._form is not None
            and line.strip().casefold() == LATER
            and self._is_review(self._form)
        ):
            self._form, self._is_reviewing = None, False
        elif self._form is not None and line.strip():
            if not answered(self._form, line.strip()):
                self._repeat_question()
            elif self._form.page is None or len(self._form.pages) == 1:
                self._sent[self._form.ask_id] = self.talk.answer_soon(self._form)
                self._form = None
        elif line.strip():
            self.talk.say(line)

    def _repeat_question(self) -> None:
        """An approval takes its options and nothing else."""
        self._end_prompt()
        self.talk.noticed("answer with a number or the word beside it", "hint")

    def _end_prompt(self) -> None:
        if self._is_prompted:
            sys.stdout.write("\n")
        self._is_prompted = False

    def _is_review(self, form: Form) -> bool:
        return self.talk.session.approvals.get(form.ask_id) is not None

    def _interrupted(self) -> None:
        now = time.monotonic()
        if now - self._pressed < AGAIN or not self.talk.is_busy:
            self.leave()
        else:
            self.talk.stop_soon()
            self.talk.noticed("stopping; Ctrl+C again leaves", "hint")
        self._pressed = now

    # ── Out ─────────────────────────────────────────────────────────────────────────────────

    def _print(self) -> None:
        text = self.talk.transcript.take(line_width())
        if text:
            sys.stdout.write(f"\n{text}" if self._is_prompted else text)
            self._is_prompted = False
        sys.stdout.flush()

    def _invite(self) -> None:
        """Asks for what comes next: an answer, or whatever is to be said."""
        session = self.talk.session
        waiting = [*session.questions, *(session.approvals if self._is_reviewing else ())]
        self._sent = {ask: task for ask, task in self._sent.items() if not task.done()}
        questions = {each.ask_id: each for each in waiting if each.ask_id not in self._sent}
        self._is_reviewing = self._is_reviewing and bool(questions)
        if self._form is not None and self._form.ask_id not in questions:
            self._form = None
        if self._form is None and questions:
            question = next(iter(questions.values()))
            self._form = Form(question.ask, self.talk.asker(question))
            self._is_prompted = False
        if self._form is not None and self._is_over:
            self.talk.stop_soon()  # nobody is left to answer
            return
        if self._is_prompted or (self.talk.is_busy and self._form is None):
            return
        if self._form is not None and self._form.page is not None:
            sys.stdout.write(as_text(self._form, self._form.page))
            if self._is_review(self._form):
                sys.stdout.write(f"  {LATER} goes back to the chat\n")
        sys.stdout.write(PROMPT)
        sys.stdout.flush()
        self._is_prompted = True


def as_text(form: Form, page: Page) -> str:
    lines = [form.wording(page, line_width())]
    for number, (label, about) in enumerate(page.options, 1):
        lines.append(visible(f"  {number} {label}{f' ({about})' if about else ''}"))
    if page.approval is not None:
        lines.append("  a number, or its word")
    elif page.options:
        several = "numbers with commas between them" if page.many else "a number"
        lines.append(f"  {several}, or your own words")
    return "\n".join([*lines, ""])


def answered(form: Form, line: str) -> bool:
    """What was typed is the answer to the page in view. False when it cannot be one."""
    page = form.page
    if page is None:
        return True
    if page.approval is not None:
        labels = [label for label, _ in page.options]
        chosen = match_option(line, labels)
        if chosen is None:
            return False
        line = str(labels.index(chosen) + 1)
    numbers = [word.strip() for word in line.split(",")] if page.many else [line]
    if all(word.isdecimal() and 0 < int(word) <= page.own for word in numbers):
        page.chosen = {int(word) - 1 for word in numbers}
    else:
        page.write(line)
    if len(form.pages) > 1:
        form.press("right")
    return True
