"""Select the end of the history that fills a few screens when a chat opens.

Conversations and single messages can be very long; opening a chat must not wait for all of it.
`/history` shows more.
"""

from collections.abc import Sequence

from crabtalk.protocol import wire

FIRST_FETCH = 24  # messages; usually more than is shown
SECOND_FETCH = 400  # for conversations of very short messages
CALL_LINES = 8  # estimated lines of a tool call with its shortened output
FENCES = ("```", "~~~")


def select_last(
    messages: Sequence[wire.ConversationMessage], lines: int, width: int
) -> tuple[list[wire.ConversationMessage], bool]:
    """Return the last messages that fill `lines`, and whether they fill them.

    The first of them may be cut.
    """
    selected: list[wire.ConversationMessage] = []
    left = lines
    for message in reversed(messages):
        if left <= 0:
            return selected[::-1], True
        height = estimate_height(message, width)
        selected.append(message if height <= left else truncate_to_end(message, left, width))
        left -= height
    return selected[::-1], left <= 0


def estimate_height(message: wire.ConversationMessage, width: int) -> int:
    """Estimate the lines of a message."""
    if message.role == "tool":  # shown with its call
        return 0
    text_lines = sum(count_rows(line, width) for line in message.content.split("\n"))
    return text_lines + CALL_LINES * len(message.tool_calls) + 1


def truncate_to_end(
    message: wire.ConversationMessage, lines: int, width: int
) -> wire.ConversationMessage:
    """Return the end of a long message. If the cut is in a code block, a fence is added."""
    before = message.content.split("\n")
    tail: list[str] = []
    while before and lines > 0:
        lines -= count_rows(before[-1], width)
        tail.append(before.pop())
    is_code = sum(line.lstrip().startswith(FENCES) for line in before) % 2
    shorter = wire.ConversationMessage()
    shorter.CopyFrom(message)
    shorter.content = "\n".join(["…", "", *(["```"] if is_code else []), *tail[::-1]])
    return shorter


def count_rows(line: str, width: int) -> int:
    return max(-(-len(line) // max(width, 1)), 1)
