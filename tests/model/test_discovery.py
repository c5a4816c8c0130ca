"""Discovery: what answers when nobody configured anything."""

import time
from pathlib import Path

import pytest

from crabtalk.model import HttpClient, LocalServer, discover, open_registry, preferred
from crabtalk.model.discovery import SERVERS, WAYS_ON, from_environment, moved, running_servers
from tests.model.fake import Answer, vendor

MODELS = Answer.of_json({"data": [{"id": "m1"}, {"id": "m2"}]})
TAGS = Answer.of_json({"models": [{"name": "qwen3:latest"}]})


def names(environ: dict[str, str]) -> list[str]:
    return [found.settings.name for found in from_environment(environ)]


@pytest.mark.req("discovery.order")
def test_keys_are_taken_in_their_order() -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "eu-west-1",
        "AZURE_OPENAI_API_KEY": "z",
        "AZURE_OPENAI_ENDPOINT": "https://z.example",
        "GEMINI_API_KEY": "g",
        "ANTHROPIC_API_KEY": "c",
        "OPENAI_API_KEY": "o",
    }
    assert names(environ) == ["openai", "anthropic", "google", "azure", "bedrock"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OPENAI_API_KEY": ""},
        {"AZURE_OPENAI_API_KEY": "z"},
        {"AWS_ACCESS_KEY_ID": "a", "AWS_REGION": "r"},
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"},
    ],
)
def test_half_a_set_of_credentials_is_none(environ: dict[str, str]) -> None:
    assert names(environ) == []


def test_base_urls_go_with_their_keys() -> None:
    (found,) = from_environment({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://h/v1"})
    assert found.settings.base_url == "http://h/v1"
    assert found.settings.api_key == "k"
    assert found.why == "OPENAI_API_KEY is set"
    (found,) = from_environment({"OPENAI_BASE_URL": "http://h/v1"})
    assert found.settings.api_key == ""
    (found,) = from_environment({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://a"})
    assert found.settings.base_url == "http://a"


@pytest.mark.req("discovery.no_key_sent")
async def test_servers_that_have_models_are_found_and_are_asked_without_a_key() -> None:
    http = HttpClient()
    async with (
        vendor(lambda _: Answer(silent=True)) as quiet,
        vendor(lambda _: TAGS) as ollama,
        vendor(lambda _: MODELS) as studio,
        vendor(lambda _: Answer([b"<html>"], content_type="text/html")) as page,
        vendor(lambda _: Answer.of_json({"error": "key?"}, 401)) as locked,
        vendor(lambda _: Answer.of_json({"data": []})) as empty,
    ):
        servers = [
            LocalServer("ollama", "Ollama", ollama.url, installed="/api/tags"),
            *(
                LocalServer(name, name, url)
                for name, url in {
                    "gone": "http://127.0.0.1:9",
                    "silent": quiet.url,
                    "studio": studio.url,
                    "page": page.url,
                    "locked": locked.url,
                    "empty": empty.url,
                }.items()
            ),
        ]
        # So long that a busy machine answers too.
        found = await running_servers({"OPENAI_API_KEY": "secret"}, http, servers, patience=2)
        await http.close()
    assert [(f.settings.name, f.settings.models) for f in found] == [
        ("ollama", ("qwen3:latest",)),
        ("studio", ("m1", "m2")),
    ]
    assert found[0].settings.base_url == f"{ollama.url}/v1"
    for fake in (ollama, studio, page, locked, empty):
        (asked,) = fake.asked
        assert asked.method == "GET"
        assert "authorization" not in asked.headers
        assert asked.body == b""


@pytest.mark.clock
async def test_who_says_nothing_is_waited_for_a_moment_and_all_at_once() -> None:
    http = HttpClient()
    async with vendor(lambda _: Answer(silent=True)) as quiet:
        servers = [LocalServer(name, name, quiet.url) for name in "abcdefgh"]
        start = time.monotonic()
        assert await running_servers({}, http, servers) == []
        assert time.monotonic() - start < 1.5
        await http.close()


def test_only_loopback_is_probed() -> None:
    assert all(server.base.startswith("http://127.0.0.1:") for server in SERVERS)


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("", "http://127.0.0.1:11434"),
        ("127.0.0.1:9999", "http://127.0.0.1:9999"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("https://gpu.example/", "https://gpu.example:11434"),
        ("[::1]:80", "http://[::1]:80"),
        ("[::1]", "http://[::1]:11434"),
    ],
)
def test_ollama_is_looked_for_where_it_says_it_is(host: str, base: str) -> None:
    assert moved(SERVERS[0], {"OLLAMA_HOST": host}).base == base
    assert moved(SERVERS[1], {"OLLAMA_HOST": host}) == SERVERS[1]


@pytest.mark.req("discovery.order")
async def test_keys_come_before_servers_and_configuration_before_both() -> None:
    async with vendor(lambda _: MODELS) as fake:
        servers = [LocalServer("studio", "LM Studio", fake.url)]
        http = HttpClient()
        found = await discover({"ANTHROPIC_API_KEY": "k"}, http, servers=servers)
        assert [f.settings.name for f in found] == ["anthropic", "studio"]
        await http.close()
        made = await open_registry({}, environ={}, servers=servers)
        assert await made.default_model() == "m1"
        await made.close()
        fake.asked.clear()
        made = await open_registry(
            {"llm": {"base_url": "http://h/v1", "model": "mine"}},
            environ={"ANTHROPIC_API_KEY": "k"},
            servers=servers,
        )
        assert [entry.settings.name for entry in made.entries] == ["llm"]
        assert await made.default_model() == "mine"
        assert fake.asked == []
        await made.close()


async def test_a_model_that_is_not_installed_is_not_found(tmp_path: Path) -> None:
    http = HttpClient()
    assert await discover({}, http, servers=(), models_directory=tmp_path) == []
    await http.close()


@pytest.mark.req("discovery.ways_on")
def test_three_ways_on_are_named() -> None:
    assert WAYS_ON.count("\n  - ") == 3
    for way in ("OPENAI_API_KEY", "Ollama", "crabtalkd model install", "crabtalkd setup"):
        assert way in WAYS_ON


def test_a_sensible_model_is_picked_from_a_long_list() -> None:
    offered = ["whisper-1", "gpt-4o", "gpt-5-mini-2025", "gpt-5"]
    assert preferred("openai", offered) == "gpt-5-mini-2025"
    assert preferred("anthropic", ["claude-opus-9", "claude-sonnet-5"]) == "claude-sonnet-5"
    assert preferred("bedrock", ["x", "y"]) == "x"
    assert preferred("openai", []) == ""
