"""The chat at a terminal: keys in, what is finished to the scrollback, the rest on the board.

It only holds the parts together: what was said is the talk's, how it looks the transcript's.
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from prompt_toolkit.utils import get_cwidth

from crabtalk.transport import default_home
from crabtalk_tui.screen import one_line, visible

from . import pictures
from .board import ROOM_ABOVE, Board, gap_rows
from .candidates import candidates
from .form import Form, Line, cut, wrapped
from .greeting import greeting
from .keys import bindings
from .look import Look
from .paper import Paper, is_terminal
from .past import FEW, MANY, last_of
from .prompt import Prompt
from .questions import Question
from .settings import read_settings
from .talk import Talk
from .typed import Typed

FRAME = 1 / 30  # seconds between two drawings of what an agent says
TICK = 0.1  # while a turn runs, for its clocks
AGAIN = 2.0  # seconds in which a second Esc or Ctrl+C leaves
# A form that appeared under the fingers of somebody who types would take a key for an answer.
QUIET = 0.5  # seconds without a key before one opens by itself
SCREENFULS = 3  # of what was said before, when it opens


def run(
    *, home: Path | None, agent: str | None, sender: str, start: bool, words: tuple[str, ...] = ()
) -> int:
    """The chat, until somebody leaves it: its exit status. `words` are said first."""
    if not is_terminal():
        from .plain import chat_in_lines

        return asyncio.run(chat_in_lines(home, agent, sender, start, " ".join(words)))
    return asyncio.run(Chat(home).run(agent, sender, start, " ".join(words)))


class Chat:
    """A Face of the talk."""

    def __init__(self, home: Path | None) -> None:
        self.home = home
        self.look = Look.of(os.environ, sys.stdout.encoding)
        self.form: Form | None = None
        self.paper = Paper(sys.stdout, is_plain=not self.look.has_colour)
        root = home or default_home()
        self.prompt = Prompt(Typed(root / "history"), self._candidates, self.paper.get_size)
        self._pictures = root / "pictures"
        self._postponed: set[str] = set()  # questions one has looked at and put off
        self._forms: dict[str, Form] = {}  # theirs, as they were left
        self._live: list[str] = []
        self._frame: asyncio.TimerHandle | None = None
        self._drawn = 0.0
        self._pressed = 0.0  # when Esc or Ctrl+C last stopped something
        self._typed = 0.0  # when any key was last pressed
        self._hint = ""

    async def run(self, agent: str | None, sender: str, start: bool, words: str) -> int:
        settings, complaint = read_settings(self.home)
        self.talk = Talk(
            self, self.look, settings, home=self.home, agent=agent, sender=sender, start=start
        )
        self.board = Board(
            self.paper,
            self.prompt,
            bindings(self),
            live=lambda: self._live,
            waiting=self._waiting,
            form=self._form_lines,
            status=self._status,
            resized=self._take_live,
        )
        self.board.key_processor.after_key_press += self._note_key
        async with self.talk:
            if complaint:
                self.talk.noticed(complaint, "error")
            await self._open()
            if words:
                self.talk.say(words)
            # Whoever ends it from outside gets a terminal back that echoes what is typed.
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.leave)
            with suppress(EOFError):
                return await self.board.run_async(handle_sigint=False)
        return 0

    async def _open(self) -> None:
        """What was said before, or for whoever comes first, a greeting."""
        session, transcript = self.talk.session, self.talk.transcript
        lines, width = SCREENFULS * self._rows(), self._columns()
        messages = await session.history(FEW)
        shown, is_enough = last_of(messages, lines, width)
        if not is_enough and len(messages) == FEW:
            shown, _ = last_of(await session.history(MANY), lines, width)
        if shown:
            transcript.history(shown)
        else:
            for line in await greeting(session, self.home or default_home()):
                transcript.notice(line, "info")
        self.board.print(transcript.take(width))

    def _note_key(self, _: object) -> None:
        self._typed = time.monotonic()

    # ── What keys do ────────────────────────────────────────────────────────────────────────

    def enter(self) -> None:
        if self.prompt.choose():
            return
        if not self.prompt.text.strip():
            self._postponed.clear()
        if (question := self._question()) is not None:
            self._open_form(question)
        elif self.prompt.text.strip():
            self.talk.say(self.prompt.take())

    def escape(self) -> None:
        if self.prompt.is_choosing:
            self.prompt.buffer.cancel_completion()
        else:
            self._stop_or_leave("Esc", idle=False)

    def interrupt(self) -> None:
        self._close_form()
        self._stop_or_leave("Ctrl+C", idle=True)

    def end_of_input(self) -> None:
        if not self.prompt.buffer.text:
            self.leave()
        else:
            self.prompt.buffer.delete()

    def erase(self) -> None:
        if not self.prompt.erase_paste():
            self.prompt.buffer.delete_before_cursor()

    def paste(self, text: str) -> None:
        if self.form is not None:
            self.form.paste(text)
        elif (path := pictures.dropped(text)) is not None:
            self.prompt.buffer.insert_text(path)
        elif not self.prompt.paste(text):
            self.talk.noticed("that is too long to be sent; save it and name the file", "error")

    def draw_anew(self) -> None:
        """What is below; what was printed is the terminal's, and stays."""
        self.board.renderer.erase()
        self.board.invalidate()

    def suspend(self) -> None:
        self.board.suspend_to_background()

    def paste_picture(self) -> None:
        self.board.create_background_task(self._paste_picture())

    def expand(self, what: Literal["thinking", "output"]) -> None:
        text = self.talk.transcript.full(what, self._columns())
        if text:
            self.board.print(self.talk.transcript.take(self._columns()) + text)
        else:
            nothing = "no thoughts" if what == "thinking" else "no output"
            self.talk.noticed(f"{nothing} to show", "hint")

    def press(self, key: str) -> None:
        """In the form."""
        form = self.form
        if form is None:
            return
        outcome = form.press(key)
        if outcome == "sent":
            self._close_form()
            self._postponed.add(form.ask_id)  # until the daemon has taken it
            self.talk.answer_soon(form)
        elif outcome == "left":
            self._postponed.add(form.ask_id)
            self._close_form()
            self._forms[form.ask_id] = form

    def _stop_or_leave(self, key: str, *, idle: bool) -> None:
        now = time.monotonic()
        if now - self._pressed < AGAIN:
            self.leave()
        elif self.talk.is_busy and not self.talk.is_stopping:
            self._press_again(key, now)
            self.talk.stop_soon()
        elif idle:
            self._press_again(key, now)

    def _press_again(self, key: str, now: float) -> None:
        self._pressed = now
        self._hint = f"{key} again leaves"
        self.board.invalidate()
        asyncio.get_running_loop().call_later(AGAIN, self._forget_hint)

    def _forget_hint(self) -> None:
        if time.monotonic() - self._pressed >= AGAIN:
            self._hint = ""
            self.changed()

    async def _paste_picture(self) -> None:
        path = await pictures.from_clipboard(self._pictures)
        if path is None:
            self.talk.noticed("no picture on the clipboard; drop its file here instead", "hint")
        else:
            self.prompt.buffer.insert_text(f"{path} ")

    # ── A Face ──────────────────────────────────────────────────────────────────────────────

    def changed(self) -> None:
        """Draws within a frame; keys are drawn at once, and wait for nothing here."""
        if self._frame is None:
            wait = max(self._drawn + FRAME - time.monotonic(), 0)
            self._frame = asyncio.get_running_loop().call_later(wait, self._draw)

    def unsent(self, text: str) -> None:
        self.prompt.restore(text)
        self.changed()

    def leave(self) -> None:
        if self.prompt.text.strip():
            self.prompt.take()  # found again with Up
        if self.board.is_running and not self.board.is_done:
            self.board.exit(result=0)

    def _draw(self) -> None:
        self._frame = None
        self._drawn = time.monotonic()
        self._look_for_questions()
        finished = self.talk.transcript.take(self._columns())
        self._take_live()
        if finished:
            self.board.print(finished)
        else:
            self.board.invalidate()
        if self.talk.is_busy or self._question() is not None:
            asyncio.get_running_loop().call_later(TICK, self.changed)

    def _take_live(self) -> None:
        now = time.monotonic()
        self._live = self.talk.transcript.live(self._columns(), self._live_rows(), now)

    # ── Questions ───────────────────────────────────────────────────────────────────────────

    def _question(self) -> Question | None:
        """The oldest that nobody has put off."""
        for question in self.talk.session.questions:
            if question.ask_id not in self._postponed:
                return question
        return None

    def _look_for_questions(self) -> None:
        asked = {question.ask_id for question in self.talk.session.questions}
        self._postponed &= asked
        if self.form is not None and self.form.ask_id not in asked:
            self._close_form()  # somebody else answered it, or the turn is over
        is_quiet = time.monotonic() - self._typed > QUIET and not self.prompt.buffer.text
        if self.form is None and is_quiet and (question := self._question()) is not None:
            self._open_form(question)

    def _open_form(self, question: Question) -> None:
        self.form = self._forms.pop(question.ask_id, None) or Form(question.ask)
        self.board.fill(True)
        if self.form.is_cut(self._columns(), self._form_rows()):
            for page in self.form.pages:  # nobody says yes to what they cannot read
                lines = wrapped(visible(page.question, layout=True), self._columns())
                self.board.print("\n".join(["", *lines, ""]))
        self.board.invalidate()

    def _close_form(self) -> None:
        self.form = None
        self.board.fill(False)
        self.board.invalidate()

    # ── What is on the board ────────────────────────────────────────────────────────────────

    def _columns(self) -> int:
        return self.paper.get_size().columns

    def _rows(self) -> int:
        return self.paper.get_size().rows

    def _form_rows(self) -> int:
        above = ROOM_ABOVE + gap_rows(self.paper) + min(len(self._live), 2)
        return max(self._rows() - above - 1, 4)

    def _live_rows(self) -> int:
        if self.form is not None:
            return 2
        menu = 6 if self.prompt.is_choosing else 0
        lines = min(self.prompt.buffer.document.line_count, self._rows() // 3)
        above = ROOM_ABOVE + gap_rows(self.paper)
        room = self._rows() - above - 1 - len(self._waiting()) - menu - lines
        return max(min(room, self._rows() // 2), 1)

    def _form_lines(self) -> list[Line] | None:
        if self.form is None:
            return None
        return self.form.lines(self._columns(), self._form_rows())

    def _status(self) -> list[Line]:
        status = self.talk.status(self._hint, is_filling=self.form is not None)
        return [status.line(self._columns())]

    def _waiting(self) -> list[Line]:
        """What was said and is not heard yet, two of each at most."""
        said = [*self.talk.steering[-2:], *(words.text for words in [*self.talk.waiting][:2])]
        width = self._columns()
        mark = f"{self.look.glyphs.prompt} "
        return [
            [("class:waiting", mark + cut(one_line(text), max(width - get_cwidth(mark), 1)))]
            for text in said
        ]

    def _candidates(self, text: str, cursor: int) -> Any:
        return candidates(text, cursor, self.talk.session.catalogue)
