"""Configuration: nothing is required, everything can be set, and mistakes are explained."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from crabtalk_search.config import FREE_ENGINES, SearchConfig, load_config, warn_of_unknown_keys
from crabtalk_search.errors import SearchConfigError


def load_text(tmp_path: Path, text: str, **environment: str) -> SearchConfig:
    path = tmp_path / "search.toml"
    path.write_text(text)
    return load_config(path, environment)


@pytest.mark.req("searchapp.config")
def test_a_missing_file_is_a_working_configuration(tmp_path: Path) -> None:
    config = load_config(tmp_path / "nowhere.toml", {})
    assert config == SearchConfig()
    assert config.engines == FREE_ENGINES
    assert (config.timeout, config.max_results) == (10, 20)
    assert (config.cache_ttl, config.cache_capacity) == (300, 256)
    assert config.fetch.timeout == 15


@pytest.mark.req("searchapp.config")
def test_everything_can_be_set(tmp_path: Path) -> None:
    text = """
    engines = ["searxng", "bing", "tavily", "bing"]
    timeout_secs = 2.5
    max_results = 5
    cache_ttl_secs = 0
    cache_capacity = 0
    [searxng]
    url = "http://localhost:8888"
    [tavily]
    key = "t"
    [fetch]
    timeout_secs = 3
    max_bytes = 1000
    max_chars = 500
    max_redirects = 0
    allow = ["127.0.0.1", "fd00::/8"]
    """
    config = load_text(tmp_path, text)
    assert config.engines == ("searxng", "bing", "tavily")
    assert config.engine_settings == {"searxng": "http://localhost:8888", "tavily": "t"}
    assert (config.timeout, config.max_results) == (2.5, 5)
    assert (config.cache_ttl, config.cache_capacity) == (0, 0)
    fetch = config.fetch
    assert (fetch.timeout, fetch.max_bytes, fetch.max_chars, fetch.max_redirects) == (
        3,
        1000,
        500,
        0,
    )
    assert fetch.allow == (ip_network("127.0.0.1"), ip_network("fd00::/8"))
    assert config.unknown_keys == ()


@pytest.mark.req("searchapp.engines.configured")
def test_a_configured_engine_joins_the_free_ones(tmp_path: Path) -> None:
    config = load_text(tmp_path, '[searxng]\nurl = "http://s"', BRAVE_API_KEY="k")
    assert config.engines == (*FREE_ENGINES, "searxng", "brave_api")
    assert config.engine_settings["brave_api"] == "k"


@pytest.mark.req("searchapp.config")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("engines = [", "correct it, or move it away"),
        ('engines = "bing"', "list of texts"),
        ('engines = ["google"]', "there is no engine 'google'; choose from bing"),
        ('engines = ["searxng"]', r"searxng needs its url: give \[searxng\] url"),
        ('engines = ["tavily"]', "or set TAVILY_API_KEY"),
        ("timeout_secs = 0", "timeout_secs is a number above 0"),
        ("timeout_secs = nan", "timeout_secs is a number above 0"),
        ("max_results = true", "max_results is a number above 0"),
        ("cache_ttl_secs = -1", "a number of at least 0"),
        ("fetch = 1", r"write \[fetch\]"),
        ('[fetch]\nallow = ["localhost"]', "is no address: write one such as"),
        ("[searxng]\nurl = 1", r"searxng\.url is a text"),
        ("\ud800".encode(errors="surrogatepass").decode("latin-1"), "correct it"),
    ],
)
def test_a_mistake_is_reported_with_advice(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SearchConfigError, match=complaint) as caught:
        load_text(tmp_path, text)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.req("searchapp.config")
def test_unknown_keys_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_text(tmp_path, "engine = 1\n[fetch]\ntime_out = 2\n")
    assert config.unknown_keys == ("engine", "fetch.time_out")
    warn_of_unknown_keys(config)
    assert "engine, which means nothing here" in caplog.text


@pytest.mark.req("searchapp.config")
def test_keys_are_not_shown(tmp_path: Path) -> None:
    assert "s3cret" not in repr(load_text(tmp_path, '[tavily]\nkey = "s3cret"'))
