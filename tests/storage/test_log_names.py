"""Names of logs: readable, unique per pair, and always inside their directory."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crabtalk.storage.log_names import is_handle, make_log_name, make_slug
from crabtalk.storage.records import Pair

# Short pairs from few characters, so that many of them look alike.
ALIKE = st.builds(Pair, *[st.text(st.sampled_from("aAb:-_ ./é"), max_size=4)] * 2)
ANY = st.builds(Pair, st.text(st.characters()), st.text(st.characters()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tg:12345", "tg-12345"),
        ("My_Agent", "my-agent"),
        ("event:agent:scout:done", "event-agent-scout-done"),
        ("_ephemeral:0", "ephemeral-0"),
        ("Zoë B.", "zoë-b"),
        ("--", ""),
        ("", ""),
        ("crab_user_1", "crab-user-1"),
        ("ÄRA", "Ära"),
        ("../../etc", "etc"),
        ("日本語", "日本語"),
        ("\ud83e", ""),
    ],
)
def test_a_slug_keeps_letters_and_digits(text: str, expected: str) -> None:
    assert make_slug(text) == expected


@given(ANY)
def test_a_slug_of_a_slug_is_itself(pair: Pair) -> None:
    assert make_slug(make_slug(pair.sender)) == make_slug(pair.sender)


def test_a_name_can_be_read_and_stays_the_same() -> None:
    """Logs are found by name, so another name for the same pair would lose them."""
    assert make_log_name(Pair("crab", "user")) == "crab-user-a29b1b296a"
    assert make_log_name(Pair("My_Agent", "tg:12345")).startswith("my-agent-tg-12345-")
    assert make_log_name(Pair("--", "user")).startswith("user-")
    assert make_log_name(Pair("crab", "user"), 2) == "crab-user-a29b1b296a-2"


@pytest.mark.req("storage.names")
@given(ALIKE, ALIKE)
@example(Pair("a", "b:c"), Pair("a:b", "c"))
@example(Pair("a", "b"), Pair("ab", ""))
@example(Pair("x", "a:b"), Pair("x", "A B"))
@example(Pair("x", "a:b"), Pair("x", "a-b"))
@example(Pair("1", "1:1"), Pair("11", ":1"))
@example(Pair("", ""), Pair("-", "-"))
def test_different_pairs_never_share_a_name(one: Pair, other: Pair) -> None:
    assert (make_log_name(one) == make_log_name(other)) == (one == other)


@given(ANY, ANY)
def test_different_pairs_never_share_a_name_whatever_they_hold(one: Pair, other: Pair) -> None:
    assert (make_log_name(one) == make_log_name(other)) == (one == other)


@given(ANY, st.integers(1, 1000))
@example(Pair("𝒜" * 1000, "𝒜" * 1000), 1000)
@example(Pair("a" * 24 + "-b", "\0/.."), 1)
def test_a_name_is_a_handle_that_any_file_system_takes(pair: Pair, attempt: int) -> None:
    name = make_log_name(pair, attempt)
    assert is_handle(name)
    assert len(f"{name}.damaged".encode()) < 255


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a\0",
        "a\n",
        "a.jsonl",
        "a_b",
        "a--b",
        "-a",
        "a-",
        "a b",
        "~",
        "a" * 241,
        "蟹" * 100,
        "\ud83e",
    ],
)
def test_what_could_be_a_path_is_no_handle(text: str) -> None:
    assert not is_handle(text)


@given(st.text(st.characters() | st.sampled_from("/.\\\0-_"), max_size=20))
def test_a_handle_holds_nothing_a_path_is_made_of(text: str) -> None:
    if is_handle(text):
        assert not set("/.\\\0:~ ") & set(text)
