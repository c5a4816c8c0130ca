"""The colours and glyphs of the chat."""

import pytest

from crabtalk.chat.theme import ASCII_GLYPHS, GUEST_COLOURS, PLAIN_THEME, Theme


def test_colour_is_on_unless_the_environment_disables_it() -> None:
    assert Theme.detect({"TERM": "xterm"}).has_colour
    assert Theme.detect({"TERM": "xterm", "NO_COLOR": ""}).has_colour  # as no-color.org requires


@pytest.mark.req("chat.show.plain")
@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_get_no_escapes(environ: dict[str, str]) -> None:
    theme = Theme.detect(environ)
    assert theme == PLAIN_THEME
    styles = set(theme.styles)
    assert styles == {""}
    assert theme.get_guest_colour("twin") == ""


@pytest.mark.req("chat.show.plain")
def test_a_terminal_without_unicode_gets_ascii_glyphs() -> None:
    assert Theme.detect({}, "ascii").glyphs == ASCII_GLYPHS
    assert Theme.detect({}, "ISO-8859-1").glyphs == ASCII_GLYPHS
    assert Theme.detect({}, "UTF-8").glyphs != ASCII_GLYPHS
    for name in ASCII_GLYPHS._fields:
        assert "".join(getattr(ASCII_GLYPHS, name)).isascii(), name


@pytest.mark.req("chat.show.guest")
def test_a_guest_always_has_the_same_colour_and_guests_differ() -> None:
    names = [f"guest{number}" for number in range(100)]
    assert {Theme().get_guest_colour(name) for name in names} == set(GUEST_COLOURS)
    assert [Theme().get_guest_colour(name) for name in names] == [
        Theme().get_guest_colour(name) for name in names
    ]
    # The colours do not depend on the process, unlike Python's salted hashes.
    assert (Theme().get_guest_colour("twin"), Theme().get_guest_colour("owl")) == ("34", "96")


def test_the_spinner_turns_with_the_clock() -> None:
    theme = Theme()
    assert theme.get_spinner(0.0) == theme.get_spinner(1.0) == theme.glyphs.spinner[0]
    assert theme.get_spinner(0.1) == theme.glyphs.spinner[1]
