"""How each platform parses a unit: written from its manuals, independent of the renderers."""

import re
from dataclasses import dataclass

# The escapes of systemd.syntax(7) in quoted words.
SIMPLE_ESCAPES = dict(zip("abfnrtvs\\\"'", "\a\b\f\n\r\t\v \\\"'", strict=True))


@dataclass(frozen=True)
class SystemdUnit:
    command: tuple[str, ...]
    environment: dict[str, str]
    values: dict[str, str]


def parse_systemd_unit(text: str) -> SystemdUnit:
    """Parse a unit file: continuation lines, comments, quotes, escapes, specifiers, variables."""
    values: dict[str, str] = {}
    for line in text.replace("\\\n", " ").split("\n"):
        # Of the characters that Unicode calls blank, these are the ones systemd strips.
        line = line.strip(" \t\r")
        if line and line[0] not in "#;[":
            name, _, value = line.partition("=")
            assert name not in values
            values[name] = value.lstrip(" \t\r")
    program, *arguments = split_systemd_words(values["ExecStart"])
    assert program.startswith("/")
    assert not re.search(r"""["'\\]""", program)
    environment = dict(word.split("=", 1) for word in split_systemd_words(values["Environment"]))
    return SystemdUnit(
        (
            expand_specifiers(program),
            *(expand_variables(expand_specifiers(word)) for word in arguments),
        ),
        {name: expand_specifiers(value) for name, value in environment.items()},
        {name: expand_specifiers(value) for name, value in values.items() if name != "ExecStart"},
    )


def split_systemd_words(line: str) -> list[str]:
    words, at = [], 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
            continue
        word = ""
        quote = ""
        while at < len(line) and (quote or line[at] not in " \t"):
            character = line[at]
            if character == "\\":
                piece, at = parse_systemd_escape(line, at + 1)
                word += piece
                continue
            if character == quote:
                quote = ""
            elif not quote and character in "\"'":
                quote = character
            else:
                word += character
            at += 1
        assert not quote, "an unbalanced quote"
        words.append(word)
    return words


def parse_systemd_escape(line: str, at: int) -> tuple[str, int]:
    if line[at] == "x":
        return chr(int(line[at + 1 : at + 3], 16)), at + 3
    return SIMPLE_ESCAPES[line[at]], at + 1


def expand_specifiers(text: str) -> str:
    """Expand specifiers; only `%%` is supported."""
    assert not re.search(r"%(?!%)", text.replace("%%", "")), text
    return text.replace("%%", "%")


def expand_variables(text: str) -> str:
    """Expand variables; only `$$` is supported, any other `$` is an error."""
    assert "$" not in text.replace("$$", ""), text
    return text.replace("$$", "$")


def parse_shown_words(line: str) -> list[str]:
    """Parse a command line as systemd prints it: bare words, and quoted ones with escapes."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|([^ ]+)', line)
    return [bare or unescape_text(quoted) for quoted, bare in words]


def unescape_text(text: str) -> str:
    def replace_escape(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x":
            return chr(int(code[1:], 16))
        if len(code) == 3:
            return chr(int(code, 8))
        return SIMPLE_ESCAPES.get(code, code)

    return re.sub(r"\\(x[0-9a-f]{2}|[0-7]{3}|.)", replace_escape, text)


def split_windows_command_line(line: str) -> list[str]:
    """Split a command line as Microsoft's C runtime does, from its arguments on."""
    words: list[str] = []
    word, is_quoted, is_word, at = "", False, False, 0
    while at < len(line):
        slashes = len(line[at:]) - len(line[at:].lstrip("\\"))
        at += slashes
        if line[at : at + 1] == '"':
            word += "\\" * (slashes // 2)
            is_word = True
            if slashes % 2:
                word += '"'
            elif is_quoted and line[at + 1 : at + 2] == '"':
                word += '"'
                at += 1
            else:
                is_quoted = not is_quoted
            at += 1
            continue
        if slashes:
            word, is_word = word + "\\" * slashes, True
            continue
        if line[at] in " \t" and not is_quoted:
            if is_word:
                words.append(word)
            word, is_word = "", False
        else:
            word, is_word = word + line[at], True
        at += 1
    return [*words, word] if is_word else words
