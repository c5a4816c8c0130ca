"""Reading a command line as bash does, as far as the words of its simple commands.

Quotes are taken off. What an expansion would become is not known, so a `$` stands in its place; the
commands inside substitutions come out as commands of their own.
"""

import re
import sys

LONGEST = 64 * 1024  # characters; reading more would hold up others
DEEPEST = 32
# Words after which a command begins anew.
KEYWORDS = {"!", "coproc", "do", "elif", "else", "function", "if", "then", "until", "while"}

# In $'...': what a letter stands for, and the ways to give a number.
LETTERS = dict(zip(b"abeEfnrtv\\'\"?", b"\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
ESCAPE = re.compile(
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


class UnreadableError(Exception):
    """What a command line would run cannot be told, with a sentence why."""


def simple_commands(text: str) -> list[list[str]]:
    """The words of each. Raises UnreadableError for what is not complete, or too much."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it is longer than {LONGEST} characters")
    reader = Reader(text)
    reader.read_list(closing="")
    return reader.found


class Reader:
    """Reads from left to right. `found` has what is complete."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self._text = text
        self._at = 0
        self._depth = depth
        self.found: list[list[str]] = []

    def read_list(self, closing: str) -> None:
        """Commands up to the closing parenthesis, or to the end of the text."""
        self._deeper()
        sentence = Sentence(self.found)
        parentheses = 0
        delimiters: list[tuple[str, bool, bool]] = []
        while self._at < len(self._text):
            sign = self._text[self._at]
            if sign == ")" and closing and not parentheses:
                self._at += 1
                sentence.end()
                self._depth -= 1
                return
            if sign == "#" and not sentence.is_in_word:
                self._skip_to("\n")
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif sign in " \t\r":
                self._at += 1
                sentence.end_word()
            elif sign == "\n":
                self._at += 1
                sentence.end()
                for delimiter in delimiters:
                    self._here_document(*delimiter)
                delimiters.clear()
            elif sign in ";&|" and not self._text.startswith("&>", self._at):
                self._at += 1
                sentence.end()
            elif sign in "()":
                parentheses = max(0, parentheses + (1 if sign == "(" else -1))
                if parentheses > DEEPEST:
                    raise UnreadableError("its parentheses are nested too deeply")
                sentence.end()
                if not (sign == "(" and self._arithmetic()):
                    self._at += 1
                else:
                    parentheses -= 1
            elif sign in "<>&":
                self._redirection(sentence, delimiters)
            else:
                is_quoted = sign in "'\"\\" or self._text.startswith(("$'", '$"'), self._at)
                sentence.add(self._piece(), is_quoted)
        if closing or delimiters:
            raise UnreadableError("it ends in the middle of something")
        sentence.end()
        self._depth -= 1

    def _redirection(self, sentence: "Sentence", delimiters: list[tuple[str, bool, bool]]) -> None:
        sentence.drop_number()
        if self._text.startswith(("<(", ">("), self._at):
            self._at += 2
            sentence.add("$", is_quoted=False)
            self.read_list(closing=")")
            return
        sentence.end_word()
        found = re.compile(r"&>>?|<<<|<<-?|<>|[<>]&|>>|>\||[<>]").match(self._text, self._at)
        if found is None:
            raise UnreadableError("it holds a redirection that makes no sense")
        self._at = found.end()
        target, is_quoted = self._word()
        if found[0] in ("<<", "<<-"):
            delimiters.append((target, is_quoted, found[0] == "<<-"))

    def _word(self) -> tuple[str, bool]:
        """The next word, and whether any of it was quoted."""
        while self._text.startswith((" ", "\t"), self._at):
            self._at += 1
        pieces, is_quoted = [], False
        while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|()<>":
            is_quoted = is_quoted or self._text[self._at] in "'\"\\"
            pieces.append(self._piece())
        return "".join(pieces), is_quoted

    def _here_document(self, delimiter: str, is_literal: bool, has_tabs: bool) -> None:
        start = self._at
        while self._at < len(self._text):
            begin = self._at
            self._skip_to("\n")
            line = self._text[begin : self._at]
            self._at += 1
            if (line.lstrip("\t") if has_tabs else line) == delimiter:
                break
        if not is_literal:
            self._substitutions_in(self._text[start : self._at])

    def _piece(self) -> str:
        """The next part of a word: something quoted, an expansion, or one character."""
        sign = self._next()
        match sign:
            case "\\":
                escaped = self._next()
                return "" if escaped == "\n" else escaped
            case "'":
                return self._up_to("'")
            case '"':
                return self._double_quoted()
            case "`":
                return self._backticks()
            case "$":
                return self._expansion()
        return sign

    def _expansion(self) -> str:
        if self._text.startswith("((", self._at) and self._arithmetic():
            return "$"
        match self._text[self._at : self._at + 1]:
            case "(":
                self._at += 1
                self.read_list(closing=")")
                return "$"
            case "{":
                self._deeper()
                while not self._text.startswith("}", self._at):
                    self._piece()
                self._at += 1
                self._depth -= 1
                return "$"
            case "'":
                self._at += 1
                return self._ansi_quoted()
            case '"':
                self._at += 1
                return self._double_quoted()
        return "$"

    def _double_quoted(self) -> str:
        pieces = []
        while (sign := self._next()) != '"':
            if sign == "\\":
                escaped = self._next()
                if escaped != "\n":
                    pieces.append(escaped if escaped in '$`"\\' else sign + escaped)
            elif sign == "`":
                pieces.append(self._backticks())
            elif sign == "$" and not self._text.startswith(("'", '"'), self._at):
                pieces.append(self._expansion())
            else:
                pieces.append(sign)
        return "".join(pieces)

    def _ansi_quoted(self) -> str:
        """$'...', in which a backslash spells characters, or bytes of them."""
        pieces = []
        while (sign := self._next()) != "'":
            pieces.append(sign + self._next() if sign == "\\" else sign)
        text = "".join(pieces)
        try:
            data = ESCAPE.sub(spelled, text.encode("utf-8", "surrogatepass"))
        except ValueError:  # a number that no character has
            return "$"
        # For bash it ends where a zero is.
        return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")

    def _backticks(self) -> str:
        pieces = []
        while (sign := self._next()) != "`":
            if sign == "\\":
                escaped = self._next()
                sign = escaped if escaped in "$`\\" else sign + escaped
            pieces.append(sign)
        inner = Reader("".join(pieces), self._depth + 1)
        inner.read_list(closing="")
        self.found += inner.found
        return "$"

    def _arithmetic(self) -> bool:
        """Reads `((...))`, in which < and << redirect nothing. False, and nothing read, if it is
        a subshell in a subshell."""
        if not self._text.startswith("((", self._at):
            return False
        depth, last = 0, -2
        for at in range(self._at, len(self._text)):
            if self._text[at] == "(":
                depth += 1
            elif self._text[at] == ")":
                depth -= 1
                if depth == 0:
                    if last != at - 1:
                        return False
                    inside = self._text[self._at + 2 : last]
                    if any(sign in inside for sign in "'\"\\"):
                        raise UnreadableError("its arithmetic holds quotes")
                    self._substitutions_in(inside)
                    self._at = at + 1
                    return True
                if depth == 1:
                    last = at
        raise UnreadableError("a parenthesis is not closed")

    def _substitutions_in(self, text: str) -> None:
        """The commands inside a text that is otherwise not for the shell to read."""
        inner = Reader(text, self._depth + 1)
        inner._deeper()
        while inner._at < len(text):
            sign = inner._next()
            if sign == "\\":
                inner._at += 1
            elif sign == "`":
                inner._backticks()
            elif sign == "$" and not text.startswith(("'", '"'), inner._at):
                inner._expansion()
        self.found += inner.found

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UnreadableError("it is nested too deeply")

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise UnreadableError("a quote or a parenthesis is not closed")
        self._at += 1
        return self._text[self._at - 1]

    def _up_to(self, sign: str) -> str:
        start = self._at
        end = self._text.find(sign, start)
        if end < 0:
            raise UnreadableError("a quote is not closed")
        self._at = end + 1
        return self._text[start:end]

    def _skip_to(self, sign: str) -> None:
        end = self._text.find(sign, self._at)
        self._at = len(self._text) if end < 0 else end


class Sentence:
    """The simple command that is being read."""

    def __init__(self, found: list[list[str]]) -> None:
        self._found = found
        self._words: list[str] = []
        self._pieces: list[str] = []
        self._is_quoted = False

    @property
    def is_in_word(self) -> bool:
        return bool(self._pieces)

    def add(self, piece: str, is_quoted: bool) -> None:
        self._pieces.append(piece)
        self._is_quoted = self._is_quoted or is_quoted

    def drop_number(self) -> None:
        """The 2 in `2>file` is no word."""
        if not self._is_quoted and "".join(self._pieces).isdecimal():
            self._pieces.clear()

    def end_word(self) -> None:
        if not self._pieces:
            return
        word, is_plain = "".join(self._pieces), not self._is_quoted
        self._pieces.clear()
        self._is_quoted = False
        if is_plain and word in ("{", "}"):
            self.end()
        elif not (is_plain and not self._words and word in KEYWORDS):
            self._words.append(word)

    def end(self) -> None:
        self.end_word()
        if self._words:
            self._found.append(self._words)
            self._words = []


def spelled(escape: re.Match[bytes]) -> bytes:
    """What an escape in $'...' stands for. Raises ValueError where there is no such character."""
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
    return bytes([LETTERS[text[0]]]) if text[0] in LETTERS else escape[0]
