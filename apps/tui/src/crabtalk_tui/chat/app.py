"""The chat at a terminal: keys in, what is finished to the scrollback, the rest on the board.

It only holds the parts together: what was said is the talk's, how it looks the transcript's.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from crabtalk.transport import default_home

from . import pictures
from .asking import Asking
from .board import Board
from .candidates import candidates
from .form import Form
from .greeting import greeting
from .highlight import warm
from .keys import bindings
from .look import Look
from .paper import Paper, is_terminal
from .past import FEW, MANY, last_of
from .prompt import Prompt
from .questions import Question
from .settings import read_settings
from .talk import Talk
from .typed import Typed
from .view import View

FRAME = 1 / 25  # seconds between two drawings of what an agent says
TICK = 0.1  # while a turn runs, for its clocks
SOON = 0.3  # seconds after which the colours of code are loaded, in a thread
AGAIN = 2.0  # seconds in which a second Esc or Ctrl+C leaves
# A form that appeared under the fingers of somebody who types would take a key for an answer.
QUIET = 0.5  # seconds without a key before one opens by itself
SCREENFULS = 3  # of what was said before, when it opens


def run(
    *,
    home: Path | None,
    agent: str | None,
    sender: str,
    start: bool,
    mode: str = "",
    words: tuple[str, ...] = (),
) -> int:
    """The chat, until somebody leaves it: its exit status. `words` are said first."""
    if not is_terminal():
        from .plain import chat_in_lines

        return asyncio.run(chat_in_lines(home, agent, sender, start, " ".join(words), mode=mode))
    return asyncio.run(Chat(home).run(agent, sender, start, " ".join(words), mode=mode))


class Chat:
    """A Face of the talk."""

    def __init__(self, home: Path | None) -> None:
        self.home = home
        self.look = Look.of(os.environ, sys.stdout.encoding)
        self.asking = Asking()
        self.paper = Paper(sys.stdout, is_plain=not self.look.has_colour)
        root = home or default_home()
        self.prompt = Prompt(Typed(root / "history"), self._candidates, self.paper.get_size)
        self._pictures = root / "pictures"
        self._frame: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._drawn = 0.0
        self._pressed = 0.0  # when Esc or Ctrl+C last stopped something
        self._typed = 0.0  # when any key was last pressed

    @property
    def form(self) -> Form | None:
        """The one in view, which gets the keys."""
        return self.asking.form

    async def run(
        self, agent: str | None, sender: str, start: bool, words: str, *, mode: str = ""
    ) -> int:
        settings, complaint = read_settings(self.home)
        self.talk = Talk(
            self,
            self.look,
            settings,
            home=self.home,
            agent=agent,
            sender=sender,
            start=start,
            mode=mode,
        )
        self.view = View(self.paper, self.prompt, self.asking, self.talk)
        self.board = Board(
            self.paper,
            self.prompt,
            bindings(self),
            live=self.view.live,
            waiting=self.view.waiting,
            form=self.view.form,
            status=self.view.status,
            resized=self.view.refresh,
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
            loop = asyncio.get_running_loop()
            loop.call_later(SOON, loop.run_in_executor, None, warm)
            # All that was loaded stays: to look through it for garbage would hold up a key.
            gc.freeze()
            with suppress(EOFError):
                await self.board.run_async(handle_sigint=False)
            self._close()
        return 0

    def _close(self) -> None:
        """What was being said is left on the screen as far as it came."""
        for timer in (self._frame, self._tick):
            if timer is not None:
                timer.cancel()
        self.talk.transcript.cut(time.monotonic())
        self.board.print(self.talk.transcript.take(self.view.columns))

    async def _open(self) -> None:
        """What was said before, or for whoever comes first, a greeting."""
        session, transcript = self.talk.session, self.talk.transcript
        lines, width = SCREENFULS * self.view.rows, self.view.columns
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
        questions = self.talk.session.questions
        is_empty = not self.prompt.text.strip()
        question = self.asking.take_up(questions) if is_empty else self.asking.next_of(questions)
        if question is not None:
            self._open_form(question)
        elif not is_empty:
            self.talk.say(self.prompt.take())

    def escape(self) -> None:
        if self.prompt.is_choosing:
            self.prompt.buffer.cancel_completion()
        else:
            self._stop_or_leave("Esc", idle=False)

    def interrupt(self) -> None:
        self.press("escape")
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

    def back_tab(self) -> None:
        """Back in the menu of completions; without a menu, the next permission mode."""
        if self.prompt.is_choosing:
            self.prompt.buffer.complete_previous()
        else:
            self.talk.cycle_mode()

    def draw_anew(self) -> None:
        """What is below; what was printed is the terminal's, and stays."""
        self.board.renderer.erase()
        self.board.invalidate()

    def suspend(self) -> None:
        self.board.suspend_to_background()

    def paste_picture(self) -> None:
        self.board.create_background_task(self._paste_picture())

    def expand(self, what: Literal["thinking", "output"]) -> None:
        text = self.talk.transcript.full(what, self.view.columns)
        if text:
            self.board.print(self.talk.transcript.take(self.view.columns) + text)
        else:
            nothing = "no thoughts" if what == "thinking" else "no output"
            self.talk.noticed(f"{nothing} to show", "hint")

    def press(self, key: str) -> None:
        """In the form, if there is one."""
        form, outcome = self.form, self.asking.press(key)
        if form is not None and outcome:
            self.board.fill(False)
            if outcome == "sent":
                self.talk.answer_soon(form)

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
        self.view.hint = f"{key} again leaves"
        self.board.invalidate()
        asyncio.get_running_loop().call_later(AGAIN, self._forget_hint, now)

    def _forget_hint(self, pressed: float) -> None:
        if pressed == self._pressed:
            self.view.hint = ""
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

    def review_approvals(self) -> None:
        self.asking.is_reviewing = True
        question = self.asking.take_up(self.talk.session.approvals)
        if self.form is None and question is not None:
            self._open_form(question)

    def _draw(self) -> None:
        self._frame = None
        self._drawn = time.monotonic()
        self.paper.measure()
        self._look_for_questions()
        finished = self.talk.transcript.take(self.view.columns)
        self.view.refresh()
        if finished:
            self.board.print(finished)
        else:
            self.board.invalidate()
        waits = self.asking.next_of(self._waiting_questions()) is not None
        if self._tick is None and (self.talk.is_busy or waits):
            self._tick = asyncio.get_running_loop().call_later(TICK, self._ticked)

    def _ticked(self) -> None:
        self._tick = None
        self.changed()

    # ── Questions ───────────────────────────────────────────────────────────────────────────

    def _waiting_questions(self) -> list[Question]:
        """Those that are put by themselves: approvals for others only during a review."""
        session = self.talk.session
        return [*session.questions, *(session.approvals if self.asking.is_reviewing else ())]

    def _look_for_questions(self) -> None:
        session = self.talk.session
        if not len(session.approvals):
            self.asking.is_reviewing = False
        questions = self._waiting_questions()
        if self.asking.settle(
            [*session.questions, *session.approvals]
        ):  # somebody else answered it, or the turn is over
            self.board.fill(False)
        is_quiet = time.monotonic() - self._typed > QUIET and not self.prompt.buffer.text
        if self.form is None and is_quiet:
            question = self.asking.next_of(questions)
            if question is not None:
                self._open_form(question)

    def _open_form(self, question: Question) -> None:
        form = self.asking.open(question, self.talk.asker(question))
        self.board.fill(True)
        for page in form.pages:  # nobody says yes to what they cannot read
            if form.is_cut(page, self.view.columns, self.view.form_rows):
                page.is_above = True
                lines = form.question(page, self.view.columns)
                self.board.print("\n".join(["", *lines, ""]))

    def _candidates(self, text: str, cursor: int) -> Any:
        return candidates(text, cursor, self.talk.session.catalogue)
