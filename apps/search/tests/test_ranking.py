"""Ranking: the sum of 1/position, half a point for each further engine, one result per page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.metasearch import SearchResult, normalize_url, rank_hits


def make_hits(*urls: str) -> list[EngineHit]:
    return [EngineHit(f"title of {url}", url, "") for url in urls]


@pytest.mark.req("searchapp.ranking")
def test_a_page_scores_the_sum_of_1_over_position_and_half_a_point_for_each_further_engine() -> (
    None
):
    hits_by_engine = {
        "bing": make_hits("https://a.example", "https://b.example", "https://c.example"),
        "brave": make_hits("https://b.example", "https://c.example"),
        "mojeek": make_hits("https://d.example", "https://x.example", "https://c.example"),
    }
    assert [(r.url, r.engines, r.score) for r in rank_hits(hits_by_engine, 4)] == [
        ("https://c.example", ["bing", "brave", "mojeek"], 1 / 3 + 1 / 2 + 0.5 + 1 / 3 + 0.5),
        ("https://b.example", ["bing", "brave"], 1 / 2 + 1 + 0.5),
        ("https://a.example", ["bing"], 1.0),
        ("https://d.example", ["mojeek"], 1.0),
    ]


@pytest.mark.req("searchapp.ranking")
def test_the_longest_description_and_the_first_title_and_address_are_used() -> None:
    hits_by_engine = {
        "bing": [EngineHit("First", "https://www.a.example/?utm_source=x", "short")],
        "brave": [EngineHit("Second", "https://a.example", "a longer one")],
        "mojeek": [EngineHit("Third", "https://a.example/", "shorter")],
    }
    [result] = rank_hits(hits_by_engine, 20)
    assert result.title == "First"
    assert result.url == "https://www.a.example/?utm_source=x"
    assert result.description == "a longer one"


@pytest.mark.req("searchapp.ranking")
def test_an_engine_that_names_a_page_twice_counts_once() -> None:
    [result] = rank_hits({"bing": make_hits("https://a.example", "https://a.example/")}, 20)
    assert (result.engines, result.score) == (["bing"], 1.0)


@pytest.mark.req("searchapp.ranking")
def test_only_the_best_results_are_returned() -> None:
    hits_by_engine = {"bing": make_hits(*(f"https://{n}.example" for n in range(50)))}
    assert [r.url for r in rank_hits(hits_by_engine, 2)] == [
        "https://0.example",
        "https://1.example",
    ]


@pytest.mark.req("searchapp.ranking.key")
@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://a.example/", "https://a.example"),
        ("https://a.example/x//", "https://a.example/x/"),
        ("https://www.a.example/x", "https://a.example/x"),
        ("https://a.example/?utm_source=x", "https://a.example"),
        ("https://a.example/x?utm_campaign=y&id=1&fbclid=z", "https://a.example/x?id=1"),
        ("https://a.example/x?gclid=1&ref=2#part", "https://a.example/x#part"),
        ("https://a.example/x?ref=", "https://a.example/x"),
    ],
)
def test_addresses_of_one_page_have_the_same_key(url: str, same: str) -> None:
    assert normalize_url(url) == same


@pytest.mark.req("searchapp.ranking.key")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("https://a.example/x?id=1", "https://a.example/x?id=2"),
        ("http://a.example", "https://a.example"),
        ("https://a.example/?reference=1", "https://a.example"),
        ("https://a.example/x?b=1&a=1", "https://a.example/x?a=1&b=1"),
        ("https://wwwa.example", "https://a.example"),
    ],
)
def test_addresses_of_different_pages_have_different_keys(first: str, second: str) -> None:
    assert normalize_url(first) != normalize_url(second)


urls = st.sampled_from([f"https://{host}.example{tail}" for host in "abcd" for tail in ("", "/")])
lists = st.lists(urls.map(lambda url: EngineHit("t", url, "")), max_size=6)


@pytest.mark.req("searchapp.ranking")
@given(st.dictionaries(st.sampled_from(["bing", "brave", "mojeek"]), lists), st.integers(1, 5))
def test_any_hits_are_ranked_by_the_formula(found: dict[str, list[EngineHit]], limit: int) -> None:
    results = rank_hits(found, limit)
    best: dict[str, dict[str, int]] = {}
    for engine, listed in found.items():
        for position, hit in enumerate(listed, 1):
            best.setdefault(normalize_url(hit.url), {}).setdefault(engine, position)
    expected = {
        page: sum(1 / place for place in places.values()) + 0.5 * (len(places) - 1)
        for page, places in best.items()
    }
    assert [r.score for r in results] == pytest.approx(sorted(expected.values())[::-1][:limit])
    for result in results:
        assert result.score == pytest.approx(expected[normalize_url(result.url)])
        assert set(result.engines) == best[normalize_url(result.url)].keys()


def test_results_do_not_share_their_engines() -> None:
    assert SearchResult("", "", "").engines is not SearchResult("", "", "").engines
