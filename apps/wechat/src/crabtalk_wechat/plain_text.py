"""Markdown as WeChat shows it: as plain text, without the marks. Pure.

What is left is never longer than what was written.
"""

import re

FENCE_PATTERN = re.compile(r"\s*(`{3,}|~{3,})([^`]*)")
HEADING_PATTERN = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
CODE_PATTERN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
BOLD_PATTERN = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")
STRIKE_PATTERN = re.compile(r"~~(?=\S)(.+?)(?<=\S)~~")
ITALIC_PATTERN = re.compile(r"(?<![\w*\\])\*(?=[^\s*])([^*\n]+?)(?<=[^\s*])\*(?![\w*])")
LINK_PATTERN = re.compile(r"!?\[([^\]\n]+)\]\((\S+?)\)")


def render_plain(text: str) -> str:
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = FENCE_PATTERN.fullmatch(line)
        if found and not fence:
            fence = found[1]
        elif found and is_fence_end(found[1], fence) and not found[2].strip():
            fence = ""
        else:
            lines.append(line if fence else render_plain_line(line))
    return "\n".join(lines).strip("\n") or text


def is_fence_end(marks: str, fence: str) -> bool:
    return marks[0] == fence[0] and len(marks) >= len(fence)


def render_plain_line(line: str) -> str:
    heading = HEADING_PATTERN.fullmatch(line)
    line = heading[1] if heading else line
    pieces: list[str] = []
    place = 0
    for code in CODE_PATTERN.finditer(line):  # in which marks are none
        pieces += [remove_marks(line[place : code.start()]), code[2]]
        place = code.end()
    return "".join([*pieces, remove_marks(line[place:])])


def remove_marks(words: str) -> str:
    words = LINK_PATTERN.sub(render_link, words)
    for marks, group in ((BOLD_PATTERN, 2), (STRIKE_PATTERN, 1), (ITALIC_PATTERN, 1)):
        words = marks.sub(rf"\{group}", words)
    return words


def render_link(found: re.Match[str]) -> str:
    words, address = found[1], found[2]
    return address if words == address else f"{words} ({address})"
