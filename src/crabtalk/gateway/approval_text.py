"""Approvals: a tool call that waits for a yes, as literal text for a chat. Pure.

Nothing of a call is left out, shortened or rendered. A call that does not fit into one message
continues in the next, and the buttons are under the last one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from crabtalk.invisible_characters import is_invisible
from crabtalk.protocol import wire

from .message_splitter import MIN_LIMIT, is_boundary

ALLOW, DENY, ALWAYS = "Allow", "Deny", "Always"
# Words that people type instead of a label.
LABELS_BY_WORD = {
    "yes": ALLOW,
    "y": ALLOW,
    "ok": ALLOW,
    "allow": ALLOW,
    "no": DENY,
    "n": DENY,
    "deny": DENY,
    "always": ALWAYS,
}
# A longer call is not shown in a chat and can only be refused there.
MAX_SHOWN = 40_000
# Room in each message for the lines around a part of the text.
PAGE_OVERHEAD = 160
TOO_LONG_NOTE = (
    "The call has {count} characters, which is too long for a chat. Deny it here, or look at it "
    "and answer in the terminal or on the web page."
)

MeasureText = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class ApprovalText:
    """The call as text. It is not `is_displayable` if it was too long to be shown."""

    tool: str
    text: str
    is_displayable: bool = True


def parse_approval(request: wire.ApprovalRequest) -> ApprovalText:
    """Put the facts about the call first, so that nothing in the call passes for one of them."""
    call = escape_invisible(request.call)
    lines = [
        f"{escape_invisible(request.agent, '')} wants to call {escape_invisible(request.tool, '')}."
    ]
    if request.reason:
        lines.append(f"Why it asks: {escape_invisible(request.reason, '')}")
    if request.cwd:
        lines.append(f"Directory: {escape_invisible(request.cwd, '')}")
    if request.always:
        lines.append(f"Always allows from now on: {escape_invisible(request.always, '')}")
    if request.env:
        lines.append("Environment:")
        lines += [
            f"  {escape_invisible(key, '')}={escape_invisible(value, '')}"
            for key, value in sorted(request.env.items())
        ]
    head = "\n".join(lines)
    if len(head) + len(call) > MAX_SHOWN:
        notice = f"{lines[0]}\n{TOO_LONG_NOTE.format(count=len(call))}"
        return ApprovalText(request.tool, notice, is_displayable=False)
    return ApprovalText(request.tool, f"{head}\nCall ({len(call)} characters):\n{call}")


def escape_invisible(text: str, allowed: str = "\n\t") -> str:
    """Write every character that is invisible or changes the text direction as its code."""
    return "".join(
        f"\\u{{{ord(character):04x}}}"
        if character not in allowed and is_invisible(character)
        else character
        for character in text
    )


def match_label(labels: list[str], text: str) -> str:
    """The label a person typed: its number, the label, or a word for it; empty for no answer."""
    word = text.strip().rstrip(".!").casefold()
    if word.isdecimal() and len(word) < 5:
        return labels[int(word) - 1] if 1 <= int(word) <= len(labels) else ""
    meant = LABELS_BY_WORD.get(word, "").casefold()
    return next((label for label in labels if label.casefold() in (word, meant)), "")


def split_literal(text: str, limit: int, measure: MeasureText) -> list[str]:
    """Split a text into parts that fit. Joined, the parts are the text."""
    parts: list[str] = []
    while text:
        position = find_part_end(text, max(MIN_LIMIT, limit), measure)
        parts.append(text[:position])
        text = text[position:]
    return parts or [""]


def find_part_end(text: str, limit: int, measure: MeasureText) -> int:
    """Where the first part ends: after a line if the part is then half full, else within one."""
    low, high = 1, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if measure(text[:middle]) <= limit:
            low = middle
        else:
            high = middle - 1
    if low == len(text):
        return low
    line = text.rfind("\n", 0, low) + 1
    if line > low // 2:
        return line
    whole = next((position for position in range(low, 0, -1) if is_boundary(text, position)), low)
    return whole if whole > low // 2 else low


def build_pages(title: str, text: str, end: str, limit: int, measure: MeasureText) -> list[str]:
    """The messages that show a text between a title and a last line.

    No part of the text is at the edge of a message, where services strip white space.
    """
    parts = split_literal(text, limit - PAGE_OVERHEAD, measure)
    pages: list[str] = []
    for number, part in enumerate(parts, 1):
        first = f"{title}, part {number} of {len(parts)}" if len(parts) > 1 else title
        if number == len(parts):
            last = end
        elif part.endswith("\n"):
            last = f"[goes on in part {number + 1}]"
        else:
            last = f"[the line goes on in part {number + 1}]"
        gap = "" if part.endswith("\n") else "\n"
        pages.append(f"{first}\n{part}{gap}{last}")
    return pages
