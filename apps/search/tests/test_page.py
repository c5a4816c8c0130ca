"""Pages: the content is extracted, and what surrounds it is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_search.page import extract_readable

URL = "https://tides.example/dir/page"


def extract_text(html: str) -> str:
    return extract_readable(html, URL)[1]


@pytest.mark.req("searchapp.fetch.readable")
@pytest.mark.parametrize(
    "tag", ["script", "style", "nav", "footer", "header", "aside", "noscript", "svg", "iframe"]
)
def test_elements_around_the_content_are_dropped(tag: str) -> None:
    html = f"<body><{tag}>gone</{tag}><p>kept</p><{tag}>gone</{tag}></body>"
    assert extract_text(html) == "kept"


@pytest.mark.req("searchapp.fetch.readable")
def test_forms_are_dropped_unless_they_are_the_page() -> None:
    assert extract_text("<p>a long enough paragraph</p><form>Search <input></form>") == (
        "a long enough paragraph"
    )
    assert extract_text("<form id=aspnetForm><p>a long enough paragraph</p></form>") == (
        "a long enough paragraph"
    )


@pytest.mark.req("searchapp.fetch.readable")
def test_blocks_are_separated_and_lists_tables_and_code_survive() -> None:
    html = """
    <h1>Tides</h1><p>One</p><p>Two<br>lines</p>
    <ul><li>a</li><li>b</li></ul>
    <table><tr><th>Day</th><th>High</th></tr><tr><td>1</td><td>04:10</td></tr></table>
    <pre><code class="language-python">def f():
        return "&lt;"
    </code></pre>"""
    text = extract_text(html)
    assert text.startswith("# Tides\n\nOne\n\nTwo")
    assert "\n- a\n- b\n" in text
    assert "| Day | High |\n| --- | --- |\n| 1 | 04:10 |" in text
    assert '```python\ndef f():\n        return "<"' in text


@pytest.mark.req("searchapp.fetch.readable")
def test_links_are_absolute_and_pictures_are_left_out() -> None:
    html = '<p><a href="../x">up</a> <img src="a.png" alt="A picture"> <a href="#p">here</a></p>'
    text = extract_text(html)
    assert "[up](https://tides.example/x)" in text
    assert ".png" not in text


@pytest.mark.req("searchapp.fetch.readable")
def test_the_element_marked_as_content_is_used() -> None:
    html = (
        "<div>menu</div><main><article><header><h1>Tides</h1></header><p>High</p></article></main>"
    )
    assert extract_text(html) == "# Tides\n\nHigh"


@pytest.mark.req("searchapp.fetch.readable")
def test_a_small_element_marked_as_content_is_not_used() -> None:
    html = "<article>teaser</article><div><p>A much longer text than that teaser is.</p></div>"
    assert "much longer" in extract_text(html)


@pytest.mark.req("searchapp.fetch.readable")
@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title> A\n title </title><h1>B</h1>", "A title"),
        ('<meta property="og:title" content="Shared"><h1>B</h1>', "Shared"),
        ("<h1>Only <i>this</i></h1>", "Only this"),
        ("<p>none</p>", ""),
        ("<svg><title>an icon</title></svg><h1>B</h1>", "B"),
    ],
)
def test_the_best_available_title_is_used(html: str, title: str) -> None:
    assert extract_readable(html, URL)[0] == title


@pytest.mark.req("searchapp.fetch.hostile")
@given(st.text("<>/= \"'&;#abdivpfontableslect!-[]\n\0", max_size=200))
def test_any_html_can_be_extracted(html: str) -> None:
    title, text = extract_readable(html, URL)
    assert isinstance(title, str)
    assert isinstance(text, str)
