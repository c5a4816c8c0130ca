"""The colours and signs of the chat."""

import pytest

from crabtalk_tui.chat.look import ASCII, OF_GUESTS, PLAIN, Look


def test_there_is_colour_unless_the_environment_says_otherwise() -> None:
    assert Look.of({"TERM": "xterm"}).has_colour
    assert Look.of({"TERM": "xterm", "NO_COLOR": ""}).has_colour  # as no-color.org has it


@pytest.mark.req("chat.show.plain")
@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_get_no_escapes(environ: dict[str, str]) -> None:
    look = Look.of(environ)
    assert look == PLAIN
    styles = set(look.styles)
    assert styles == {""}
    assert look.guest("twin") == ""


@pytest.mark.req("chat.show.plain")
def test_a_terminal_without_unicode_gets_signs_of_ascii() -> None:
    assert Look.of({}, "ascii").glyphs == ASCII
    assert Look.of({}, "ISO-8859-1").glyphs == ASCII
    assert Look.of({}, "UTF-8").glyphs != ASCII
    for name in ASCII._fields:
        assert "".join(getattr(ASCII, name)).isascii(), name


@pytest.mark.req("chat.show.guest")
def test_a_guest_has_the_same_colour_every_time_and_guests_differ() -> None:
    names = [f"guest{number}" for number in range(100)]
    assert {Look().guest(name) for name in names} == set(OF_GUESTS)
    assert [Look().guest(name) for name in names] == [Look().guest(name) for name in names]
    # Not by an accident of this process: hashes of text are salted anew in each.
    assert (Look().guest("twin"), Look().guest("owl")) == ("34", "96")


def test_the_spinner_turns_with_the_clock() -> None:
    look = Look()
    assert look.spinner(0.0) == look.spinner(1.0) == look.glyphs.spinner[0]
    assert look.spinner(0.1) == look.glyphs.spinner[1]
