"""Modes: how much an agent may do without being asked, chosen for a conversation or a turn."""

from enum import IntEnum


class Mode(IntEnum):
    """From the strictest to the most permissive."""

    PLAN = 0
    ASK = 1
    ACCEPT_EDITS = 2
    AUTO = 3

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


# What each does, in a sentence for people.
DESCRIPTIONS = {
    Mode.PLAN: "reads only: what could change something is refused",
    Mode.ASK: "reads and harmless commands run; edits and other commands ask first",
    Mode.ACCEPT_EDITS: "edits of files run too; other commands ask first",
    Mode.AUTO: "everything runs that the agent's file allows",
}
_BY_WORD = {mode.word: mode for mode in Mode}
WORDS = tuple(_BY_WORD)


def parse_mode(word: str) -> Mode:
    """Raises ValueError with a sentence for what is no mode."""
    try:
        return _BY_WORD[word]
    except KeyError:
        raise ValueError(
            f"there is no mode {word[:40]!r}; the modes are {', '.join(WORDS)}"
        ) from None
