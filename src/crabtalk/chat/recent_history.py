"""The past: of what was said before, the end, as much as a few screens hold.

A conversation may be of any length, and so may one message of it. Whoever opens a chat waits for
neither: the rest is the daemon's, and `/history` has it.
"""

from collections.abc import Sequence

from crabtalk.protocol import wire

FIRST_FETCH = 24  # messages; mostly more than is shown
SECOND_FETCH = 400  # for those who answer in a word
CALL_LINES = 8  # lines a tool call takes, its output cut short
FENCES = ("```", "~~~")


def select_last(
    messages: Sequence[wire.ConversationMessage], lines: int, width: int
) -> tuple[list[wire.ConversationMessage], bool]:
    """The last of them that fill so many lines, and whether they do. The first may be cut."""
    kept: list[wire.ConversationMessage] = []
    left = lines
    for message in reversed(messages):
        if left <= 0:
            return kept[::-1], True
        taken = estimate_height(message, width)
        kept.append(message if taken <= left else truncate_to_end(message, left, width))
        left -= taken
    return kept[::-1], left <= 0


def estimate_height(message: wire.ConversationMessage, width: int) -> int:
    """About so many lines."""
    if message.role == "tool":  # shown with its call
        return 0
    text = sum(count_rows(line, width) for line in message.content.split("\n"))
    return text + CALL_LINES * len(message.tool_calls) + 1


def truncate_to_end(
    message: wire.ConversationMessage, lines: int, width: int
) -> wire.ConversationMessage:
    """The end of a long one. What began as code goes on as code."""
    before = message.content.split("\n")
    kept: list[str] = []
    while before and lines > 0:
        lines -= count_rows(before[-1], width)
        kept.append(before.pop())
    is_code = sum(line.lstrip().startswith(FENCES) for line in before) % 2
    shorter = wire.ConversationMessage()
    shorter.CopyFrom(message)
    shorter.content = "\n".join(["…", "", *(["```"] if is_code else []), *kept[::-1]])
    return shorter


def count_rows(line: str, width: int) -> int:
    return max(-(-len(line) // max(width, 1)), 1)
