"""Reads one word of a shell line: removes quotes and marks run-time parts as unknown.

tree-sitter says where a word starts and ends and where its expansions are. This module reads the
text in between by itself and refuses the word if the two disagree, so a mistake of tree-sitter
cannot hide a command.
"""

import re
import sys
from collections.abc import Mapping

from .commands import UNKNOWN, ShellWord, UnreadableCommandError

DISAGREEMENT = "the parser and the shell could read it differently"
METACHARACTERS = b" \t\n;&|<>()"

# Escapes in $'...': letters, and the ways to write a character code.
ANSI_LETTERS = dict(zip(b"abeEfnrtv\\'\"?", b"\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
ANSI_ESCAPE = re.compile(
    rb"""\\(?:
        x\{(?P<braced>[0-9a-fA-F]*)\}?
      | x(?P<byte>[0-9a-fA-F]{1,2})
      | (?P<octal>[0-7]{1,3})
      | [uU](?P<character>(?<=u)[0-9a-fA-F]{1,4}|(?<=U)[0-9a-fA-F]{1,8})
      | c(?P<control>\\\\|.)
      | (?P<letter>.)
    )""",
    re.DOTALL | re.VERBOSE,
)
ANSI_QUOTED = re.compile(rb"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
SINGLE_QUOTED = re.compile(rb"'([^']*)'")
PLAIN_TEXT = re.compile(rb"[^\\'\"$`*?\[{ \t\n;&|<>()]+")
PLAIN_IN_QUOTES = re.compile(rb"[^\\\"$`]+")
BRACE_EXPANSION = re.compile(r"\{.*(,|\.\.).*\}", re.DOTALL)
TILDE = re.compile(r"~[^/]*")


def read_word(
    source: bytes, start: int, end: int, expansions: Mapping[int, tuple[int, str]]
) -> ShellWord:
    """Return the value of source[start:end]. `expansions` maps the start of each expansion to its
    end and node type."""
    return ShellWordReader(source, start, end, expansions).read()


class ShellWordReader:
    """Reads from left to right. `_shape` is the text with an x for each quoted character."""

    def __init__(
        self, source: bytes, start: int, end: int, expansions: Mapping[int, tuple[int, str]]
    ) -> None:
        self._source = source
        self._at = start
        self._end = end
        self._expansions = expansions
        self._pieces: list[bytes] = []
        self._shape: list[bytes] = []
        self._may_split = False

    def read(self) -> ShellWord:
        while self._at < self._end:
            self._read_piece()
        if self._at != self._end:
            raise UnreadableCommandError(DISAGREEMENT)
        text = b"".join(self._pieces).decode("utf-8", "surrogateescape")
        shape = b"".join(self._shape).decode("utf-8", "surrogateescape")
        if BRACE_EXPANSION.search(shape):
            return ShellWord(UNKNOWN, may_split=True)
        if match := TILDE.match(shape):
            text = UNKNOWN + text[match.end() :]
        return ShellWord(text, self._may_split)

    def _add(self, piece: bytes, is_quoted: bool = True) -> None:
        self._pieces.append(piece)
        # One x per character, so that positions in text and shape agree.
        self._shape.append(b"x" * len(piece.decode("utf-8", "replace")) if is_quoted else piece)

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        match = pattern.match(self._source, self._at, self._end)
        if match is None:
            raise UnreadableCommandError("a quote is not closed")
        self._at = match.end()
        return match

    def _read_piece(self) -> None:
        if self._read_expansion(is_quoted=False):
            return
        sign = self._source[self._at : self._at + 1]
        following = self._source[self._at + 1 : self._at + 2]
        if sign == b"\\":
            self._at += 2
            if self._at > self._end:
                raise UnreadableCommandError("it ends in a backslash")
            if following != b"\n":
                self._add(following)
        elif sign == b"'":
            self._add(self._match(SINGLE_QUOTED)[1])
        elif sign == b'"':
            self._at += 1
            self._read_double_quoted()
        elif sign == b"$" and following == b"'":
            self._add(decode_ansi_quoted(self._match(ANSI_QUOTED)[1]))
        elif sign == b"$" and following == b'"':
            self._at += 2
            self._read_double_quoted()
        elif sign in b"*?" or (sign == b"[" and b"]" in self._source[self._at : self._end]):
            self._at += 1
            self._add(UNKNOWN.encode())
            # The rest of a bracket pattern is not parsed, so nothing is known about the word.
            self._may_split = self._may_split or sign == b"["
        elif sign in METACHARACTERS:
            raise UnreadableCommandError(DISAGREEMENT)
        elif sign in b"$`[{":
            self._check_dollar(sign, following)
            self._at += 1
            self._add(sign, is_quoted=False)
        else:
            self._add(self._match(PLAIN_TEXT)[0], is_quoted=False)

    def _read_double_quoted(self) -> None:
        self._add(b"")
        while True:
            if self._at >= self._end:
                raise UnreadableCommandError("a quote is not closed")
            if self._read_expansion(is_quoted=True):
                continue
            sign = self._source[self._at : self._at + 1]
            following = self._source[self._at + 1 : self._at + 2]
            if sign == b'"':
                self._at += 1
                return
            if sign == b"\\":
                self._at += 2
                if following != b"\n":
                    self._add(following if following in b'$`"\\' else sign + following)
            elif sign in b"$`":
                if following not in b"'\"":
                    self._check_dollar(sign, following)
                elif sign == b"`":
                    raise UnreadableCommandError(DISAGREEMENT)
                self._at += 1
                self._add(sign)
            else:
                self._add(self._match(PLAIN_IN_QUOTES)[0])

    def _read_expansion(self, is_quoted: bool) -> bool:
        expansion = self._expansions.get(self._at)
        if expansion is None:
            return False
        end, kind = expansion
        text = self._source[self._at : end]
        many = b"@" in text
        if text in (b"$HOME", b"${HOME}", b"$PWD", b"${PWD}"):
            is_quoted = True  # one directory, so it does not split; see parse_commands
        self._may_split = self._may_split or (
            kind not in ("process_substitution", "arithmetic_expansion") and (many or not is_quoted)
        )
        self._at = end
        self._add(UNKNOWN.encode())
        return True

    def _check_dollar(self, sign: bytes, following: bytes) -> None:
        """Raise if bash would see an expansion here that tree-sitter did not find."""
        if sign == b"`" or (sign == b"$" and re.match(rb"[\w({?!#*@$-]|\[", following)):
            raise UnreadableCommandError(DISAGREEMENT)


def decode_ansi_quoted(text: bytes) -> bytes:
    """Decode the text inside $'...' with its backslash escapes."""
    try:
        data = ANSI_ESCAPE.sub(replace_escape, text)
    except ValueError:
        raise UnreadableCommandError("it spells a character that does not exist") from None
    # Bash cuts such a text at the first NUL.
    return data.partition(b"\0")[0]


def replace_escape(escape: re.Match[bytes]) -> bytes:
    kind = escape.lastgroup or ""
    text = escape[kind]
    match kind:
        case "braced" | "byte":
            return bytes([int(text or b"0", 16) % 256])
        case "octal":
            return bytes([int(text, 8) % 256])
        case "character":
            number = min(int(text, 16), sys.maxunicode + 1)
            return chr(number).encode("utf-8", "surrogatepass")
        case "control":
            return bytes([0x7F if text == b"?" else text[0] % 32])
    return bytes([ANSI_LETTERS[text[0]]]) if text[0] in ANSI_LETTERS else escape[0]
