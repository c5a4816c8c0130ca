"""Redaction: keys are removed from answers and errors, and nothing else is changed."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from crabtalk.masking import MASK
from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.messages import Chunk
from crabtalk.model.redaction import MIN_FRAGMENT, Redactor, find_url_secrets

KEY = "sk-proj-0a1b2c3d4e5f6g7h"
# Few letters, so that texts often contain the start of the key.
LETTERS = "ab1"
KEYS = st.text(LETTERS, min_size=MIN_FRAGMENT, max_size=14).filter(lambda key: "1" in key)


def redact_stream(secrets: list[str], pieces: list[Chunk]) -> list[Chunk]:
    redactor = Redactor(secrets).open_stream()
    assert redactor is not None
    return [chunk for piece in pieces for chunk in redactor.redact([piece])] + redactor.end()


def join_text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.mark.req("trust.echoed_key")
@given(KEYS, st.text(LETTERS, max_size=60), st.text(LETTERS, max_size=20))
def test_a_key_within_one_chunk_is_replaced_and_nothing_else(
    key: str, before: str, after: str
) -> None:
    text = f"{before}{key}{after}"
    assert join_text(redact_stream([key], [Chunk(text=text, finish="stop")])) == text.replace(
        key, MASK
    )


@pytest.mark.req("trust.echoed_key")
@given(KEYS, st.lists(st.text(LETTERS, max_size=9), max_size=20), st.integers(0, 20))
def test_a_key_between_chunks_is_never_whole(key: str, pieces: list[str], at: int) -> None:
    pieces[at:at] = [key[:3], key[3:5], key[5:]]
    shown = join_text(redact_stream([key], [Chunk(text=piece) for piece in pieces]))
    assert key not in shown
    assert MASK in shown


@pytest.mark.req("trust.echoed_key")
@given(KEYS, st.lists(st.text(LETTERS, max_size=9), max_size=20))
def test_a_stream_without_the_key_is_shown_as_it_is(key: str, pieces: list[str]) -> None:
    assume(key not in "".join(pieces))
    assert join_text(redact_stream([key], [Chunk(text=piece) for piece in pieces])) == "".join(
        pieces
    )


@pytest.mark.req("trust.echoed_key")
def test_text_and_reasoning_are_redacted_separately_and_other_fields_stay() -> None:
    half = len(KEY) // 2
    chunks = [
        Chunk(text="a", reasoning=f"b {KEY[:half]}"),
        Chunk(text=KEY, reasoning=KEY[half:]),
        Chunk(text=f" {KEY[:10]}", opaque={"kind": 1}),
        Chunk(finish="stop"),
    ]
    shown = redact_stream([KEY], chunks)
    assert join_text(shown) == f"a{MASK} {KEY[:10]}"
    assert "".join(chunk.reasoning for chunk in shown) == f"b {MASK}"
    assert [chunk.opaque for chunk in shown if chunk.opaque] == [{"kind": 1}]
    assert shown[-1].finish == "stop"


@pytest.mark.req("trust.echoed_key")
@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        (f"Incorrect API key provided: {KEY}.", f"Incorrect API key provided: {MASK}."),
        (f"bad {KEY[:9]}*****{KEY[-4:]}.", f"bad {MASK}."),
        (f"bad {KEY[:3]}...{KEY[-4:]}", f"bad {MASK}"),
        (f"bad {KEY[:4]}…", f"bad {MASK}"),
        (f"bad ****{KEY[-4:]}, sorry", f"bad {MASK}, sorry"),
        (f"bad xxxx{KEY[-4:]}", f"bad {MASK}"),
        (f"cut: {KEY[:12]}", f"cut: {MASK}"),
        (f"cut: {KEY[5:18]}!", f"cut: {MASK}!"),
        ("another's: sk-0123456789abcdef", f"another's: {MASK}"),
        ("wait... then try **again**", "wait... then try **again**"),
        ("model 'm' not found, ollama pull it", "model 'm' not found, ollama pull it"),
    ],
)
def test_an_error_shows_no_part_of_a_key(sentence: str, shown: str) -> None:
    error = ApiError(ErrorKind.AUTH, sentence, provider="p", status=401)
    Redactor([KEY, "ollama", ""]).redact_error(error)
    assert error.message == shown
    assert str(error) == f"p: {shown} (HTTP 401)"
    assert error.args == (shown,)


@pytest.mark.req("trust.echoed_key")
def test_a_key_is_found_in_its_escaped_forms() -> None:
    redactor = Redactor(["a/b+c==1234'\"5"])
    assert redactor.redact_text("at a%2Fb%2Bc%3D%3D1234%27%225") == f"at {MASK}"
    assert redactor.redact_text(repr("a/b+c==1234'\"5")) == f"'{MASK}'"


@pytest.mark.req("trust.echoed_key")
def test_secrets_in_a_url_are_found() -> None:
    found = find_url_secrets("http://crab:p%40ssw0rd@h/v1?key=abc123&b")
    assert set(found) == {"p%40ssw0rd", "p@ssw0rd", "abc123"}
    assert find_url_secrets("http://[::1") == []


def test_without_secrets_streams_are_unchanged() -> None:
    assert Redactor(["", "short", "ollama"]).open_stream() is None


def test_a_key_made_of_the_mask_does_not_hang() -> None:
    assert Redactor([f"{MASK}{MASK}1"]).redact_text(f"it is {MASK}{MASK}1")
