"""The end of the history that fills a few screens."""

from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.recent_history import estimate_height, select_last
from crabtalk.protocol import wire


def make_message(content: str, role: str = "assistant", calls: int = 0) -> wire.ConversationMessage:
    tool_calls = [wire.ToolCallInfo(name="bash", id=f"c{number}") for number in range(calls)]
    return wire.ConversationMessage(role=role, content=content, tool_calls=tool_calls)


def make_lines(first: int, end: int) -> str:
    return "\n".join(f"line {number}" for number in range(first, end))


def test_the_last_messages_that_fill_the_lines_are_selected() -> None:
    messages = [make_message(f"message {number}") for number in range(100)]
    selected, is_enough = select_last(messages, 20, 80)
    assert [message.content for message in selected] == [
        f"message {number}" for number in range(90, 100)
    ]
    assert is_enough
    assert select_last(messages[:3], 20, 80) == (messages[:3], False)


def test_the_end_of_a_long_message_is_selected() -> None:
    selected, is_enough = select_last([make_message(make_lines(0, 10_000))], 30, 80)
    assert [message.content for message in selected] == [f"…\n\n{make_lines(9_970, 10_000)}"]
    assert is_enough


def test_a_message_cut_inside_code_gets_a_fence() -> None:
    selected, _ = select_last(
        [make_message(f"```python\n{make_lines(0, 100)}\n```\nThat is it.")], 10, 80
    )
    assert selected[0].content == f"…\n\n```\n{make_lines(92, 100)}\n```\nThat is it."


def test_tool_outputs_are_selected_with_their_calls() -> None:
    messages = [
        make_message("", calls=1),
        make_message(make_lines(0, 500), role="tool"),
        make_message("done"),
    ]
    selected, is_enough = select_last(messages, 72, 80)
    assert selected == messages
    assert not is_enough


@given(st.lists(st.builds(make_message, st.text(max_size=300)), max_size=20), st.integers(1, 60))
def test_hardly_more_lines_are_selected_than_wanted(
    messages: list[wire.ConversationMessage], line_count: int
) -> None:
    selected, is_enough = select_last(messages, line_count, 40)
    assert sum(estimate_height(message, 40) for message in selected) <= line_count + 12
    assert is_enough or selected == messages
