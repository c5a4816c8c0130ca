"""Terms: nothing lost, nothing added, in the order of the text."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.memory import tokens
from crabtalk.runtime.search.terms import (
    MAX_QUERY_TERMS,
    MAX_TERM,
    PIECE,
    pieces,
    query_of,
    terms_of,
)

ALPHABET = st.sampled_from([*"aBc1 _-.é\u0301ßİ数据库カタ한국ไทย🦀\u00a0\n", "the", "ﬁ", "…"])
TEXTS = st.lists(ALPHABET, max_size=60).map("".join)


@given(TEXTS)
def test_a_text_has_the_terms_that_its_tokens_are(text: str) -> None:
    terms = terms_of(text)
    assert Counter(terms.row + terms.pairs) == Counter(tokens(text))
    assert len(terms) == len(tokens(text))


@given(st.text(max_size=100))
def test_any_text_at_all_has_the_terms_that_its_tokens_are(text: str) -> None:
    terms = terms_of(text)
    assert Counter(terms.row + terms.pairs) == Counter(tokens(text))


@given(TEXTS, TEXTS)
def test_the_row_of_two_texts_is_the_one_and_then_the_other(left: str, right: str) -> None:
    assert terms_of(f"{left} {right}").row == terms_of(left).row + terms_of(right).row


@given(TEXTS)
def test_no_term_breaks_where_the_index_splits(text: str) -> None:
    terms = terms_of(text)
    assert terms.body().split() == terms.row + terms.pairs


@given(st.text(max_size=100))
def test_no_term_has_to_be_escaped(text: str) -> None:
    body = terms_of(text).body("a")
    assert json.loads(f'"{body}"') == body


def test_every_term_ends_in_the_mark() -> None:
    assert terms_of("low tide 数据").body("b") == "lowb tideb 数b 据b 数据b"


def test_pairs_stand_apart_from_the_row() -> None:
    terms = terms_of("ein 数据库 läuft ab 数")
    assert terms.row == ["ein", "数", "据", "库", "lauft", "ab", "数"]
    assert terms.pairs == ["数据", "据库"]


def test_a_long_text_is_taken_apart_in_pieces_at_its_spaces() -> None:
    text = " ".join(f"word{number}" for number in range(20_000))
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert len(cut) > 4
    assert max(map(len, cut)) <= PIECE
    assert terms_of(text).row == [f"word{number}" for number in range(20_000)]


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    text = "库" * (3 * PIECE)
    assert "".join(pieces(text)) == text
    assert len(terms_of(text).row) == len(text)


def test_what_is_too_long_for_a_word_is_none() -> None:
    terms = terms_of(f"before {'a' * MAX_TERM} {'b' * (MAX_TERM + 1)} after")
    assert terms.row == ["before", "a" * MAX_TERM, "after"]


@pytest.mark.req("search.phrases")
def test_a_query_is_words_and_phrases() -> None:
    query = query_of('find "Low Tide" find HARBOUR "数据" "the" "')
    assert query.words == ("find", "harbour")
    assert query.phrases == (("low", "tide"), ("数", "据"))
    assert query.terms == {"find", "harbour", "low", "tide", "数", "据"}


@given(TEXTS)
def test_any_query_is_bounded(text: str) -> None:
    query = query_of(text * 20)
    assert len(query.words) + sum(map(len, query.phrases)) <= MAX_QUERY_TERMS


def test_a_query_is_cut_after_so_many_terms() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    assert query_of(words).words == tuple(f"word{number}" for number in range(MAX_QUERY_TERMS))
    quoted = query_of(f'"{words}" more')
    assert len(quoted.phrases[0]) == MAX_QUERY_TERMS
    assert quoted.words == ()
