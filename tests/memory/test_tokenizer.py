"""The tokenizer: how text becomes terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.memory import split_words, tokenize_text
from crabtalk.memory.tokenizer import STOP_WORDS

VECTOR = "The Crab's e-mail: user_id=42, C++ & I/O — naïve 日本語テスト x"


@pytest.mark.req("memory.tokens.words")
def test_words_are_split_as_every_store_of_the_format_splits_them() -> None:
    assert split_words(VECTOR) == ["crab", "mail", "user", "id", "42", "naïve", "日本語テスト"]


@pytest.mark.req("memory.tokens.words")
def test_vowel_signs_are_part_of_words_and_other_marks_are_not() -> None:
    assert split_words("मेरा नाम") == ["मेरा", "नाम"]
    assert split_words("cafe\u0301s") == ["cafe"]
    assert split_words("ⒶⒷ") == ["ⓐⓑ"]


@pytest.mark.req("memory.tokens.words")
def test_the_forty_nine_stop_words_are_dropped() -> None:
    assert len(STOP_WORDS) == 49
    assert (
        split_words(" ".join(STOP_WORDS).upper())
        == tokenize_text(" ".join(STOP_WORDS).upper())
        == []
    )
    assert tokenize_text("“the” crab’s “And”") == ["crab"]


@pytest.mark.req("memory.tokens.folded")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("naïve", "naive"),
        ("NAÏVE", "nai\u0308ve"),
        ("Straße", "STRASSE"),
        ("ﬁne", "fine"),
        ("ｆｕｌｌ", "full"),
        ("ｶﾞｽ", "ガス"),
        ("ΟΔΟΣ", "οδος"),
        ("İstanbul", "istanbul"),
        ("שָׁלוֹם", "שלום"),
        ("مَرْحَبًا", "مرحبا"),
        ("co\u00adop", "coop"),
        ("葛\U000e0100飾", "葛飾"),
    ],
)
def test_different_spellings_of_a_word_have_the_same_terms(one: str, other: str) -> None:
    assert tokenize_text(one) == tokenize_text(other) != []


@pytest.mark.req("memory.tokens.folded")
def test_letters_that_only_look_alike_stay_different() -> None:
    assert tokenize_text("がき") != tokenize_text("かき")
    assert tokenize_text("กุ") != tokenize_text("กิ")
    assert tokenize_text("각") != tokenize_text("갓")


@pytest.mark.req("memory.tokens.folded")
def test_a_word_that_differs_from_a_stop_word_only_by_an_accent_is_kept() -> None:
    assert tokenize_text("the thé") == ["the"]


@pytest.mark.req("memory.tokens.cjk")
def test_text_without_spaces_becomes_characters_and_pairs() -> None:
    assert sorted(tokenize_text("日本語")) == sorted(["日", "本", "語", "日本", "本語"])
    assert tokenize_text("猫") == ["猫"]
    assert "검색" in tokenize_text("검색을")
    assert "กา" in tokenize_text("ร้านกาแฟ")


@pytest.mark.req("memory.tokens.cjk")
def test_a_word_ends_where_the_script_changes() -> None:
    assert sorted(tokenize_text("python3で書く")) == sorted(
        ["python3", "で", "書", "く", "で書", "書く"]
    )


@pytest.mark.req("memory.tokens.cjk")
@given(st.text("日本語犬猫東京大学", min_size=1), st.data())
def test_any_word_of_text_without_spaces_is_found(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    assert set(tokenize_text(text[start:end])) <= set(tokenize_text(text))


def test_a_single_letter_or_digit_is_no_term() -> None:
    assert tokenize_text("a b c 1 é x") == []


@given(st.text())
def test_the_terms_of_any_text_are_terms_themselves(text: str) -> None:
    for term in tokenize_text(text):
        assert tokenize_text(term) or term in STOP_WORDS
        assert "_" not in term
        assert term.split() == [term]


@given(st.text(), st.text())
def test_white_space_separates_terms(one: str, other: str) -> None:
    assert sorted(tokenize_text(f"{one}\n{other}")) == sorted(
        tokenize_text(one) + tokenize_text(other)
    )
