"""Markdown as WeChat shows it: as plain text, without the marks. Pure.

What is left is never longer than what was written.
"""

import re

FENCE = re.compile(r"\s*(`{3,}|~{3,})([^`]*)")
HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
BOLD = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")
STRUCK = re.compile(r"~~(?=\S)(.+?)(?<=\S)~~")
ITALIC = re.compile(r"(?<![\w*\\])\*(?=[^\s*])([^*\n]+?)(?<=[^\s*])\*(?![\w*])")
LINK = re.compile(r"!?\[([^\]\n]+)\]\((\S+?)\)")


def plain(text: str) -> str:
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = FENCE.fullmatch(line)
        if found and not fence:
            fence = found[1]
        elif found and is_end(found[1], fence) and not found[2].strip():
            fence = ""
        else:
            lines.append(line if fence else plain_line(line))
    return "\n".join(lines).strip("\n") or text


def is_end(marks: str, fence: str) -> bool:
    return marks[0] == fence[0] and len(marks) >= len(fence)


def plain_line(line: str) -> str:
    heading = HEADING.fullmatch(line)
    line = heading[1] if heading else line
    pieces: list[str] = []
    place = 0
    for code in CODE.finditer(line):  # in which marks are none
        pieces += [without_marks(line[place : code.start()]), code[2]]
        place = code.end()
    return "".join([*pieces, without_marks(line[place:])])


def without_marks(words: str) -> str:
    words = LINK.sub(shown_link, words)
    for marks, group in ((BOLD, 2), (STRUCK, 1), (ITALIC, 1)):
        words = marks.sub(rf"\{group}", words)
    return words


def shown_link(found: re.Match[str]) -> str:
    words, address = found[1], found[2]
    return address if words == address else f"{words} ({address})"
