"""Terms: the same as the tokenizer's, in the order of the text."""

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
def test_a_text_has_the_terms_of_the_tokenizer(text: str) -> None:
    terms = extract_terms(text)
    assert Counter(terms.words + terms.bigrams) == Counter(tokenize_text(text))
    assert len(terms) == len(tokenize_text(text))


@given(st.text(max_size=100))
def test_any_text_has_the_terms_of_the_tokenizer(text: str) -> None:
    terms = extract_terms(text)
    assert Counter(terms.words + terms.bigrams) == Counter(tokenize_text(text))


@given(TEXTS, TEXTS)
def test_the_words_of_two_texts_are_those_of_one_and_then_the_other(left: str, right: str) -> None:
    assert (
        extract_terms(f"{left} {right}").words
        == extract_terms(left).words + extract_terms(right).words
    )


@given(TEXTS)
def test_no_term_contains_a_space(text: str) -> None:
    terms = extract_terms(text)
    assert terms.body().split() == terms.words + terms.bigrams


@given(st.text(max_size=100))
def test_no_term_needs_escaping(text: str) -> None:
    body = extract_terms(text).body("a")
    assert json.loads(f'"{body}"') == body


def test_every_term_ends_in_the_mark() -> None:
    assert extract_terms("low tide 数据").body("b") == "lowb tideb 数b 据b 数据b"


def test_bigrams_are_separate_from_words() -> None:
    terms = extract_terms("ein 数据库 läuft ab 数")
    assert terms.words == ["ein", "数", "据", "库", "lauft", "ab", "数"]
    assert terms.bigrams == ["数据", "据库"]


def test_a_long_text_is_split_into_pieces_at_spaces() -> None:
    text = " ".join(f"word{number}" for number in range(20_000))
    pieces = list(split_pieces(text))
    assert "".join(pieces) == text
    assert len(pieces) > 4
    assert max(map(len, pieces)) <= PIECE_LENGTH
    assert extract_terms(text).words == [f"word{number}" for number in range(20_000)]


def test_a_text_without_spaces_is_split_too() -> None:
    text = "库" * (3 * PIECE_LENGTH)
    assert "".join(split_pieces(text)) == text
    assert len(extract_terms(text).words) == len(text)


def test_a_term_above_the_length_limit_is_dropped() -> None:
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


def test_a_query_is_cut_at_the_limit_of_terms() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    assert parse_query(words).words == tuple(f"word{number}" for number in range(MAX_QUERY_TERMS))
    quoted = parse_query(f'"{words}" more')
    assert len(quoted.phrases[0]) == MAX_QUERY_TERMS
    assert quoted.words == ()
