"""The chat at a terminal: handles keys, prints finished text to the scrollback, redraws the rest.

It connects the parts: ChatController has the conversation, ChatTranscript renders it.
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
from .code_highlighting import preload_lexers
from .completion import find_candidates
from .controller import ChatController
from .form import TerminalForm
from .form_queue import FormQueue
from .greeting import build_greeting
from .input_history import InputHistory
from .input_prompt import InputPrompt
from .key_bindings import create_bindings
from .live_display import LiveDisplay
from .pending_questions import ChatQuestion
from .recent_history import FIRST_FETCH, SECOND_FETCH, select_last
from .screen_layout import ScreenLayout
from .settings import read_settings
from .terminal_output import TerminalOutput, is_terminal
from .theme import Theme

FRAME_SECONDS = 1 / 25  # seconds between two drawings of what an agent says
TICK_SECONDS = 0.1  # while a turn runs, for its clocks
PRELOAD_DELAY = 0.3  # seconds after which the colours of code are loaded, in a thread
SECOND_PRESS_SECONDS = 2.0  # seconds in which a second Esc or Ctrl+C leaves
# Seconds without a key before a form opens by itself: a form that opens while a person types would
# take a key for an answer.
QUIET_SECONDS = 0.5
HISTORY_SCREENS = 3  # screens of earlier messages shown when the chat opens


def run_chat(
    *,
    home: Path | None,
    agent: str | None,
    sender: str,
    start: bool,
    mode: str = "",
    words: tuple[str, ...] = (),
) -> int:
    """Run the chat until the person leaves it; return its exit status. `words` are sent first."""
    if not is_terminal():
        from .line_mode import run_line_mode

        return asyncio.run(run_line_mode(home, agent, sender, start, " ".join(words), mode=mode))
    return asyncio.run(ChatApp(home).run(agent, sender, start, " ".join(words), mode=mode))


class ChatApp:
    """The ChatInterface of a full terminal."""

    def __init__(self, home: Path | None) -> None:
        self.home = home
        self.theme = Theme.detect(os.environ, sys.stdout.encoding)
        self.forms = FormQueue()
        self.output = TerminalOutput(sys.stdout, is_plain=not self.theme.has_colour)
        root = home or default_home()
        self.prompt = InputPrompt(
            InputHistory(root / "history"), self._find_completions, self.output.get_size
        )
        self._pictures = root / "pictures"
        self._frame_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._last_draw = 0.0
        self._last_stop_key = 0.0  # when Esc or Ctrl+C last stopped something
        self._last_key = 0.0  # when any key was last pressed

    @property
    def form(self) -> TerminalForm | None:
        """The form in view, which gets the keys."""
        return self.forms.form

    async def run(
        self, agent: str | None, sender: str, start: bool, words: str, *, mode: str = ""
    ) -> int:
        settings, problem = read_settings(self.home)
        self.controller = ChatController(
            self,
            self.theme,
            settings,
            home=self.home,
            agent=agent,
            sender=sender,
            start=start,
            mode=mode,
        )
        self.layout = ScreenLayout(self.output, self.prompt, self.forms, self.controller)
        self.display = LiveDisplay(
            self.output,
            self.prompt,
            create_bindings(self),
            live=self.layout.live_lines,
            waiting=self.layout.queued_lines,
            form=self.layout.form_lines,
            status=self.layout.status_lines,
            resized=self.layout.refresh_live,
        )
        self.display.key_processor.after_key_press += self._record_key_press
        async with self.controller:
            if problem:
                self.controller.show_notice(problem, "error")
            await self._print_history()
            if words:
                self.controller.submit_text(words)
            # Also when a signal ends the chat, the terminal must echo again.
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.leave_chat)
            loop = asyncio.get_running_loop()
            loop.call_later(PRELOAD_DELAY, loop.run_in_executor, None, preload_lexers)
            # Imported objects live on: a garbage collection over them would delay a key press.
            gc.freeze()
            with suppress(EOFError):
                await self.display.run_async(handle_sigint=False)
            self._print_rest()
        return 0

    def _print_rest(self) -> None:
        """Leave the unfinished answer on the screen."""
        for timer in (self._frame_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()
        self.controller.transcript.interrupt_turn(time.monotonic())
        self.display.print_above(self.controller.transcript.take_text(self.layout.columns))

    async def _print_history(self) -> None:
        """Print the end of the history; the greeting if there is none."""
        session, transcript = self.controller.session, self.controller.transcript
        lines, width = HISTORY_SCREENS * self.layout.rows, self.layout.columns
        messages = await session.load_history(FIRST_FETCH)
        shown, is_enough = select_last(messages, lines, width)
        if not is_enough and len(messages) == FIRST_FETCH:
            shown, _ = select_last(await session.load_history(SECOND_FETCH), lines, width)
        if shown:
            transcript.add_history(shown)
        else:
            for line in await build_greeting(session, self.home or default_home()):
                transcript.add_notice(line, "info")
        self.display.print_above(transcript.take_text(width))

    def _record_key_press(self, _: object) -> None:
        self._last_key = time.monotonic()

    # ── Key handlers ────────────────────────────────────────────────────────────────────────

    def handle_enter(self) -> None:
        if self.prompt.accept_completion():
            return
        questions = self.controller.session.questions
        is_empty = not self.prompt.text.strip()
        question = self.forms.find_first(questions) if is_empty else self.forms.find_next(questions)
        if question is not None:
            self._open_form(question)
        elif not is_empty:
            self.controller.submit_text(self.prompt.take_text())

    def handle_escape(self) -> None:
        if self.prompt.has_menu:
            self.prompt.buffer.cancel_completion()
        else:
            self._stop_or_leave("Esc", idle=False)

    def handle_interrupt(self) -> None:
        self.press_form_key("escape")
        self._stop_or_leave("Ctrl+C", idle=True)

    def handle_end_of_input(self) -> None:
        if not self.prompt.buffer.text:
            self.leave_chat()
        else:
            self.prompt.buffer.delete()

    def handle_backspace(self) -> None:
        if not self.prompt.erase_paste():
            self.prompt.buffer.delete_before_cursor()

    def paste(self, text: str) -> None:
        if self.form is not None:
            self.form.paste_text(text)
        elif (path := pictures.parse_dropped_path(text)) is not None:
            self.prompt.buffer.insert_text(path)
        elif not self.prompt.paste(text):
            self.controller.show_notice(
                "that is too long to be sent; save it and name the file", "error"
            )

    def handle_back_tab(self) -> None:
        """Back in the menu of completions; without a menu, the next permission mode."""
        if self.prompt.has_menu:
            self.prompt.buffer.complete_previous()
        else:
            self.controller.cycle_mode()

    def redraw(self) -> None:
        """Redraw the live part. Printed text belongs to the terminal and stays."""
        self.display.renderer.erase()
        self.display.invalidate()

    def suspend(self) -> None:
        self.display.suspend_to_background()

    def paste_picture(self) -> None:
        self.display.create_background_task(self._paste_picture())

    def print_details(self, what: Literal["thinking", "output"]) -> None:
        text = self.controller.transcript.render_full(what, self.layout.columns)
        if text:
            self.display.print_above(
                self.controller.transcript.take_text(self.layout.columns) + text
            )
        else:
            nothing = "no thoughts" if what == "thinking" else "no output"
            self.controller.show_notice(f"{nothing} to show", "hint")

    def press_form_key(self, key: str) -> None:
        """Press a key in the open form, if there is one."""
        form, outcome = self.form, self.forms.press_key(key)
        if form is not None and outcome:
            self.display.focus_form(False)
            if outcome == "sent":
                self.controller.send_answer_in_background(form)

    def _stop_or_leave(self, key: str, *, idle: bool) -> None:
        now = time.monotonic()
        if now - self._last_stop_key < SECOND_PRESS_SECONDS:
            self.leave_chat()
        elif self.controller.is_busy and not self.controller.is_stopping:
            self._offer_second_press(key, now)
            self.controller.stop_in_background()
        elif idle:
            self._offer_second_press(key, now)

    def _offer_second_press(self, key: str, now: float) -> None:
        self._last_stop_key = now
        self.layout.hint = f"{key} again leaves"
        self.display.invalidate()
        asyncio.get_running_loop().call_later(SECOND_PRESS_SECONDS, self._clear_hint, now)

    def _clear_hint(self, pressed: float) -> None:
        if pressed == self._last_stop_key:
            self.layout.hint = ""
            self.schedule_redraw()

    async def _paste_picture(self) -> None:
        path = await pictures.save_clipboard_picture(self._pictures)
        if path is None:
            self.controller.show_notice(
                "no picture on the clipboard; drop its file here instead", "hint"
            )
        else:
            self.prompt.buffer.insert_text(f"{path} ")

    # ── ChatInterface ───────────────────────────────────────────────────────────────────────

    def schedule_redraw(self) -> None:
        """Draw within one frame. Key presses do not come here; they are drawn at once."""
        if self._frame_timer is None:
            wait = max(self._last_draw + FRAME_SECONDS - time.monotonic(), 0)
            self._frame_timer = asyncio.get_running_loop().call_later(wait, self._draw)

    def restore_unsent(self, text: str) -> None:
        self.prompt.restore(text)
        self.schedule_redraw()

    def leave_chat(self) -> None:
        if self.prompt.text.strip():
            self.prompt.take_text()  # so that Up finds it again
        if self.display.is_running and not self.display.is_done:
            self.display.exit(result=0)

    def review_approvals(self) -> None:
        self.forms.is_reviewing = True
        question = self.forms.find_first(self.controller.session.approvals)
        if self.form is None and question is not None:
            self._open_form(question)

    def _draw(self) -> None:
        self._frame_timer = None
        self._last_draw = time.monotonic()
        self.output.update_size()
        self._update_form()
        finished = self.controller.transcript.take_text(self.layout.columns)
        self.layout.refresh_live()
        if finished:
            self.display.print_above(finished)
        else:
            self.display.invalidate()
        has_question = self.forms.find_next(self._list_open_questions()) is not None
        if self._tick_timer is None and (self.controller.is_busy or has_question):
            self._tick_timer = asyncio.get_running_loop().call_later(
                TICK_SECONDS, self._handle_tick
            )

    def _handle_tick(self) -> None:
        self._tick_timer = None
        self.schedule_redraw()

    # ── Questions ───────────────────────────────────────────────────────────────────────────

    def _list_open_questions(self) -> list[ChatQuestion]:
        """List the questions that open by themselves; other people's approvals only in a review."""
        session = self.controller.session
        return [*session.questions, *(session.approvals if self.forms.is_reviewing else ())]

    def _update_form(self) -> None:
        session = self.controller.session
        if not len(session.approvals):
            self.forms.is_reviewing = False
        questions = self._list_open_questions()
        if self.forms.discard_answered(
            [*session.questions, *session.approvals]
        ):  # another client answered it, or the turn is over
            self.display.focus_form(False)
        is_quiet = time.monotonic() - self._last_key > QUIET_SECONDS and not self.prompt.buffer.text
        if self.form is None and is_quiet:
            question = self.forms.find_next(questions)
            if question is not None:
                self._open_form(question)

    def _open_form(self, question: ChatQuestion) -> None:
        form = self.forms.open_form(question, self.controller.describe_asker(question))
        self.display.focus_form(True)
        for page in form.pages:  # a person must be able to read the whole question
            if form.is_question_cut(page, self.layout.columns, self.layout.max_form_rows):
                page.is_printed_above = True
                lines = form.wrap_question(page, self.layout.columns)
                self.display.print_above("\n".join(["", *lines, ""]))

    def _find_completions(self, text: str, cursor: int) -> Any:
        return find_candidates(text, cursor, self.controller.session.catalogue)
