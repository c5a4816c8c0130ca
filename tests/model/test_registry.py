"""Registry: many providers as one, over real connections to scripted vendors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from crabtalk.model import (
    ApiError,
    ErrorKind,
    Message,
    ModelInfo,
    ProviderSettings,
    ProviderSettingsError,
    Registry,
    Request,
    open_registry,
)
from tests.model.fake_vendor import FakeVendor, VendorAnswer, run_vendor
from tests.model.test_openai import build_delta, encode_sse

HI = (Message(role="user", text="hi"),)


def build_text_answer(text: str) -> VendorAnswer:
    return VendorAnswer([encode_sse(build_delta(content=text), build_delta(finish="stop"))])


def build_error_answer(status: int = 503) -> VendorAnswer:
    return VendorAnswer.from_json({"error": {"message": f"no {status}"}}, status)


def build_settings(
    name: str, fake: FakeVendor, *models: str, fallback: str = ""
) -> ProviderSettings:
    return ProviderSettings(
        name=name,
        base_url=fake.url,
        models=models,
        max_retries=0,
        fallback=fallback,
        source=f"entry {name}",
    )


@asynccontextmanager
async def create_registry(*settings: ProviderSettings) -> AsyncIterator[Registry]:
    made = Registry(environ={})
    try:
        for entry in settings:
            made.add(entry)
        yield made
    finally:
        await made.close()


async def complete_text(made: Registry, model: str = "") -> str:
    return (await made.complete(Request(model=model, messages=HI))).message.text


async def stream_text(made: Registry, model: str = "") -> str:
    request = Request(model=model, messages=HI)
    return "".join([chunk.text async for chunk in made.stream(request)])


@pytest.mark.req("registry.routes")
async def test_a_request_goes_to_the_provider_of_its_model() -> None:
    async with (
        run_vendor(lambda _: build_text_answer("from a")) as a,
        run_vendor(lambda _: build_text_answer("from b")) as b,
        create_registry(build_settings("a", a, "a1", "a2"), build_settings("b", b, "b1")) as made,
    ):
        assert await complete_text(made, "a2") == "from a"
        assert await stream_text(made, "b1") == "from b"
        assert a.requests[0].json["model"] == "a2"
        with pytest.raises(ApiError, match=r"no provider offers model 'c1'; there are a1, a2, b1"):
            await complete_text(made, "c1")


@pytest.mark.req("registry.no_duplicates")
async def test_a_model_offered_twice_is_refused_with_both_places() -> None:
    async with run_vendor([]) as fake, create_registry(build_settings("a", fake, "m")) as made:
        with pytest.raises(ProviderSettingsError, match=r"'a' \(entry a\) and by 'b' \(entry b\)"):
            made.add(build_settings("b", fake, "other", "m"))
        assert [entry.settings.name for entry in made.entries] == ["a"]
        with pytest.raises(ProviderSettingsError, match="called 'a' is there already"):
            made.add(build_settings("a", fake))


@pytest.mark.req("registry.switch")
async def test_the_default_is_switched_at_run_time() -> None:
    async with (
        run_vendor(lambda _: build_text_answer("from a")) as a,
        run_vendor(lambda _: build_text_answer("from b")) as b,
        create_registry(build_settings("a", a, "a1"), build_settings("b", b, "b1")) as made,
    ):
        assert await complete_text(made) == "from a"
        made.switch("b1")
        assert made.active == "b1"
        assert await complete_text(made) == "from b"
        assert await complete_text(made, "a1") == "from a"
        with pytest.raises(ApiError, match="no provider offers model 'nope'"):
            made.switch("nope")
        assert made.active == "b1"


@pytest.mark.req("registry.add_remove")
async def test_a_call_in_flight_survives_the_removal_of_its_provider() -> None:
    gate = asyncio.Event()

    async def pause(number: int) -> None:
        if number:
            await gate.wait()

    slow = VendorAnswer(
        [encode_sse(build_delta(content="a"), done=False), encode_sse(build_delta(finish="stop"))],
        pause=pause,
    )
    async with (
        run_vendor([slow]) as fake,
        run_vendor(lambda _: build_text_answer("new")) as other,
        create_registry(build_settings("a", fake, "m")) as made,
    ):
        stream = made.stream(Request(model="m", messages=HI))
        assert (await anext(stream)).text == "a"
        await made.remove("a")
        with pytest.raises(ApiError, match="no provider offers"):
            await complete_text(made, "m")
        made.add(build_settings("b", other, "m"))
        assert await complete_text(made, "m") == "new"
        gate.set()
        assert [chunk.finish async for chunk in stream] == ["stop"]
        with pytest.raises(ProviderSettingsError, match="no provider is called 'a'"):
            await made.remove("a")


@pytest.mark.req("registry.fallback")
async def test_a_provider_that_keeps_failing_hands_over() -> None:
    async with (
        run_vendor(lambda _: build_error_answer()) as a,
        run_vendor(lambda _: build_error_answer(500)) as b,
        run_vendor(lambda _: build_text_answer("at last")) as c,
        create_registry(
            build_settings("a", a, "a1", fallback="b"),
            build_settings("b", b, "b1", fallback="c"),
            build_settings("c", c, "c1", fallback="a"),
        ) as made,
    ):
        assert await complete_text(made, "a1") == "at last"
        assert await stream_text(made, "a1") == "at last"
        assert [len(x.requests) for x in (a, b, c)] == [2, 2, 2]
        assert c.requests[0].json["model"] == "c1"


@pytest.mark.req("registry.fallback")
async def test_a_circle_of_failing_providers_ends_in_the_last_error() -> None:
    async with (
        run_vendor(lambda _: build_error_answer()) as a,
        run_vendor(lambda _: build_error_answer(500)) as b,
        create_registry(
            build_settings("a", a, "a1", fallback="b"), build_settings("b", b, "b1", fallback="a")
        ) as made,
    ):
        with pytest.raises(ApiError, match="no 500"):
            await complete_text(made, "a1")


@pytest.mark.req("registry.fallback")
async def test_what_would_fail_everywhere_is_not_handed_over() -> None:
    async with (
        run_vendor(lambda _: build_error_answer(400)) as a,
        run_vendor(lambda _: build_text_answer("never")) as b,
        create_registry(
            build_settings("a", a, "a1", fallback="b"), build_settings("b", b, "b1")
        ) as made,
    ):
        with pytest.raises(ApiError, match="no 400"):
            await stream_text(made, "a1")
        assert b.requests == []


@pytest.mark.req("registry.fallback")
async def test_a_stream_somebody_saw_part_of_is_not_handed_over() -> None:
    broken = VendorAnswer([encode_sse(build_delta(content="half"), done=False)], cut=True)
    async with (
        run_vendor([broken]) as a,
        run_vendor(lambda _: build_text_answer("never")) as b,
        create_registry(
            build_settings("a", a, "a1", fallback="b"), build_settings("b", b, "b1")
        ) as made,
    ):
        stream = made.stream(Request(model="a1", messages=HI))
        assert (await anext(stream)).text == "half"
        with pytest.raises(ApiError, match="mid-answer"):
            await anext(stream)
        assert b.requests == []


@pytest.mark.req("registry.variables")
async def test_settings_with_a_gap_are_the_error_of_their_models_only() -> None:
    gap = ProviderSettings(name="gap", api_key="${NOWHERE}", models=("g1",))
    async with (
        run_vendor(lambda _: build_text_answer("fine")) as fake,
        create_registry(gap, build_settings("a", fake)) as made,
    ):
        with pytest.raises(ApiError, match=r"\$\{NOWHERE\}, which is not set") as caught:
            await complete_text(made, "g1")
        assert caught.value.kind is ErrorKind.CONFIG
        assert caught.value.provider == "gap"
        assert await complete_text(made, "anything") == "fine"


async def test_without_a_model_the_first_advertised_answers() -> None:
    listing = VendorAnswer.from_json({"data": [{"id": "one", "context_length": 7}, {"id": "two"}]})
    async with (
        run_vendor([listing, build_text_answer("hello")]) as fake,
        create_registry(build_settings("a", fake)) as made,
    ):
        assert await complete_text(made) == "hello"
        assert fake.requests[1].json["model"] == "one"
        assert made.context_limit("one") == 7
        assert made.context_limit("nobody-knows") is None


@pytest.mark.req("models.context")
async def test_what_a_model_reads_is_told_also_where_its_vendor_does_not_say() -> None:
    listing = VendorAnswer.from_json(
        {"data": [{"id": "gpt-4o"}, {"id": "one", "context_length": 7}]}
    )
    async with run_vendor([listing]) as fake, create_registry(build_settings("a", fake)) as made:
        assert await made.models() == [ModelInfo("gpt-4o", 128_000), ModelInfo("one", 7)]


async def test_models_of_all_providers_are_listed_even_when_one_is_away() -> None:
    listing = VendorAnswer.from_json({"data": [{"id": "one"}]})
    async with (
        run_vendor([listing]) as a,
        run_vendor(lambda _: build_error_answer()) as b,
        create_registry(
            build_settings("a", a), build_settings("b", b, "b1"), build_settings("c", b)
        ) as made,
    ):
        assert await made.models() == [ModelInfo("one"), ModelInfo("b1")]


async def test_with_nothing_at_all_the_next_step_is_named() -> None:
    async with create_registry() as made:
        with pytest.raises(ApiError, match="crabtalkd setup"):
            await complete_text(made)


async def test_a_configuration_opens_with_its_default() -> None:
    document = {
        "daemon": {"model": "b1"},
        "providers": [{"name": "a", "models": ["a1"]}, {"name": "b", "models": ["b1"]}],
    }
    made = await open_registry(document, environ={}, servers=())
    assert made.active == "b1"
    assert [entry.settings.name for entry in made.entries] == ["a", "b"]
    await made.close()


async def test_a_fallback_to_the_local_model_needs_no_entry_of_its_own() -> None:
    document = {"providers": [{"name": "a", "models": ["a1"], "fallback": "local"}]}
    made = await open_registry(document, environ={}, servers=())
    assert [entry.settings.name for entry in made.entries] == ["a", "local"]
    await made.close()


async def test_without_any_provider_it_says_what_to_type() -> None:
    made = Registry(environ={}, setup="crabtalkd setup --home /h")
    try:
        with pytest.raises(ApiError, match="no model is set up; `crabtalkd setup --home /h` helps"):
            await made.default_model()
    finally:
        await made.close()
