"""Commands among the arguments of a program whose options are not known in detail.

Every word that could start a command is a guess. A guess can only forbid a line, never allow it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .shell_commands import UnreadableCommandError, Word, base_name
from .shell_programs import BUILTINS, SHELLS

MOST_GUESSES = 40


@dataclass(frozen=True, slots=True)
class InnerCommand:
    """Either the words of a command, or a text for a shell to read."""

    words: tuple[Word, ...] = ()
    text: str | None = None
    assignments: tuple[tuple[str, Word], ...] = ()
    is_guess: bool = False
    starts_shell: bool = False


def guess_strictly(words: Sequence[Word]) -> Iterator[InnerCommand]:
    if any(not word.is_literal for word in words):
        raise UnreadableCommandError("which program it runs is only known at run time")
    yield from guess(words)


def guess(words: Sequence[Word]) -> Iterator[InnerCommand]:
    """Every word that could be the start of a command."""
    if len(words) > MOST_GUESSES:
        raise UnreadableCommandError(
            f"it has more than {MOST_GUESSES} words to a program that runs others"
        )
    for at, word in enumerate(words):
        if not word.is_literal:
            continue
        if re.fullmatch(r"[\w./+-]+", word.text) and not word.text.startswith("-"):
            name = base_name(word.text)
            if name not in BUILTINS:
                yield InnerCommand(
                    words=tuple(words[at:]), is_guess=True, starts_shell=name in SHELLS
                )
    yield from guess_option_texts(words, all_words=True)


def guess_option_texts(words: Sequence[Word], all_words: bool = False) -> Iterator[InnerCommand]:
    """Texts with spaces that stand after an option or after an equals sign."""
    for at, word in enumerate(words):
        follows_option = at > 0 and words[at - 1].text.startswith("-")
        if word.is_literal and (all_words or follows_option or re.match(r"[-+:]|\w+=", word.text)):
            yield from guess_text(word.text)


def guess_text(text: str) -> Iterator[InnerCommand]:
    """The text, what follows an equals sign in it, and what follows an exclamation mark."""
    readings = {text} | {
        text[found.end() :] for found in re.finditer(r"[=!|]|EXEC:|SYSTEM:", text[:200])
    }
    for reading in readings:
        if re.match(r"\s*[\w./]+\s+\S", reading) or (
            reading != text and re.fullmatch(r"[\w./]+", reading)
        ):
            yield InnerCommand(text=reading, is_guess=True)
