"""The parts that all vendors share: retry delays, assembly of answers, usage."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import (
    ApiError,
    Chunk,
    ErrorKind,
    ResponseAssembler,
    RetryPolicy,
    ToolCall,
    ToolCallDelta,
)
from crabtalk.model.messages import Usage
from tests.model.fake_vendor import VendorAnswer, run_vendor
from tests.model.test_openai import FULL, collect_chunks, open_provider

BUSY = ApiError(ErrorKind.OVERLOADED, "busy")


@pytest.mark.req("model.retry")
@given(st.integers(0, 6))
def test_delays_double_from_a_tenth_of_a_second_with_jitter_between_half_and_full(
    attempt: int,
) -> None:
    full = 0.1 * 2**attempt
    assert full / 2 <= RetryPolicy().compute_delay(attempt, BUSY) <= full
    assert RetryPolicy(draw_jitter=lambda low, high: low).compute_delay(attempt, BUSY) == full / 2
    assert RetryPolicy(draw_jitter=lambda low, high: high).compute_delay(attempt, BUSY) == full


@pytest.mark.req("model.retry")
def test_the_retry_delay_of_the_vendor_is_used() -> None:
    asked = ApiError(ErrorKind.RATE_LIMIT, "later", retry_after=7.0)
    assert RetryPolicy().compute_delay(0, asked) == 7.0
    assert RetryPolicy().max_retries == 2


@pytest.mark.req("model.retry")
async def test_retry_after_is_waited_for() -> None:
    later = VendorAnswer.from_json({"error": {"message": "later"}}, 429, retry_after_ms="150")
    loop = asyncio.get_running_loop()
    async with run_vendor([later, VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        start = loop.time()
        await collect_chunks(model)
        assert loop.time() - start >= 0.15


async def test_a_retry_delay_that_is_too_long_is_an_error() -> None:
    later = VendorAnswer.from_json({"error": {"message": "tomorrow"}}, 429, retry_after="86400")
    async with run_vendor([later, VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match="tomorrow") as caught:
            await collect_chunks(model)
        assert caught.value.retry_after == 86400
    assert len(fake.requests) == 1


def test_calls_are_put_together_by_index() -> None:
    assembler = ResponseAssembler()
    for delta in (
        ToolCallDelta(1, id="b", name="y", arguments='{"k"'),
        ToolCallDelta(0, id="a", name="x"),
        ToolCallDelta(1, arguments=":1}"),
    ):
        assembler.add(Chunk(tool_calls=(delta,)))
    assembler.add(Chunk(opaque={"v": 1}, usage=Usage(1, 2, 3), finish="tool_calls"))
    message = assembler.build_message()
    assert message.tool_calls == (
        ToolCall(id="a", name="x"),
        ToolCall(id="b", name="y", arguments='{"k":1}'),
    )
    assert message.opaque == {"v": 1}
    assert assembler.build_response("m").usage == Usage(1, 2, 3)


@pytest.mark.req("model.bad.tool_call")
@pytest.mark.parametrize(
    ("delta", "sentence"),
    [
        (ToolCallDelta(0, name="bash"), r"\(bash\) without an id"),
        (ToolCallDelta(0, id="c1"), r"\(c1\) without a name"),
        (ToolCallDelta(0, arguments="{}"), r"\(unnamed\) without an id"),
    ],
)
def test_an_incomplete_call_is_an_error(delta: ToolCallDelta, sentence: str) -> None:
    assembler = ResponseAssembler()
    assembler.add(Chunk(tool_calls=(delta,)))
    with pytest.raises(ApiError, match=sentence):
        assembler.build_message()


def test_usage_adds_known_counts() -> None:
    total = Usage(1, 2, 3, cache_hit=4) + Usage(10, 20, 30, reasoning=5)
    assert total == Usage(11, 22, 33, cache_hit=4, cache_miss=None, reasoning=5)
    assert Usage(cache_hit=1) + Usage(cache_hit=2) == Usage(cache_hit=3)
