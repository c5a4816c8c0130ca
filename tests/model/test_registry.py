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
    registry = Registry(environ={})
    try:
        for entry in settings:
            registry.add(entry)
        yield registry
    finally:
        await registry.close()


async def complete_text(registry: Registry, model: str = "") -> str:
    return (await registry.complete(Request(model=model, messages=HI))).message.text


async def stream_text(registry: Registry, model: str = "") -> str:
    request = Request(model=model, messages=HI)
    return "".join([chunk.text async for chunk in registry.stream(request)])


@pytest.mark.req("registry.routes")
async def test_a_request_goes_to_the_provider_of_its_model() -> None:
    async with (
        run_vendor(lambda _: build_text_answer("from a")) as a,
        run_vendor(lambda _: build_text_answer("from b")) as b,
        create_registry(
            build_settings("a", a, "a1", "a2"), build_settings("b", b, "b1")
        ) as registry,
    ):
        assert await complete_text(registry, "a2") == "from a"
        assert await stream_text(registry, "b1") == "from b"
        assert a.requests[0].json["model"] == "a2"
        with pytest.raises(ApiError, match=r"no provider offers model 'c1'; there are a1, a2, b1"):
            await complete_text(registry, "c1")


@pytest.mark.req("registry.no_duplicates")
async def test_a_model_offered_twice_is_refused_with_both_sources() -> None:
    async with run_vendor([]) as fake, create_registry(build_settings("a", fake, "m")) as registry:
        with pytest.raises(ProviderSettingsError, match=r"'a' \(entry a\) and by 'b' \(entry b\)"):
            registry.add(build_settings("b", fake, "other", "m"))
        assert [entry.settings.name for entry in registry.entries] == ["a"]
        with pytest.raises(ProviderSettingsError, match="called 'a' is there already"):
            registry.add(build_settings("a", fake))


@pytest.mark.req("registry.switch")
async def test_the_default_is_switched_at_run_time() -> None:
    async with (
        run_vendor(lambda _: build_text_answer("from a")) as a,
        run_vendor(lambda _: build_text_answer("from b")) as b,
        create_registry(build_settings("a", a, "a1"), build_settings("b", b, "b1")) as registry,
    ):
        assert await complete_text(registry) == "from a"
        registry.switch("b1")
        assert registry.active == "b1"
        assert await complete_text(registry) == "from b"
        assert await complete_text(registry, "a1") == "from a"
        with pytest.raises(ApiError, match="no provider offers model 'nope'"):
            registry.switch("nope")
        assert registry.active == "b1"


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
        create_registry(build_settings("a", fake, "m")) as registry,
    ):
        stream = registry.stream(Request(model="m", messages=HI))
        assert (await anext(stream)).text == "a"
        await registry.remove("a")
        with pytest.raises(ApiError, match="no provider offers"):
            await complete_text(registry, "m")
        registry.add(build_settings("b", other, "m"))
        assert await complete_text(registry, "m") == "new"
        gate.set()
        assert [chunk.finish async for chunk in stream] == ["stop"]
        with pytest.raises(ProviderSettingsError, match="no provider is called 'a'"):
            await registry.remove("a")


@pytest.mark.req("registry.fallback")
async def test_a_failing_provider_falls_back_to_another() -> None:
    async with (
        run_vendor(lambda _: build_error_answer()) as a,
        run_vendor(lambda _: build_error_answer(500)) as b,
        run_vendor(lambda _: build_text_answer("at last")) as c,
        create_registry(
            build_settings("a", a, "a1", fallback="b"),
            build_settings("b", b, "b1", fallback="c"),
            build_settings("c", c, "c1", fallback="a"),
        ) as registry,
    ):
        assert await complete_text(registry, "a1") == "at last"
        assert await stream_text(registry, "a1") == "at last"
        assert [len(x.requests) for x in (a, b, c)] == [2, 2, 2]
        assert c.requests[0].json["model"] == "c1"


@pytest.mark.req("registry.fallback")
async def test_a_cycle_of_failing_providers_ends_with_the_last_error() -> None:
    async with (
        run_vendor(lambda _: build_error_answer()) as a,
        run_vendor(lambda _: build_error_answer(500)) as b,
        create_registry(
            build_settings("a", a, "a1", fallback="b"), build_settings("b", b, "b1", fallback="a")
        ) as registry,
    ):
        with pytest.raises(ApiError, match="no 500"):
            await complete_text(registry, "a1")


@pytest.mark.req("registry.fallback")
async def test_errors_that_would_occur_everywhere_cause_no_fallback() -> None:
    async with (
        run_vendor(lambda _: build_error_answer(400)) as a,
        run_vendor(lambda _: build_text_answer("never")) as b,
        create_registry(
            build_settings("a", a, "a1", fallback="b"), build_settings("b", b, "b1")
        ) as registry,
    ):
        with pytest.raises(ApiError, match="no 400"):
            await stream_text(registry, "a1")
        assert b.requests == []


@pytest.mark.req("registry.fallback")
async def test_a_stream_does_not_fall_back_after_its_first_chunk() -> None:
    broken = VendorAnswer([encode_sse(build_delta(content="half"), done=False)], cut=True)
    async with (
        run_vendor([broken]) as a,
        run_vendor(lambda _: build_text_answer("never")) as b,
        create_registry(
            build_settings("a", a, "a1", fallback="b"), build_settings("b", b, "b1")
        ) as registry,
    ):
        stream = registry.stream(Request(model="a1", messages=HI))
        assert (await anext(stream)).text == "half"
        with pytest.raises(ApiError, match="mid-answer"):
            await anext(stream)
        assert b.requests == []


@pytest.mark.req("registry.variables")
async def test_incomplete_settings_affect_only_their_own_models() -> None:
    gap = ProviderSettings(name="gap", api_key="${NOWHERE}", models=("g1",))
    async with (
        run_vendor(lambda _: build_text_answer("fine")) as fake,
        create_registry(gap, build_settings("a", fake)) as registry,
    ):
        with pytest.raises(ApiError, match=r"\$\{NOWHERE\}, which is not set") as caught:
            await complete_text(registry, "g1")
        assert caught.value.kind is ErrorKind.CONFIG
        assert caught.value.provider == "gap"
        assert await complete_text(registry, "anything") == "fine"


async def test_without_a_configured_model_the_first_advertised_one_is_used() -> None:
    listing = VendorAnswer.from_json({"data": [{"id": "one", "context_length": 7}, {"id": "two"}]})
    async with (
        run_vendor([listing, build_text_answer("hello")]) as fake,
        create_registry(build_settings("a", fake)) as registry,
    ):
        assert await complete_text(registry) == "hello"
        assert fake.requests[1].json["model"] == "one"
        assert registry.context_limit("one") == 7
        assert registry.context_limit("unknown-model") is None


@pytest.mark.req("models.context")
async def test_a_known_context_limit_is_listed_if_the_vendor_reports_none() -> None:
    listing = VendorAnswer.from_json(
        {"data": [{"id": "gpt-4o"}, {"id": "one", "context_length": 7}]}
    )
    async with (
        run_vendor([listing]) as fake,
        create_registry(build_settings("a", fake)) as registry,
    ):
        assert await registry.models() == [ModelInfo("gpt-4o", 128_000), ModelInfo("one", 7)]


async def test_models_of_all_providers_are_listed_even_if_one_is_unreachable() -> None:
    listing = VendorAnswer.from_json({"data": [{"id": "one"}]})
    async with (
        run_vendor([listing]) as a,
        run_vendor(lambda _: build_error_answer()) as b,
        create_registry(
            build_settings("a", a), build_settings("b", b, "b1"), build_settings("c", b)
        ) as registry,
    ):
        assert await registry.models() == [ModelInfo("one"), ModelInfo("b1")]


async def test_without_providers_the_error_names_the_next_step() -> None:
    async with create_registry() as registry:
        with pytest.raises(ApiError, match="crabtalkd setup"):
            await complete_text(registry)


async def test_a_configuration_opens_with_its_default() -> None:
    document = {
        "daemon": {"model": "b1"},
        "providers": [{"name": "a", "models": ["a1"]}, {"name": "b", "models": ["b1"]}],
    }
    registry = await open_registry(document, environ={}, servers=())
    assert registry.active == "b1"
    assert [entry.settings.name for entry in registry.entries] == ["a", "b"]
    await registry.close()


async def test_a_fallback_to_the_local_model_needs_no_entry_of_its_own() -> None:
    document = {"providers": [{"name": "a", "models": ["a1"], "fallback": "local"}]}
    registry = await open_registry(document, environ={}, servers=())
    assert [entry.settings.name for entry in registry.entries] == ["a", "local"]
    await registry.close()


async def test_without_any_provider_the_error_names_the_setup_command() -> None:
    registry = Registry(environ={}, setup="crabtalkd setup --home /h")
    try:
        with pytest.raises(ApiError, match="no model is set up; `crabtalkd setup --home /h` helps"):
            await registry.default_model()
    finally:
        await registry.close()
