"""Parse the inline Markdown of a paragraph.

It follows CommonMark for code, emphasis, links and escapes, with one more rule: a mark must be
closed within MAX_DISTANCE characters. So text further back can never change. HTML is shown as text,
except line breaks and addresses.
"""

import re
from html import unescape

from crabtalk.service.command_line import escape_controls

from .line_wrapping import LINE_BREAK

MAX_DISTANCE = 1000
MAX_OPEN_DELIMITERS = 32  # open marks at a time
MAX_RUN = 32  # equal marks parsed together; more are a line drawn by hand

STRONG, EMPHASIS, STRIKETHROUGH, LINK, CODE, ADDRESS = 1, 2, 4, 8, 16, 32

PLAIN_TEXT = re.compile(r"(?:[^\\`*_~\[\]!<&\nhH]|(?<=[^\W_])[hH])+")
LETTER = re.compile(r"[^\W_]")
URL = re.compile(rf"https?://[^\s<>\"`\[\]]{{1,{MAX_DISTANCE}}}", re.IGNORECASE)
URL_BEGUN = re.compile(r"h(?:t(?:t(?:p(?:s?(?::/{0,2})?)?)?)?)?$", re.IGNORECASE)
TRAILING_PUNCTUATION = re.compile(r"(?:[.,;:!?*_~']|&\w+;)+$")
TAG = re.compile(
    rf"<(?:(?P<line>br ?/?)|(?P<address>(?:https?://|mailto:)[^\s<>]{{1,{MAX_DISTANCE}}}))>",
    re.IGNORECASE,
)
TAG_BEGUN = re.compile(rf"<(?:[a-z][^\s<>]{{0,{MAX_DISTANCE}}}(?: /?)?)?$", re.IGNORECASE)
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{0,30});")
ENTITY_BEGUN = re.compile(r"&#?\w{0,31}$")
TARGET = re.compile(
    r"\(\s*(?:<(?P<bare>[^<>\n]*)>|(?P<plain>(?:[^\s()<>]|\([^\s()<>]*\))*))"
    r"(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
)
TARGET_BEGUN = re.compile(
    r"\(\s*(?:<[^<>\n]*$|(?:<[^<>\n]*>|(?:[^\s()<>]|\([^\s()<>]*\))*)"
    r"(?:\([^\s()<>]*$|(?:\s+(?:\"[^\"]*(?:\"\s*)?|'[^']*(?:'\s*)?)?)?$))"
)
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class InlineNode:
    """A piece of text. `at` is the index where its source begins."""

    __slots__ = ("at", "flags", "text")

    def __init__(self, at: int, text: str, flags: int = 0) -> None:
        self.at = at
        self.text = text
        self.flags = flags


class OpenDelimiter:
    """An open mark: a run of `*`, `_` or `~`, or `[`, or `![`."""

    __slots__ = ("closes_too", "left", "mark", "node", "number", "run")

    def __init__(
        self, mark: str, node: InlineNode, number: int, *, closes_too: bool = False
    ) -> None:
        self.mark = mark
        self.node = node
        self.number = number  # index of the node
        self.run = self.left = len(node.text)
        self.closes_too = closes_too


class InlineParser:
    """One pass over a text in which no mark is open at the beginning.

    `before` is the text in front of it, or its end. Unless `final`, more text may follow.
    """

    def __init__(
        self, text: str, before: str = " ", *, final: bool, keeps_marks: bool = False
    ) -> None:
        self._text = text
        self._preceding = before
        self._is_final = final
        self._keeps_marks = keeps_marks
        self._nodes: list[InlineNode] = []
        self._openers: list[OpenDelimiter] = []
        self._end = len(text)  # text from here on cannot be parsed yet
        self._unclosed = ""  # the mark of open code at the end
        at = 0
        while at < self._end:
            at = self._parse_next(at)

    def get_settled(self) -> tuple[list[InlineNode], int]:
        """Return the nodes that cannot change, and the length of their source."""
        if self._is_final:
            return self._nodes, len(self._text)
        first = next((o for o in self._openers if not self._is_out_of_reach(o, self._end)), None)
        if first is None:
            return self._nodes, self._end
        return self._nodes[: first.number], first.node.at

    def build_closing_marks(self) -> str:
        """Return the marks that would close all open ones."""
        if self._unclosed:
            return self._unclosed
        if self._end < len(self._text):
            return ""
        return "".join(
            opener.mark * opener.left
            for opener in reversed(self._openers)
            if opener.mark in "*_~" and not self._is_out_of_reach(opener, self._end)
        )

    def _is_out_of_reach(self, opener: OpenDelimiter, at: int) -> bool:
        return at - opener.node.at > MAX_DISTANCE

    def _parse_next(self, at: int) -> int:
        """Parse one element and return where the next begins, or stop if more text is needed."""
        text = self._text
        if match := PLAIN_TEXT.match(text, at):
            self._add_node(at, match[0])
            return match.end()
        match text[at]:
            case "\\":
                return self._parse_escape(at)
            case "`":
                return self._parse_code(at)
            case "*" | "_" | "~":
                return self._parse_run(at)
            case "[":
                return self._open_bracket(at, "[")
            case "!" if at + 1 == len(text) and not self._is_final:
                return self._stop_at(at)
            case "!" if text.startswith("![", at):
                return self._open_bracket(at, "![")
            case "]":
                return self._close_bracket(at)
            case "<":
                return self._parse_tag(at)
            case "&":
                return self._parse_entity(at)
            case "\n":
                return self._parse_line_end(at)
            case "h" | "H":
                return self._parse_url(at)
        return self._add_literal(at, text[at])

    def _get_preceding(self, at: int, count: int) -> str:
        """Return the `count` characters before `at`."""
        return (
            self._text[at - count : at]
            if at >= count
            else (self._preceding + self._text[:at])[-count:]
        )

    def _add_node(self, at: int, text: str, flags: int = 0) -> InlineNode:
        self._nodes.append(node := InlineNode(at, text, flags))
        return node

    def _add_literal(self, at: int, text: str) -> int:
        self._add_node(at, text)
        return at + len(text)

    def _stop_at(self, at: int) -> int:
        self._end = at
        return at

    def _parse_escape(self, at: int) -> int:
        if at + 1 == len(self._text):
            return self._add_literal(at, "\\") if self._is_final else self._stop_at(at)
        following = self._text[at + 1]
        if following == "\n":
            self._add_node(at, LINE_BREAK)
            return at + 2
        if following in PUNCTUATION:
            self._add_node(at, following)
            return at + 2
        return self._add_literal(at, "\\")

    def _parse_code(self, at: int) -> int:
        text = self._text
        end = find_run_end(text, at)
        if end - at == MAX_RUN:
            return self._add_literal(at, text[at:end])
        if end == len(text) and not self._is_final:
            return self._stop_at(at)
        mark = text[at:end]
        start = end
        while (start := text.find(mark, start)) >= 0 and start - at <= MAX_DISTANCE:
            close = find_run_end(text, start)
            if close - start == len(mark):
                if close == len(text) and not self._is_final:
                    break  # the run may go on
                self._add_node(at, self._get_code_content(text[end:start], mark), CODE)
                return close
            start = close
        if not self._is_final and len(text) - at <= MAX_DISTANCE + len(mark):
            self._unclosed = mark
            return self._stop_at(at)
        return self._add_literal(at, mark)

    def _get_code_content(self, content: str, mark: str) -> str:
        content = content.replace("\n", " ")
        if self._keeps_marks:
            return f"{mark}{content}{mark}"
        is_padded = content.strip() and content[0] == content[-1] == " "
        return content[1:-1] if is_padded else content

    def _parse_run(self, at: int) -> int:
        text = self._text
        end = find_run_end(text, at)
        if end - at == MAX_RUN:
            return self._add_literal(at, text[at:end])
        if end == len(text) and not self._is_final:
            return self._stop_at(at)
        mark = text[at]
        before = self._get_preceding(at, 1)
        after = text[end] if end < len(text) else " "
        opens, closes = get_flanking(mark, before, after)
        left = end - at
        if closes:
            left = self._close_run(mark, at, left, opens)
        if left:
            node = self._add_node(at, mark * left)
            # A run that closed something opens nothing, or it would have to be parsed again from
            # its middle. A single tilde strikes nothing: it means "about".
            if opens and left == end - at and (mark != "~" or left == 2):
                self._push_opener(
                    OpenDelimiter(mark, node, len(self._nodes) - 1, closes_too=closes)
                )
        return end

    def _close_run(self, mark: str, at: int, left: int, opens: bool) -> int:
        """Close open runs of this mark; return how many marks were not used for that."""
        run = left
        while left and (opener := self._find_opener(mark, at, run, opens)):
            used = 2 if left >= 2 and opener.left >= 2 else 1
            if mark == "~" and used + left + opener.left != 6:
                return left
            flag = STRIKETHROUGH if mark == "~" else STRONG if used == 2 else EMPHASIS
            for node in self._nodes[opener.number + 1 :]:
                node.flags |= flag
            del self._openers[self._openers.index(opener) + 1 :]
            opener.left -= used
            left -= used
            if self._keeps_marks:
                self._add_node(at, mark * used)
            else:
                opener.node.text = mark * opener.left
            if not opener.left:
                self._openers.pop()
        return left

    def _find_opener(self, mark: str, at: int, run: int, opens: bool) -> OpenDelimiter | None:
        for opener in reversed(self._openers):
            if opener.mark == mark and not self._is_out_of_reach(opener, at):
                total = opener.run + run
                is_odd = (opens or opener.closes_too) and total % 3 == 0 and run % 3 != 0
                if not is_odd:
                    return opener
        return None

    def _push_opener(self, opener: OpenDelimiter) -> None:
        self._openers.append(opener)
        if len(self._openers) > MAX_OPEN_DELIMITERS:
            del self._openers[0]

    def _open_bracket(self, at: int, mark: str) -> int:
        node = self._add_node(at, mark)
        self._push_opener(OpenDelimiter(mark, node, len(self._nodes) - 1))
        return at + len(mark)

    def _close_bracket(self, at: int) -> int:
        """Parse the `]` after the text of a link. Without a target after it there is no link."""
        text = self._text
        opener = next((o for o in reversed(self._openers) if o.mark in ("[", "![")), None)
        if opener is None or self._is_out_of_reach(opener, at):
            return self._add_literal(at, "]")
        target = TARGET.match(text, at + 1, at + MAX_DISTANCE)
        if target is None:
            can_come = at + 1 == len(text) or TARGET_BEGUN.match(text, at + 1)
            if can_come and not self._is_final and len(text) - at <= MAX_DISTANCE:
                return self._stop_at(opener.node.at)
            self._openers.remove(opener)
            return self._add_literal(at, "]")
        self._add_link(opener, at, unescape(target["bare"] or target["plain"] or ""))
        return target.end()

    def _add_link(self, opener: OpenDelimiter, at: int, address: str) -> None:
        inside = self._nodes[opener.number + 1 :]
        for node in inside:
            node.flags |= LINK
        label = "".join(node.text for node in inside)
        opener.node.text = "image: " if opener.mark == "![" else ""
        del self._openers[self._openers.index(opener) :]
        if address and address.removeprefix("mailto:") != label:
            self._add_node(at, f" ({escape_controls(address)})", ADDRESS)

    def _parse_tag(self, at: int) -> int:
        if tag := TAG.match(self._text, at):
            if tag["line"]:
                self._add_node(at, LINE_BREAK)
            else:
                self._add_node(at, tag["address"].removeprefix("mailto:"), LINK)
            return tag.end()
        if not self._is_final and TAG_BEGUN.match(self._text, at):
            return self._stop_at(at)
        return self._add_literal(at, "<")

    def _parse_entity(self, at: int) -> int:
        if entity := ENTITY.match(self._text, at):
            # An entity can encode a control character, so the result is escaped.
            self._add_node(at, escape_controls(unescape(entity[0])))
            return entity.end()
        if not self._is_final and ENTITY_BEGUN.match(self._text, at):
            return self._stop_at(at)
        return self._add_literal(at, "&")

    def _parse_line_end(self, at: int) -> int:
        """Parse a newline: a space, or a hard line break after two spaces."""
        if at + 1 == len(self._text) and not self._is_final:
            return self._stop_at(at)
        is_hard = self._get_preceding(at, 2) == "  "
        self._add_node(at, LINE_BREAK if is_hard else " ")
        return at + 1

    def _parse_url(self, at: int) -> int:
        text = self._text
        if LETTER.match(self._get_preceding(at, 1)):
            return self._add_literal(at, text[at])
        if url := URL.match(text, at):
            if url.end() == len(text) and not self._is_final and url.end() - at < MAX_DISTANCE:
                return self._stop_at(at)
            address = TRAILING_PUNCTUATION.sub("", url[0])
            if address.endswith(")") and "(" not in address:
                address = address.rstrip(")")
            self._add_node(at, address, LINK)
            return at + len(address)
        if not self._is_final and URL_BEGUN.match(text, at):
            return self._stop_at(at)
        return self._add_literal(at, text[at])


def find_run_end(text: str, at: int) -> int:
    mark = text[at]
    end = at
    while end < len(text) and text[end] == mark and end - at < MAX_RUN:
        end += 1
    return end


def get_flanking(mark: str, before: str, after: str) -> tuple[bool, bool]:
    """Whether a run between these characters can open, and whether it can close."""
    left = not after.isspace() and (
        not is_punctuation(after) or before.isspace() or is_punctuation(before)
    )
    right = not before.isspace() and (
        not is_punctuation(before) or after.isspace() or is_punctuation(after)
    )
    if mark == "_":
        return left and (not right or is_punctuation(before)), right and (
            not left or is_punctuation(after)
        )
    return left, right


def is_punctuation(character: str) -> bool:
    return character in PUNCTUATION or not (character.isalnum() or character.isspace())
