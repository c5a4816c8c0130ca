"""MarkdownV2 as Telegram reads it: strictly. What is not escaped where it has to be is an error.

Written from the description of the Bot API, and used by the server of the tests alone.
"""

import re
from dataclasses import dataclass

RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
ENDS = {
    "bold": "*",
    "italic": "_",
    "underline": "__",
    "strike": "~",
    "spoiler": "||",
    "code": "`",
    "pre": "```",
    "link": "]",
}
LANGUAGE = re.compile(r"[^\s`]*")


class ParseError(ValueError):
    pass


@dataclass(frozen=True)
class Entity:
    kind: str
    text: str
    more: str = ""  # a link's address, a block's language


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.shown = ""
        self.open: list[tuple[str, int, str]] = []
        self.found: list[Entity] = []

    def read(self) -> tuple[str, list[Entity]]:
        while self.place < len(self.text):
            self.step()
        if self.open:
            raise ParseError(f"Can't find end of {self.open[-1][0]} entity")
        return self.shown, self.found

    def has(self, words: str) -> bool:
        return self.text.startswith(words, self.place)

    def step(self) -> None:
        text, place = self.text, self.place
        if text[place] == "\\" and place + 1 < len(text) and 0 < ord(text[place + 1]) < 127:
            self.shown += text[place + 1]
            self.place += 2
            return
        top = self.open[-1][0] if self.open else ""
        if top and self.is_end(top):
            self.end(top)
        elif top in ("code", "pre") or text[place] not in RESERVED:
            self.shown += text[place]
            self.place += 1
        else:
            self.begin()

    def is_end(self, kind: str) -> bool:
        return self.has(ENDS[kind]) and not (kind == "italic" and self.has("__"))

    def end(self, kind: str) -> None:
        _, start, more = self.open.pop()
        self.place += len(ENDS[kind])
        if kind == "link" and self.has("("):
            more = self.address()
        self.found.append(Entity(kind, self.shown[start:], more))

    def address(self) -> str:
        url = ""
        self.place += 1
        while not self.has(")"):
            if self.place >= len(self.text):
                raise ParseError("Can't find end of a URL")
            if self.has("\\"):
                self.place += 1
            url += self.text[self.place]
            self.place += 1
        self.place += 1
        return url

    def begin(self) -> None:
        if self.has("```"):
            found = LANGUAGE.match(self.text, self.place + 3)
            assert found is not None
            self.place = found.end() + (self.text[found.end() : found.end() + 1] == "\n")
            self.open.append(("pre", len(self.shown), found[0]))
            return
        if self.has(">") and (not self.shown or self.shown.endswith("\n")):
            self.place += 1
            return
        for kind in ("underline", "spoiler", "bold", "italic", "strike", "code"):
            if self.has(ENDS[kind]):
                self.open.append((kind, len(self.shown), ""))
                self.place += len(ENDS[kind])
                return
        if self.has("["):
            self.open.append(("link", len(self.shown), ""))
            self.place += 1
            return
        raise ParseError(
            f"Character '{self.text[self.place]}' is reserved and must be escaped with the "
            "preceding '\\'"
        )


def read(text: str) -> tuple[str, list[Entity]]:
    """What is seen, and what is marked in it. Raises ParseError."""
    return Reader(text).read()
