"""Renders markdown as plain text without marks, for WeChat. Pure.

The result is never longer than the markdown.
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
        match = FENCE_PATTERN.fullmatch(line)
        if match and not fence:
            fence = match[1]
        elif match and is_fence_end(match[1], fence) and not match[2].strip():
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
    position = 0
    for code in CODE_PATTERN.finditer(line):  # marks inside code are text
        pieces += [remove_marks(line[position : code.start()]), code[2]]
        position = code.end()
    return "".join([*pieces, remove_marks(line[position:])])


def remove_marks(text: str) -> str:
    text = LINK_PATTERN.sub(render_link, text)
    for pattern, group in ((BOLD_PATTERN, 2), (STRIKE_PATTERN, 1), (ITALIC_PATTERN, 1)):
        text = pattern.sub(rf"\{group}", text)
    return text


def render_link(match: re.Match[str]) -> str:
    text, address = match[1], match[2]
    return address if text == address else f"{text} ({address})"
