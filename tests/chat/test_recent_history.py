"""Of what was said before, as much is shown as a few screens hold."""

from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.recent_history import estimate_height, select_last
from crabtalk.protocol import wire


def make_message(content: str, role: str = "assistant", calls: int = 0) -> wire.ConversationMessage:
    made = [wire.ToolCallInfo(name="bash", id=f"c{number}") for number in range(calls)]
    return wire.ConversationMessage(role=role, content=content, tool_calls=made)


def make_lines(first: int, end: int) -> str:
    return "\n".join(f"line {number}" for number in range(first, end))


def test_the_last_messages_that_fill_the_lines_are_kept() -> None:
    said = [make_message(f"message {number}") for number in range(100)]
    kept, is_enough = select_last(said, 20, 80)
    assert [each.content for each in kept] == [f"message {number}" for number in range(90, 100)]
    assert is_enough
    assert select_last(said[:3], 20, 80) == (said[:3], False)


def test_of_a_long_message_the_end_is_kept() -> None:
    kept, is_enough = select_last([make_message(make_lines(0, 10_000))], 30, 80)
    assert [each.content for each in kept] == [f"…\n\n{make_lines(9_970, 10_000)}"]
    assert is_enough


def test_what_began_as_code_goes_on_as_code() -> None:
    kept, _ = select_last(
        [make_message(f"```python\n{make_lines(0, 100)}\n```\nThat is it.")], 10, 80
    )
    assert kept[0].content == f"…\n\n```\n{make_lines(92, 100)}\n```\nThat is it."


def test_outputs_stay_with_their_calls() -> None:
    said = [
        make_message("", calls=1),
        make_message(make_lines(0, 500), role="tool"),
        make_message("done"),
    ]
    kept, is_enough = select_last(said, 72, 80)
    assert kept == said
    assert not is_enough


@given(st.lists(st.builds(make_message, st.text(max_size=300)), max_size=20), st.integers(1, 60))
def test_there_are_never_many_more_lines_than_wanted(
    said: list[wire.ConversationMessage], wanted: int
) -> None:
    kept, is_enough = select_last(said, wanted, 40)
    assert sum(estimate_height(each, 40) for each in kept) <= wanted + 12
    assert is_enough or kept == said
