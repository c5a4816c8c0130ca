"""Emphasis, code, links and other inline Markdown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from crabtalk.chat.inline_parser import MAX_DISTANCE
from crabtalk.chat.inline_renderer import InlineRenderer, render_inline
from crabtalk.chat.line_wrapping import Span
from crabtalk.chat.theme import PLAIN_THEME, Theme

THEME = Theme()
STYLES = THEME.styles
MARKS = ["*", "**", "***", "_", "`", "``", "~~", "[", "](", "](u)", ")", "(", "!", "\\", "&amp;"]
TEXTS = st.lists(
    st.sampled_from([*MARKS, "<", "<br>", "&", "http", "s", "://", "h", "https://x.y", "\n", " "])
    | st.sampled_from(["  \n", "a", "b c", "é", "日本", ".", "x_y"]),
    max_size=16,
).map("".join)
# markdown-it, an independent CommonMark implementation, reads these the same way.
SAMPLES = [
    "a **b *c* d** e",
    "***both***",
    "*a **b** c*",
    "**a *b***",
    "**a*b*c**",
    "snake_case_name and _this_",
    "__init__ and 2 * 3 * 4",
    "`code *with* marks` and `` a ` b ``",
    "**bold `code` bold**",
    "\\*not\\* \\`this\\`",
    "**open and *never closed",
    "a * b*",
    "*(brackets)*, “*quotes*”",
    "foo*bar*baz and foo_bar_baz",
    "**日本語**です",
    "&lt;b&gt; &copy; &nosuch;",
    "``",
    "*a `*` b*",
    "x ~ y",
    "****",
    "*a**",
]


def join_text(spans: list[Span]) -> str:
    return "".join(text for text, _ in spans)


def merge_spans(spans: list[Span]) -> list[Span]:
    out: list[Span] = []
    for text, style in spans:
        if out and out[-1][1] == style and "\n" not in (text, out[-1][0]):
            out[-1] = (out[-1][0] + text, style)
        else:
            out.append((text, style))
    return out


def parse_with_markdown_it(text: str) -> list[Span]:
    """Parse with markdown-it and return spans with our styles."""
    tokens = MarkdownIt("commonmark").parseInline(text)[0].children or []
    strong = emphasis = 0
    spans: list[Span] = []
    for token in tokens:
        strong += {"strong_open": 1, "strong_close": -1}.get(token.type, 0)
        emphasis += {"em_open": 1, "em_close": -1}.get(token.type, 0)
        if token.content:
            styles = [STYLES.strong] * bool(strong) + [STYLES.emphasis] * bool(emphasis)
            styles += [STYLES.code] if token.type == "code_inline" else []
            spans.append((token.content, ";".join(styles)))
    return merge_spans(spans)


@pytest.mark.req("chat.show.markdown")
@pytest.mark.parametrize("text", SAMPLES)
def test_marks_are_parsed_as_in_commonmark(text: str) -> None:
    assert merge_spans(render_inline(text, THEME)) == parse_with_markdown_it(text)


@pytest.mark.req("chat.show.markdown")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[the tide](https://x.y/t)", "the tide (https://x.y/t)"),
        ('[the tide](<a b> "title")', "the tide (a b)"),
        ("[https://x.y](https://x.y)", "https://x.y"),
        ("[wiki](https://x.y/a_(b))", "wiki (https://x.y/a_(b))"),
        ("![a crab](crab.png)", "image: a crab (crab.png)"),
        ("<https://x.y> <bo@x.y>", "https://x.y <bo@x.y>"),
        ("<mailto:bo@x.y>", "bo@x.y"),
        ("[no link] (here)", "[no link] (here)"),
        ("[not](a link either)", "[not](a link either)"),
        ("[*open](b)*", "*open (b)*"),
    ],
)
def test_a_link_is_its_text_and_its_target(text: str, shown: str) -> None:
    assert join_text(render_inline(text, THEME)) == shown


def test_a_bare_address_is_a_link_without_the_punctuation_after_it() -> None:
    assert merge_spans(render_inline("see https://x.y/z_z_z. (http://a.b)", THEME)) == [
        ("see ", ""),
        ("https://x.y/z_z_z", STYLES.link),
        (". (", ""),
        ("http://a.b", STYLES.link),
        (")", ""),
    ]


def test_two_spaces_a_backslash_or_a_tag_break_a_line() -> None:
    for text in ("a  \nb", "a\\\nb", "a<br>b", "a<BR />b"):
        assert ("\n", "") in render_inline(text, THEME), text
    assert join_text(render_inline("a\nb", THEME)) == "a b"


@pytest.mark.req("chat.show.plain")
def test_without_colour_the_marks_stay() -> None:
    for text in ("a **b *c* d** e", "`` a`b ``", "***both***", "~~gone~~", "*a **b** c*"):
        assert join_text(render_inline(text, PLAIN_THEME)) == text


@pytest.mark.req("chat.show.hostile")
def test_entities_of_control_characters_are_escaped() -> None:
    for text in ("&#27;[31m", "&#x1b;[31m", "&#x202e;abc", "&#155;", "&Tab;", "&NewLine;"):
        shown = join_text(render_inline(text, PLAIN_THEME))
        assert not set(shown) & {"\x1b", "\u202e", "\x9b", "\t", "\n"}, text


def test_a_mark_not_closed_within_the_distance_is_text() -> None:
    near, far = "x" * (MAX_DISTANCE - 10), "x" * (MAX_DISTANCE + 10)
    assert merge_spans(render_inline(f"**{near}**", THEME)) == [(near, STYLES.strong)]
    assert merge_spans(render_inline(f"**{far}**", THEME)) == [(f"**{far}**", "")]
    assert merge_spans(render_inline(f"`{far}`", THEME)) == [(f"`{far}`", "")]


@pytest.mark.req("chat.show.live")
def test_open_marks_are_previewed_as_closed() -> None:
    inline = InlineRenderer(THEME)
    inline.feed("a **bold wo")
    assert inline.take_settled() == [("a ", "")]
    assert inline.preview_tail() == [("bold wo", STYLES.strong)]
    inline.feed("rd** and `co")
    assert merge_spans(inline.take_settled()) == [("bold word", STYLES.strong), (" and ", "")]
    assert inline.preview_tail() == [("co", STYLES.code)]


@pytest.mark.req("chat.show.stream_is_whole")
@given(text=TEXTS, cuts=st.lists(st.integers(1, 5), max_size=40), has_colour=st.booleans())
def test_text_in_pieces_renders_as_the_whole_text(
    text: str, cuts: list[int], has_colour: bool
) -> None:
    theme = THEME if has_colour else PLAIN_THEME
    inline = InlineRenderer(theme)
    spans: list[Span] = []
    at = 0
    for cut in cuts:
        inline.feed(text[at : at + cut])
        at += cut
        spans += inline.take_settled()
        inline.preview_tail()
    inline.feed(text[at:])
    spans += inline.take_settled(final=True)
    assert merge_spans(spans) == merge_spans(render_inline(text, theme))


# The letters x and y are in no word that the renderer adds, such as "image".
@given(text=st.text(alphabet="xy *_`~[]()!\\", max_size=40))
def test_no_letter_is_lost(text: str) -> None:
    shown = join_text(render_inline(text, PLAIN_THEME))
    assert [c for c in shown if c in "xy"] == [c for c in text if c in "xy"]
