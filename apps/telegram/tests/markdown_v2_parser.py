"""A strict MarkdownV2 parser, as Telegram's: a reserved character without escape is an error.

Written from the description of the Bot API. Only the test server uses it.
"""

import re
from dataclasses import dataclass

RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
CLOSING_MARKS = {
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


class MarkdownV2Error(ValueError):
    pass


@dataclass(frozen=True)
class MarkdownEntity:
    kind: str
    text: str
    more: str = ""  # a link's address or a block's language


class MarkdownV2Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.visible_text = ""
        self.open_entities: list[tuple[str, int, str]] = []
        self.entities: list[MarkdownEntity] = []

    def parse(self) -> tuple[str, list[MarkdownEntity]]:
        while self.position < len(self.text):
            self.parse_next()
        if self.open_entities:
            raise MarkdownV2Error(f"Can't find end of {self.open_entities[-1][0]} entity")
        return self.visible_text, self.entities

    def starts_with(self, words: str) -> bool:
        return self.text.startswith(words, self.position)

    def parse_next(self) -> None:
        text, position = self.text, self.position
        if (
            text[position] == "\\"
            and position + 1 < len(text)
            and 0 < ord(text[position + 1]) < 127
        ):
            self.visible_text += text[position + 1]
            self.position += 2
            return
        top = self.open_entities[-1][0] if self.open_entities else ""
        if top and self.is_end(top):
            self.close_entity(top)
        elif top in ("code", "pre") or text[position] not in RESERVED:
            self.visible_text += text[position]
            self.position += 1
        else:
            self.open_entity()

    def is_end(self, kind: str) -> bool:
        return self.starts_with(CLOSING_MARKS[kind]) and not (
            kind == "italic" and self.starts_with("__")
        )

    def close_entity(self, kind: str) -> None:
        _, start, more = self.open_entities.pop()
        self.position += len(CLOSING_MARKS[kind])
        if kind == "link" and self.starts_with("("):
            more = self.parse_address()
        self.entities.append(MarkdownEntity(kind, self.visible_text[start:], more))

    def parse_address(self) -> str:
        url = ""
        self.position += 1
        while not self.starts_with(")"):
            if self.position >= len(self.text):
                raise MarkdownV2Error("Can't find end of a URL")
            if self.starts_with("\\"):
                self.position += 1
            url += self.text[self.position]
            self.position += 1
        self.position += 1
        return url

    def open_entity(self) -> None:
        if self.starts_with("```"):
            match = LANGUAGE.match(self.text, self.position + 3)
            assert match is not None
            self.position = match.end() + (self.text[match.end() : match.end() + 1] == "\n")
            self.open_entities.append(("pre", len(self.visible_text), match[0]))
            return
        if self.starts_with(">") and (not self.visible_text or self.visible_text.endswith("\n")):
            self.position += 1
            return
        for kind in ("underline", "spoiler", "bold", "italic", "strike", "code"):
            if self.starts_with(CLOSING_MARKS[kind]):
                self.open_entities.append((kind, len(self.visible_text), ""))
                self.position += len(CLOSING_MARKS[kind])
                return
        if self.starts_with("["):
            self.open_entities.append(("link", len(self.visible_text), ""))
            self.position += 1
            return
        raise MarkdownV2Error(
            f"Character '{self.text[self.position]}' is reserved and must be escaped with the "
            "preceding '\\'"
        )


def parse_markdown_v2(text: str) -> tuple[str, list[MarkdownEntity]]:
    """The visible text and its entities. Raises MarkdownV2Error."""
    return MarkdownV2Parser(text).parse()
