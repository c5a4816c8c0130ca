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
    Registry,
    Request,
    SettingsError,
    open_registry,
)
from tests.model.fake import Answer, FakeVendor, vendor
from tests.model.test_openai import delta, sse

HI = (Message(role="user", text="hi"),)


def says(text: str) -> Answer:
    return Answer([sse(delta(content=text), delta(finish="stop"))])


def failing(status: int = 503) -> Answer:
    return Answer.of_json({"error": {"message": f"no {status}"}}, status)


def provider(name: str, fake: FakeVendor, *models: str, fallback: str = "") -> ProviderSettings:
    return ProviderSettings(
        name=name,
        base_url=fake.url,
        models=models,
        max_retries=0,
        fallback=fallback,
        source=f"entry {name}",
    )


@asynccontextmanager
async def registry(*settings: ProviderSettings) -> AsyncIterator[Registry]:
    made = Registry(environ={})
    try:
        for entry in settings:
            made.add(entry)
        yield made
    finally:
        await made.close()


async def answer(made: Registry, model: str = "") -> str:
    return (await made.complete(Request(model=model, messages=HI))).message.text


async def streamed(made: Registry, model: str = "") -> str:
    request = Request(model=model, messages=HI)
    return "".join([chunk.text async for chunk in made.stream(request)])


@pytest.mark.req("registry.routes")
async def test_a_request_goes_to_the_provider_of_its_model() -> None:
    async with (
        vendor(lambda _: says("from a")) as a,
        vendor(lambda _: says("from b")) as b,
        registry(provider("a", a, "a1", "a2"), provider("b", b, "b1")) as made,
    ):
        assert await answer(made, "a2") == "from a"
        assert await streamed(made, "b1") == "from b"
        assert a.asked[0].json["model"] == "a2"
        with pytest.raises(ApiError, match=r"no provider offers model 'c1'; there are a1, a2, b1"):
            await answer(made, "c1")


@pytest.mark.req("registry.no_duplicates")
async def test_a_model_offered_twice_is_refused_with_both_places() -> None:
    async with vendor([]) as fake, registry(provider("a", fake, "m")) as made:
        with pytest.raises(SettingsError, match=r"'a' \(entry a\) and by 'b' \(entry b\)"):
            made.add(provider("b", fake, "other", "m"))
        assert [entry.settings.name for entry in made.entries] == ["a"]
        with pytest.raises(SettingsError, match="called 'a' is there already"):
            made.add(provider("a", fake))


@pytest.mark.req("registry.switch")
async def test_the_default_is_switched_at_run_time() -> None:
    async with (
        vendor(lambda _: says("from a")) as a,
        vendor(lambda _: says("from b")) as b,
        registry(provider("a", a, "a1"), provider("b", b, "b1")) as made,
    ):
        assert await answer(made) == "from a"
        made.switch("b1")
        assert made.active == "b1"
        assert await answer(made) == "from b"
        assert await answer(made, "a1") == "from a"
        with pytest.raises(ApiError, match="no provider offers model 'nope'"):
            made.switch("nope")
        assert made.active == "b1"


@pytest.mark.req("registry.add_remove")
async def test_a_call_in_flight_survives_the_removal_of_its_provider() -> None:
    gate = asyncio.Event()

    async def pause(number: int) -> None:
        if number:
            await gate.wait()

    slow = Answer([sse(delta(content="a"), done=False), sse(delta(finish="stop"))], pause=pause)
    async with (
        vendor([slow]) as fake,
        vendor(lambda _: says("new")) as other,
        registry(provider("a", fake, "m")) as made,
    ):
        stream = made.stream(Request(model="m", messages=HI))
        assert (await anext(stream)).text == "a"
        await made.remove("a")
        with pytest.raises(ApiError, match="no provider offers"):
            await answer(made, "m")
        made.add(provider("b", other, "m"))
        assert await answer(made, "m") == "new"
        gate.set()
        assert [chunk.finish async for chunk in stream] == ["stop"]
        with pytest.raises(SettingsError, match="no provider is called 'a'"):
            await made.remove("a")


@pytest.mark.req("registry.fallback")
async def test_a_provider_that_keeps_failing_hands_over() -> None:
    async with (
        vendor(lambda _: failing()) as a,
        vendor(lambda _: failing(500)) as b,
        vendor(lambda _: says("at last")) as c,
        registry(
            provider("a", a, "a1", fallback="b"),
            provider("b", b, "b1", fallback="c"),
            provider("c", c, "c1", fallback="a"),
        ) as made,
    ):
        assert await answer(made, "a1") == "at last"
        assert await streamed(made, "a1") == "at last"
        assert [len(x.asked) for x in (a, b, c)] == [2, 2, 2]
        assert c.asked[0].json["model"] == "c1"


@pytest.mark.req("registry.fallback")
async def test_a_circle_of_failing_providers_ends_in_the_last_error() -> None:
    async with (
        vendor(lambda _: failing()) as a,
        vendor(lambda _: failing(500)) as b,
        registry(
            provider("a", a, "a1", fallback="b"), provider("b", b, "b1", fallback="a")
        ) as made,
    ):
        with pytest.raises(ApiError, match="no 500"):
            await answer(made, "a1")


@pytest.mark.req("registry.fallback")
async def test_what_would_fail_everywhere_is_not_handed_over() -> None:
    async with (
        vendor(lambda _: failing(400)) as a,
        vendor(lambda _: says("never")) as b,
        registry(provider("a", a, "a1", fallback="b"), provider("b", b, "b1")) as made,
    ):
        with pytest.raises(ApiError, match="no 400"):
            await streamed(made, "a1")
        assert b.asked == []


@pytest.mark.req("registry.fallback")
async def test_a_stream_somebody_saw_part_of_is_not_handed_over() -> None:
    broken = Answer([sse(delta(content="half"), done=False)], cut=True)
    async with (
        vendor([broken]) as a,
        vendor(lambda _: says("never")) as b,
        registry(provider("a", a, "a1", fallback="b"), provider("b", b, "b1")) as made,
    ):
        stream = made.stream(Request(model="a1", messages=HI))
        assert (await anext(stream)).text == "half"
        with pytest.raises(ApiError, match="mid-answer"):
            await anext(stream)
        assert b.asked == []


@pytest.mark.req("registry.variables")
async def test_settings_with_a_gap_are_the_error_of_their_models_only() -> None:
    gap = ProviderSettings(name="gap", api_key="${NOWHERE}", models=("g1",))
    async with vendor(lambda _: says("fine")) as fake, registry(gap, provider("a", fake)) as made:
        with pytest.raises(ApiError, match=r"\$\{NOWHERE\}, which is not set") as caught:
            await answer(made, "g1")
        assert caught.value.kind is ErrorKind.CONFIG
        assert caught.value.provider == "gap"
        assert await answer(made, "anything") == "fine"


async def test_without_a_model_the_first_advertised_answers() -> None:
    listing = Answer.of_json({"data": [{"id": "one", "context_length": 7}, {"id": "two"}]})
    async with vendor([listing, says("hello")]) as fake, registry(provider("a", fake)) as made:
        assert await answer(made) == "hello"
        assert fake.asked[1].json["model"] == "one"
        assert made.context_limit("one") == 7
        assert made.context_limit("nobody-knows") is None


@pytest.mark.req("models.context")
async def test_what_a_model_reads_is_told_also_where_its_vendor_does_not_say() -> None:
    listing = Answer.of_json({"data": [{"id": "gpt-4o"}, {"id": "one", "context_length": 7}]})
    async with vendor([listing]) as fake, registry(provider("a", fake)) as made:
        assert await made.models() == [ModelInfo("gpt-4o", 128_000), ModelInfo("one", 7)]


async def test_models_of_all_providers_are_listed_even_when_one_is_away() -> None:
    listing = Answer.of_json({"data": [{"id": "one"}]})
    async with (
        vendor([listing]) as a,
        vendor(lambda _: failing()) as b,
        registry(provider("a", a), provider("b", b, "b1"), provider("c", b)) as made,
    ):
        assert await made.models() == [ModelInfo("one"), ModelInfo("b1")]


async def test_with_nothing_at_all_the_next_step_is_named() -> None:
    async with registry() as made:
        with pytest.raises(ApiError, match="crabtalkd setup"):
            await answer(made)


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
