"""Any JSON in a model's stream is read as an answer or refused with a sentence."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import ApiError, Chunk
from crabtalk.model.openai import OpenAiDecoder
from crabtalk.model.response_assembler import ResponseAssembler
from tests.faults.bad_model import DONE, make_sse_event

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def objects_like(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields, or any other JSON value."""
    optional: dict[str, st.SearchStrategy[Any]] = {
        name: value | JSON for name, value in fields.items()
    }
    return st.fixed_dictionaries({}, optional=optional) | JSON


FUNCTION = objects_like(name=st.text(), arguments=st.text())
CALL = objects_like(index=st.integers(), id=st.text(), function=FUNCTION)
DELTA = objects_like(content=st.text(), reasoning=st.text(), tool_calls=st.lists(CALL))
CHOICE = objects_like(delta=DELTA, finish_reason=st.sampled_from(["stop", "tool_calls", "length"]))
USAGE = objects_like(
    prompt_tokens=st.integers(), prompt_tokens_details=objects_like(cached_tokens=st.integers())
)
EVENT = objects_like(choices=st.lists(CHOICE), usage=USAGE, error=JSON)


@given(st.lists(EVENT, max_size=4))
def test_a_stream_of_any_objects_is_an_answer_or_an_error(events: list[Any]) -> None:
    decoder, assembler = OpenAiDecoder(), ResponseAssembler()
    try:
        chunks = decoder.feed(b"".join(map(make_sse_event, events)) + DONE) + decoder.end()
        for chunk in chunks:
            assembler.add(chunk)
        message = assembler.build_message()
    except ApiError:
        return
    assert all(chunk != Chunk() for chunk in chunks)
    assert isinstance(message.text, str)
    assert isinstance(message.reasoning, str)
    usage = assembler.usage
    assert all(isinstance(count, int) for count in (usage.prompt, usage.completion, usage.total))
