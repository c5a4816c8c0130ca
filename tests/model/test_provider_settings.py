"""ProviderSettings: valid and invalid provider entries of config.toml."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.provider_settings import (
    ProviderSettings,
    ProviderSettingsError,
    expand_variables,
    normalise_base_url,
    read_provider_settings,
    resolve_settings,
)


def read_toml(text: str) -> list[ProviderSettings]:
    return read_provider_settings(tomllib.loads(text))


def test_an_empty_file_has_no_providers() -> None:
    assert read_toml("") == []


def test_the_shorthand_is_one_openai_endpoint() -> None:
    assert read_toml('[llm]\nbase_url = "http://h/v1"\napi_key = "k"\nmodel = "m"') == [
        ProviderSettings(name="llm", base_url="http://h/v1", api_key="k", models=("m",))
    ]
    assert read_toml('[llm]\nbase_url = "http://h/v1"')[0].models == ()


def test_any_number_of_providers_can_be_listed() -> None:
    text = """
[[providers]]
name = "claude"
kind = "anthropic"
api_key = "${KEY}"
models = ["a", "b"]
max_retries = 5
timeout = 12
fallback = "local"
[[providers]]
name = "aws"
kind = "bedrock"
region = "eu-central-1"
"""
    assert read_toml(text) == [
        ProviderSettings(
            name="claude",
            kind="anthropic",
            api_key="${KEY}",
            models=("a", "b"),
            max_retries=5,
            timeout=12,
            fallback="local",
        ),
        ProviderSettings(name="aws", kind="bedrock", region="eu-central-1"),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("llm = 1", r"write \[llm\]"),
        ("providers = 1", r"write \[\[providers\]\]"),
        ("[[providers]]\nkind = 'openai'", r"\[\[providers\]\] number 1 has no name"),
        ("[[providers]]\nname = 'x'\nkind = 'gpt'", "write one of openai, anthropic"),
        ("[[providers]]\nname = 'x'\nbogus = 1", "has bogus, which means nothing there"),
        ("[[providers]]\nname = 'x'\nmodels = 'm'", "models in .* must be a list of names"),
        ("[[providers]]\nname = 'x'\nmodels = [1]", "must be a list of names"),
        (
            "[[providers]]\nname = 'x'\nmax_retries = true",
            "max_retries in .* must be a whole number",
        ),
        ("[[providers]]\nname = 'x'\nmax_retries = -1", "must not be negative"),
        ("[[providers]]\nname = 'x'\ntimeout = 0", "timeout of provider 'x' must be above zero"),
        ("[[providers]]\nname = 'x'\n[[providers]]\nname = 'x'", "two providers are called 'x'"),
        ("[[providers]]\nname = 'x'\nfallback = 'y'", "falls back to 'y', which is not there"),
    ],
)
def test_invalid_settings_are_named(text: str, sentence: str) -> None:
    with pytest.raises(ProviderSettingsError, match=sentence):
        read_toml(text)


@pytest.mark.req("registry.variables")
def test_variables_are_filled_in_and_a_missing_one_names_itself() -> None:
    settings = ProviderSettings(name="x", api_key="${A}-${B_2}", base_url="http://${A}/v1")
    resolved = resolve_settings(settings, {"A": "one", "B_2": "two"})
    assert resolved.api_key == "one-two"
    assert resolved.base_url == "http://one/v1"
    with pytest.raises(
        ProviderSettingsError, match=r"api_key of provider 'x' uses \$\{B_2\}.*export B_2"
    ):
        resolve_settings(settings, {"A": "one"})


@given(st.text())
def test_text_without_variables_is_unchanged(text: str) -> None:
    if "${" not in text:
        assert expand_variables(text, {}, "here") == text


@pytest.mark.req("registry.base_url")
@pytest.mark.parametrize(
    ("given_url", "expected"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1"),
        ("https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
        ("https://h/api/v1/chat/completions/", "https://h/api/v1"),
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("localhost:11434", "http://localhost:11434/v1"),
        ("http://h/v1/embeddings", "http://h/v1"),
        ("", ""),
    ],
)
def test_base_urls_are_normalised(given_url: str, expected: str) -> None:
    assert normalise_base_url(given_url, "openai") == expected
    assert normalise_base_url(normalise_base_url(given_url, "openai"), "openai") == expected


@pytest.mark.req("registry.base_url")
def test_anthropics_endpoint_is_stripped_too() -> None:
    assert normalise_base_url("https://h/v1/messages", "anthropic") == "https://h/v1"
    assert normalise_base_url("https://h", "anthropic") == "https://h"
