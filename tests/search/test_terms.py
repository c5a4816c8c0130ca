"""Terms: nothing lost, nothing added, in the order of the text."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.memory import tokenize_text
from crabtalk.search.terms import (
    MAX_QUERY_TERMS,
    MAX_TERM_LENGTH,
    PIECE_LENGTH,
    extract_terms,
    parse_query,
    split_pieces,
)

ALPHABET = st.sampled_from([*"aBc1 _-.é\u0301ßİ数据库カタ한국ไทย🦀\u00a0\n", "the", "ﬁ", "…"])
TEXTS = st.lists(ALPHABET, max_size=60).map("".join)


@given(TEXTS)
def test_a_text_has_the_terms_that_its_tokens_are(text: str) -> None:
    terms = extract_terms(text)
    assert Counter(terms.words + terms.bigrams) == Counter(tokenize_text(text))
    assert len(terms) == len(tokenize_text(text))


@given(st.text(max_size=100))
def test_any_text_at_all_has_the_terms_that_its_tokens_are(text: str) -> None:
    terms = extract_terms(text)
    assert Counter(terms.words + terms.bigrams) == Counter(tokenize_text(text))


@given(TEXTS, TEXTS)
def test_the_row_of_two_texts_is_the_one_and_then_the_other(left: str, right: str) -> None:
    assert (
        extract_terms(f"{left} {right}").words
        == extract_terms(left).words + extract_terms(right).words
    )


@given(TEXTS)
def test_no_term_breaks_where_the_index_splits(text: str) -> None:
    terms = extract_terms(text)
    assert terms.body().split() == terms.words + terms.bigrams


@given(st.text(max_size=100))
def test_no_term_has_to_be_escaped(text: str) -> None:
    body = extract_terms(text).body("a")
    assert json.loads(f'"{body}"') == body


def test_every_term_ends_in_the_mark() -> None:
    assert extract_terms("low tide 数据").body("b") == "lowb tideb 数b 据b 数据b"


def test_pairs_stand_apart_from_the_row() -> None:
    terms = extract_terms("ein 数据库 läuft ab 数")
    assert terms.words == ["ein", "数", "据", "库", "lauft", "ab", "数"]
    assert terms.bigrams == ["数据", "据库"]


def test_a_long_text_is_taken_apart_in_pieces_at_its_spaces() -> None:
    text = " ".join(f"word{number}" for number in range(20_000))
    cut = list(split_pieces(text))
    assert "".join(cut) == text
    assert len(cut) > 4
    assert max(map(len, cut)) <= PIECE_LENGTH
    assert extract_terms(text).words == [f"word{number}" for number in range(20_000)]


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    text = "库" * (3 * PIECE_LENGTH)
    assert "".join(split_pieces(text)) == text
    assert len(extract_terms(text).words) == len(text)


def test_what_is_too_long_for_a_word_is_none() -> None:
    terms = extract_terms(f"before {'a' * MAX_TERM_LENGTH} {'b' * (MAX_TERM_LENGTH + 1)} after")
    assert terms.words == ["before", "a" * MAX_TERM_LENGTH, "after"]


@pytest.mark.req("search.phrases")
def test_a_query_is_words_and_phrases() -> None:
    query = parse_query('find "Low Tide" find HARBOUR "数据" "the" "')
    assert query.words == ("find", "harbour")
    assert query.phrases == (("low", "tide"), ("数", "据"))
    assert query.terms == {"find", "harbour", "low", "tide", "数", "据"}


@given(TEXTS)
def test_any_query_is_bounded(text: str) -> None:
    query = parse_query(text * 20)
    assert len(query.words) + sum(map(len, query.phrases)) <= MAX_QUERY_TERMS


def test_a_query_is_cut_after_so_many_terms() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    assert parse_query(words).words == tuple(f"word{number}" for number in range(MAX_QUERY_TERMS))
    quoted = parse_query(f'"{words}" more')
    assert len(quoted.phrases[0]) == MAX_QUERY_TERMS
    assert quoted.words == ()
