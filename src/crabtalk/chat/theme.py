"""The colours and glyphs of the chat.

A style is the text between `ESC [` and `m`; an empty style leaves text unchanged. Colours are the
terminal's own sixteen, so that they fit any background.
"""

from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

# Neither red nor green, which mark failure and success.
GUEST_COLOURS = ("35", "36", "33", "34", "95", "96", "93", "94")
SPINNER_RATE = 10  # turns of the spinner a second


class Styles(NamedTuple):
    strong: str = "1"
    emphasis: str = "3"
    struck: str = "9"
    code: str = "36"
    link: str = "4"
    address: str = "2"
    title: str = "1;4"
    heading: str = "1"
    dim: str = "2"
    user: str = "1"
    name: str = "1"
    done: str = "32"
    failed: str = "31"
    running: str = "33"
    hint: str = "33"
    added: str = "32"
    removed: str = "31"
    # Code.
    keyword: str = "35"
    literal: str = "32"
    number: str = "36"
    comment: str = "2"
    defined: str = "34"


class Glyphs(NamedTuple):
    prompt: str = "❯"  # noqa: RUF001 - meant as it is
    tool: str = "●"
    done: str = "✓"
    failed: str = "✗"
    more: str = "…"
    between: str = "·"
    bullets: tuple[str, ...] = ("•", "◦", "▪")
    quote: str = "│"
    bar: str = "│"
    rule: str = "─"
    cross: str = "┼"
    unchecked: str = "☐"
    checked: str = "☑"
    branch: str = "├─"
    last: str = "└─"
    trunk: str = "│ "
    spinner: tuple[str, ...] = tuple("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


ASCII_GLYPHS = Glyphs(
    prompt=">",
    tool="*",
    done="+",
    failed="x",
    more="...",
    between="-",
    bullets=("-", "*", "+"),
    quote="|",
    bar="|",
    rule="-",
    cross="+",
    unchecked="[ ]",
    checked="[x]",
    branch="|-",
    last="`-",
    trunk="| ",
    spinner=tuple("|/-\\"),
)


class Theme(NamedTuple):
    """Styles and glyphs. Without colour there are no escapes, and Markdown marks stay visible."""

    styles: Styles = Styles()
    glyphs: Glyphs = Glyphs()
    has_colour: bool = True

    @classmethod
    def detect(cls, environ: Mapping[str, str], encoding: str = "utf-8") -> "Theme":
        """Choose a theme by the environment and the encoding of stdout."""
        is_plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        theme = PLAIN_THEME if is_plain else cls()
        is_unicode = encoding.lower().replace("-", "").replace("_", "") in ("utf8", "utf16")
        return theme if is_unicode else theme._replace(glyphs=ASCII_GLYPHS)

    def get_guest_colour(self, name: str) -> str:
        """Return a colour that depends only on the name."""
        return GUEST_COLOURS[crc32(name.encode()) % len(GUEST_COLOURS)] if self.has_colour else ""

    def get_spinner(self, now: float) -> str:
        signs = self.glyphs.spinner
        return signs[int(now * SPINNER_RATE) % len(signs)]


PLAIN_THEME = Theme(Styles(**dict.fromkeys(Styles._fields, "")), Glyphs(), has_colour=False)
