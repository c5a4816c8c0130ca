"""ShellSource: limits the size of a shell text, and parses it with tree-sitter.

tree-sitter takes seconds for some texts of a few kilobytes and cannot be interrupted, so the
number of characters with a special meaning is limited. Long quoted texts and here-documents are
masked with x first. Afterwards the tree must confirm that each of them really was quoted text.
"""

import re
from functools import cache
from typing import TYPE_CHECKING

from .commands import UnreadableCommandError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_BYTES = 64 * 1024
MAX_SPECIAL_CHARACTERS = 320
MAX_WORDS = 1000
MAX_KEYWORDS = 200

MAX_QUOTES = 600
MAX_HERE_DOCUMENTS = 8

PLAIN_BYTES = bytes(
    sign for sign in range(256) if sign > 127 or chr(sign).isalnum() or chr(sign) in "_ \t./,:%+@^-"
)
QUOTE = re.compile(rb"[\\'\"#<]")
BLANKS = re.compile(rb"[ \t]+")
KEYWORD = re.compile(
    rb"\b(?:case|coproc|declare|do|done|elif|else|esac|export|fi|for|function|if|in|local|readonly"
    rb"|select|then|time|typeset|unset|unsetenv|until|while)\b"
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
TOKEN = re.compile(
    rb"""(?P<escaped>\\.)
      | (?P<comment>(?:(?<=[\s;&|(])|^)\#[^\n]*)
      | (?P<single>'[^']*')
      | (?P<double>"[^"\\$`]*")
      | (?P<open>"(?:[^"\\]|\\.)*")
      | <<<
      | (?P<heredoc><<-?[ \t]*(?P<delimiter>\\?\w+|'[^'\n]+'|"[^"\n]+")[^\n]*\n)
    """,
    re.DOTALL | re.VERBOSE,
)


class ParseBudget:
    """How much text may still be parsed for one line, including all its nested texts."""

    def __init__(self) -> None:
        self.bytes = 4 * MAX_BYTES
        self.signs = MAX_SPECIAL_CHARACTERS
        self.words = MAX_WORDS
        self.keywords = MAX_KEYWORDS

    def spend(self, text: bytes) -> None:
        self.bytes -= len(text)
        self.signs -= count_special_characters(text)
        if min(self.bytes, self.signs) >= 0:
            self.words -= len(BLANKS.findall(text))
            self.keywords -= len(KEYWORD.findall(text))
        if min(self.bytes, self.signs, self.words, self.keywords) < 0:
            raise UnreadableCommandError("it is too complicated")


class ShellSource:
    """A text and its tree. `masked_ranges` are the ranges that were replaced by x."""

    def __init__(self, text: str, budget: ParseBudget) -> None:
        if len(text) > MAX_BYTES:
            raise UnreadableCommandError(f"it is longer than {MAX_BYTES // 1024} KiB")
        if CONTROL.search(text):
            raise UnreadableCommandError("it holds control characters")
        try:
            self.text = text.encode("utf-8")
        except UnicodeEncodeError:
            raise UnreadableCommandError("it holds characters that are not text") from None
        if len(self.text) > MAX_BYTES:
            raise UnreadableCommandError(f"it is longer than {MAX_BYTES // 1024} KiB")
        self.masked_ranges: set[tuple[int, int]] = set()
        visible = self.text
        if count_special_characters(visible) > budget.signs // 2 or len(visible) > MAX_BYTES // 8:
            visible = self._mask_quoted_text()
        budget.spend(visible)
        self.root: Node = load_parser().parse(visible).root_node
        if self.root.has_error:
            raise UnreadableCommandError("it is not a complete command, or written in a rare way")

    def confirm_masked(self, start: int, end: int) -> None:
        """Mark a masked range as confirmed: the tree has quoted text or a here-document there."""
        self.masked_ranges.discard((start, end))

    def check_masked(self) -> None:
        if self.masked_ranges:
            raise UnreadableCommandError("its quotes cannot be told apart")

    def _mask_quoted_text(self) -> bytes:
        """Return the text with the inside of long quotes and here-documents replaced by x."""
        visible = bytearray(self.text)
        at = documents = 0
        for _ in range(MAX_QUOTES):
            next_quote = QUOTE.search(self.text, at)
            if next_quote is None:
                break
            at = next_quote.end()
            token = TOKEN.match(self.text, next_quote.start())
            if token is None:
                continue
            at = token.end()
            start = end = 0
            if token["single"] or token["double"]:
                start, end = token.start() + 1, token.end() - 1
                outer = (token.start(), token.end())
            elif token["heredoc"]:
                documents += 1
                if documents > MAX_HERE_DOCUMENTS:
                    break
                start, end = self._find_here_document(token)
                outer = (start, end)
                at = max(at, end)
            if end > start:
                visible[start:end] = b"x" * (end - start)
                self.masked_ranges.add(outer)
        return bytes(visible)

    def _find_here_document(self, token: re.Match[bytes]) -> tuple[int, int]:
        """Return the range of the body, up to the newline before its last line; empty if there is
        none."""
        delimiter = token["delimiter"].strip(b"'\"\\")
        start = token.end()
        if b"<<" in self.text[token.end("delimiter") : start]:
            return 0, 0
        last = re.compile(rb"^\t*" + re.escape(delimiter) + rb"$", re.MULTILINE)
        end = last.search(self.text, start)
        if end is None or end.start() == start:
            return 0, 0
        body = self.text[start : end.start() - 1]
        if delimiter == token["delimiter"] and re.search(rb"[$`\\]", body):
            return 0, 0
        return start, end.start() - 1


def count_special_characters(text: bytes) -> int:
    """Count the characters that can have a special meaning in a shell."""
    return len(text.translate(None, PLAIN_BYTES))


@cache
def load_parser() -> "Parser":
    # Late: most daemons never parse a shell line, and the import takes ten milliseconds.
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))
