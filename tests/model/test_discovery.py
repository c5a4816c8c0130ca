"""Discovery: which model is used without configuration."""

import time
from pathlib import Path

import pytest

from crabtalk.model import (
    HttpClient,
    LocalServer,
    choose_preferred_model,
    discover_providers,
    open_registry,
)
from crabtalk.model.discovery import (
    KNOWN_LOCAL_SERVERS,
    SETUP_HELP,
    apply_ollama_host,
    find_environment_providers,
    find_running_servers,
)
from tests.model.fake_vendor import VendorAnswer, run_vendor

MODELS = VendorAnswer.from_json({"data": [{"id": "m1"}, {"id": "m2"}]})
TAGS = VendorAnswer.from_json({"models": [{"name": "qwen3:latest"}]})


def list_names(environ: dict[str, str]) -> list[str]:
    return [found.settings.name for found in find_environment_providers(environ)]


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
    assert list_names(environ) == ["openai", "anthropic", "google", "azure", "bedrock"]


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
def test_incomplete_credentials_are_ignored(environ: dict[str, str]) -> None:
    assert list_names(environ) == []


def test_base_urls_go_with_their_keys() -> None:
    (found,) = find_environment_providers({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://h/v1"})
    assert found.settings.base_url == "http://h/v1"
    assert found.settings.api_key == "k"
    assert found.reason == "OPENAI_API_KEY is set"
    (found,) = find_environment_providers({"OPENAI_BASE_URL": "http://h/v1"})
    assert found.settings.api_key == ""
    (found,) = find_environment_providers(
        {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://a"}
    )
    assert found.settings.base_url == "http://a"


@pytest.mark.req("discovery.no_key_sent")
async def test_servers_that_have_models_are_found_and_are_asked_without_a_key() -> None:
    http = HttpClient()
    async with (
        run_vendor(lambda _: VendorAnswer(silent=True)) as quiet,
        run_vendor(lambda _: TAGS) as ollama,
        run_vendor(lambda _: MODELS) as studio,
        run_vendor(lambda _: VendorAnswer([b"<html>"], content_type="text/html")) as page,
        run_vendor(lambda _: VendorAnswer.from_json({"error": "key?"}, 401)) as locked,
        run_vendor(lambda _: VendorAnswer.from_json({"data": []})) as empty,
    ):
        servers = [
            LocalServer("ollama", "Ollama", ollama.url, installed_models_path="/api/tags"),
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
        # Long enough for a busy machine.
        found = await find_running_servers({"OPENAI_API_KEY": "secret"}, http, servers, seconds=2)
        await http.close()
    assert [(f.settings.name, f.settings.models) for f in found] == [
        ("ollama", ("qwen3:latest",)),
        ("studio", ("m1", "m2")),
    ]
    assert found[0].settings.base_url == f"{ollama.url}/v1"
    for fake in (ollama, studio, page, locked, empty):
        (vendor_request,) = fake.requests
        assert vendor_request.method == "GET"
        assert "authorization" not in vendor_request.headers
        assert vendor_request.body == b""


@pytest.mark.clock
async def test_silent_servers_are_given_up_together_after_a_moment() -> None:
    http = HttpClient()
    async with run_vendor(lambda _: VendorAnswer(silent=True)) as quiet:
        servers = [LocalServer(name, name, quiet.url) for name in "abcdefgh"]
        start = time.monotonic()
        assert await find_running_servers({}, http, servers) == []
        assert time.monotonic() - start < 1.5
        await http.close()


def test_only_loopback_is_probed() -> None:
    assert all(server.base_url.startswith("http://127.0.0.1:") for server in KNOWN_LOCAL_SERVERS)


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
def test_ollama_is_probed_at_its_configured_host(host: str, base: str) -> None:
    assert apply_ollama_host(KNOWN_LOCAL_SERVERS[0], {"OLLAMA_HOST": host}).base_url == base
    assert (
        apply_ollama_host(KNOWN_LOCAL_SERVERS[1], {"OLLAMA_HOST": host}) == KNOWN_LOCAL_SERVERS[1]
    )


@pytest.mark.req("discovery.order")
async def test_keys_come_before_servers_and_configuration_before_both() -> None:
    async with run_vendor(lambda _: MODELS) as fake:
        servers = [LocalServer("studio", "LM Studio", fake.url)]
        http = HttpClient()
        found = await discover_providers({"ANTHROPIC_API_KEY": "k"}, http, servers=servers)
        assert [f.settings.name for f in found] == ["anthropic", "studio"]
        await http.close()
        registry = await open_registry({}, environ={}, servers=servers)
        assert await registry.default_model() == "m1"
        await registry.close()
        fake.requests.clear()
        registry = await open_registry(
            {"llm": {"base_url": "http://h/v1", "model": "mine"}},
            environ={"ANTHROPIC_API_KEY": "k"},
            servers=servers,
        )
        assert [entry.settings.name for entry in registry.entries] == ["llm"]
        assert await registry.default_model() == "mine"
        assert fake.requests == []
        await registry.close()


async def test_a_model_that_is_not_installed_is_not_found(tmp_path: Path) -> None:
    http = HttpClient()
    assert await discover_providers({}, http, servers=(), models_directory=tmp_path) == []
    await http.close()


@pytest.mark.req("discovery.ways_on")
def test_the_setup_help_names_three_options() -> None:
    assert SETUP_HELP.count("\n  - ") == 3
    for way in ("OPENAI_API_KEY", "Ollama", "crabtalkd model install", "crabtalkd setup"):
        assert way in SETUP_HELP


def test_a_sensible_model_is_picked_from_a_long_list() -> None:
    offered = ["whisper-1", "gpt-4o", "gpt-5-mini-2025", "gpt-5"]
    assert choose_preferred_model("openai", offered) == "gpt-5-mini-2025"
    assert (
        choose_preferred_model("anthropic", ["claude-opus-9", "claude-sonnet-5"])
        == "claude-sonnet-5"
    )
    assert choose_preferred_model("bedrock", ["x", "y"]) == "x"
    assert choose_preferred_model("openai", []) == ""
