"""The keys of the chat: their help texts and their bindings."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prompt_toolkit.filters import Always, Condition, Filter, emacs_insert_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from .app import ChatApp

KEYS = {
    "Enter": "send; while a turn runs, say it into the turn; on a question, answer it",
    "Alt+Enter, Ctrl+J": "a new line; Shift+Enter where the terminal tells it from Enter",
    "Esc, Ctrl+C": "stop the turn; once more leaves",
    "Ctrl+D": "leave, when nothing is typed",
    "Ctrl+O": "all the output of the last turn's tools",
    "Ctrl+T": "the last thought in full",
    "Tab": "complete commands, skills, @agents and paths",
    "Up, Down": "what was typed before; in a question, its options",
    "Space": "in a question, pick an option",
    "Left, Right": "in a question, the one before and the next",
    "PgUp, PgDn, Home, End": "in an approval, read the rest of the call",
    "Shift+Tab": "the next permission mode: ask, accept-edits, plan, auto",
    "Ctrl+V": "paste the picture on the clipboard",
    "Ctrl+L": "draw everything anew",
    "Ctrl+Z": "back to the shell; `fg` goes on here",
}

FORM_KEYS = {
    "up": "up",
    "down": "down",
    "left": "left",
    "right": "right",
    "tab": "tab",
    "s-tab": "backtab",
    "enter": "enter",
    "escape": "escape",
    "backspace": "backspace",
    "c-u": "clear",
    "c-w": "clear",
    "pageup": "pageup",
    "pagedown": "pagedown",
    "home": "home",
    "end": "end",
}


def create_bindings(chat: "ChatApp") -> KeyBindings:
    bindings = KeyBindings()
    in_form = Condition(lambda: chat.form is not None)
    writing, anywhere = ~in_form, Always()

    def bind(*keys: str, where: Filter = writing) -> Callable[[Callable[[], None]], None]:
        def bound(act: Callable[[], None]) -> None:
            @bindings.add(*keys, filter=where)
            def _(event: KeyPressEvent) -> None:
                act()

        return bound

    prompt = chat.prompt
    bind("enter")(chat.handle_enter)
    for keys in (("escape", "enter"), ("c-j",)):
        bind(*keys)(prompt.insert_line_break)
    bind("escape")(chat.handle_escape)
    bind("c-d")(chat.handle_end_of_input)
    bind("tab")(prompt.complete)
    bind("s-tab")(chat.handle_back_tab)
    bind("c-v")(chat.paste_picture)
    bind("backspace")(chat.handle_backspace)

    for keys in (("c-c",), ("<sigint>",)):
        bind(*keys, where=anywhere)(chat.handle_interrupt)
    bind("c-l", where=anywhere)(chat.redraw)
    bind("c-z", where=anywhere)(chat.suspend)
    bind("c-o", where=anywhere)(lambda: chat.print_details("output"))
    bind("c-t", where=anywhere)(lambda: chat.print_details("thinking"))

    @bindings.add(Keys.Any, filter=writing & emacs_insert_mode)
    def _(event: KeyPressEvent) -> None:
        prompt.buffer.insert_text(event.data * event.arg + read_queued_text(event))

    for key, name in FORM_KEYS.items():
        bind(key, where=in_form)(lambda name=name: chat.press_form_key(name))  # type: ignore[misc]

    @bindings.add(Keys.Any, filter=in_form)
    def _(event: KeyPressEvent) -> None:
        chat.press_form_key(event.data)

    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        chat.paste(event.data)

    return bindings


def read_queued_text(event: KeyPressEvent) -> str:
    """Take the characters that arrived together with a key: a paste, if the terminal marks none.

    Inserted one by one, each would copy the whole text and add an undo step.
    """
    queue = event.key_processor.input_queue
    characters = []
    while queue and (len(queue[0].key) == 1 or queue[0].key == Keys.ControlJ):
        characters.append(queue.popleft().data)
    return "".join(characters)
