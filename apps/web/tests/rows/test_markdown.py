"""Markdown: rendered as others render it, also while it grows."""

import random
from typing import Any

import pytest
from playwright.async_api import Page

from .markdown_reference import OURS, make_reader, normalize_parts, parse_reference

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Markdown, and its expected rendering.
CASES = [
    # Paragraphs and breaks
    ("one\ntwo", '(p "one" "\\n" "two")'),
    ("one  \ntwo", '(p "one" (br) "two")'),
    ("one\\\ntwo", '(p "one" (br) "two")'),
    ("one\n\n\ntwo", '(p "one") (p "two")'),
    # Headings start below those of the page, without skipping a level.
    ("# one", '(h3 "one")'),
    ("###### six ##", '(h3 "six")'),
    ("## a\n# b\n### c\n## d", '(h3 "a") (h3 "b") (h4 "c") (h4 "d")'),
    ("#one", '(p "#one")'),
    ("one\ntwo\n===", '(h3 "one" "\\n" "two")'),
    ("one\n---", '(h3 "one")'),
    # Emphasis
    ("*a* **b** ***c***", '(p (em "a") " " (strong "b") " " (em (strong "c")))'),
    ("snake_case_name and __init__", '(p "snake_case_name and " (strong "init"))'),
    ("2 * 3 * 4", '(p "2 * 3 * 4")'),
    ("**bold*", '(p "*" (em "bold"))'),
    ("*a **b*", '(p "*a *" (em "b"))'),
    # Struck out, but not numbers with a tilde
    ("~~gone~~ and ~gone~", '(p (del "gone") " and " (del "gone"))'),
    ("from 5~6 to 7~8", '(p "from 5~6 to 7~8")'),
    # Code
    ("`a*b*` ``c`d``", '(p (code "a*b*") " " (code "c`d"))'),
    ("`` ` ``", '(p (code "`"))'),
    ("`open", '(p "`open")'),
    # Lists
    ("- a\n- b", '(ul (li (span "a")) (li (span "b")))'),
    ("- a\n\n- b", '(ul (li (p "a")) (li (p "b")))'),
    ("3. a\n4. b", '(ol (li (span "a")) (li (span "b")))'),
    ("- a\n  - b\n    - c", '(ul (li (span "a") (ul (li (span "b") (ul (li (span "c")))))))'),
    ("- a\n+ b", '(ul (li (span "a"))) (ul (li (span "b")))'),
    ("- a\n\n  b", '(ul (li (p "a") (p "b")))'),
    ("a\n2. b", '(p "a" "\\n" "2. b")'),
    # Quotes
    ("> a\nb\n> c", '(blockquote (p "a" "\\n" "b" "\\n" "c"))'),
    ("> - a\n>   b", '(blockquote (ul (li (span "a" "\\n" "b"))))'),
    # Rules
    ("***\n- - -\n___", "(hr) (hr) (hr)"),
    # Links
    ("[a](https://b.example/)", '(p (a https://b.example/ "a"))'),
    ("[a *b*](https://b.example/ 'c')", '(p (a https://b.example/ "a " (em "b")))'),
    ("[a][x] [x]\n\n[X]: <https://b/>", '(p (a https://b/ "a") " " (a https://b/ "x"))'),
    ("[x][]\n\n[x]: https://b/", '(p (a https://b/ "x"))'),
    ("[a](b (c))", '(p (span "a"))'),
    ("[a] (b)", '(p "[a] (b)")'),
    ("[a [b](https://c.example/)](https://d.example/)",
     '(p "[a " (a https://c.example/ "b") "](" (a https://d.example/ "https://d.example/") ")")'),
    # Addresses
    ("<https://a.example/b>", '(p (a https://a.example/b "https://a.example/b"))'),
    ("see https://a/b_c_(d).", '(p "see " (a https://a/b_c_(d) "https://a/b_c_(d)") ".")'),
    ("or www.a.example!", '(p "or " (a http://www.a.example/ "www.a.example") "!")'),
    ("(https://a.example/)", '(p "(" (a https://a.example/ "https://a.example/") ")")'),
    ("ask bo@a.example, please", '(p "ask " (a mailto:bo@a.example "bo@a.example") ", please")'),
    ("[https://a.example](https://a.example/)", '(p (a https://a.example/ "https://a.example"))'),
    # Escapes and entities
    (r"\*a\* &amp; &lt;b&gt; &#33; &unknown;", '(p "*a* & <b> ! &unknown;")'),
    # HTML is text
    ("a <b>c</b> <!-- d -->", '(p "a <b>c</b> <!-- d -->")'),
    ("<div>\n*a*\n</div>", '(p "<div>" "\\n" (em "a") "\\n" "</div>")'),
    # Tasks
    ("- [x] a\n- [ ] b", '(ul (li (span) (div (span "a"))) (li (span) (div (span "b"))))'),
    # Tables
    ("a | b\n--|:-:\n1 | `2\\|3`",
     '(div (table (thead (tr (th "a") (th "b"))) (tbody (tr (td "1") (td (code "2|3"))))))'),
    ("a | b\n--|--", '(div (table (thead (tr (th "a") (th "b")))))'),
    ("a | b\n--", '(h3 "a | b")'),
]  # fmt: skip


@pytest.mark.req("rows.markdown")
async def test_markdown_is_read_as_it_is_meant(page: Page) -> None:
    found = await page.evaluate(
        "(texts) => texts.map((text) => rows.drawn(text).replace(/^\\(div ?/, '').slice(0, -1))",
        [text for text, _ in CASES],
    )
    wrong = [(t, want, got) for (t, want), got in zip(CASES, found, strict=True) if want != got]
    assert wrong == []


WORDS = [
    "a", "b", " ", "  ", "\n", "\n\n", "*", "**", "_", "__", "~~", "`", "``", "[", "]", "(", ")",
    "](", "![", "<", ">", "> ", "- ", "* ", "1. ", "2) ", "# ", "## ", "#", "```", "|",
    "a|b\n-|-\n",     "-", "---", "===", "=", "\t", "    ", "\\", "&amp;", "&", "!",
    "\n\n[a]: b\n\n", "[a]", "é",
    '"',     "'", ":", "x y", "foo", ".",
]  # fmt: skip


def generate_markdown(chance: random.Random) -> str:
    return "".join(chance.choice(WORDS) for _ in range(chance.randint(1, 18)))


def is_fair(text: str) -> bool:
    """Readers differ in runs of tildes, links without a text, and the start of tables."""
    return not any(odd in text for odd in ("~~~", "[](", "|"))


@pytest.mark.req("rows.markdown")
@pytest.mark.slow
async def test_another_reader_parses_any_text_the_same(page: Page) -> None:
    """Compared with markdown-it, over texts made of marks only."""
    chance, other = random.Random(20260), make_reader()
    for _ in range(20):
        texts = [text for text in (generate_markdown(chance) for _ in range(200)) if is_fair(text)]
        ours = await page.evaluate(OURS, texts)
        for text, found in zip(texts, ours, strict=True):
            assert normalize_parts(found) == parse_reference(other.render(text)), repr(text)


GROWN = """async (pieces) => {
  const { renderMarkdown, updateMarkdown } = rows.markdown;
  const element = renderMarkdown("");
  let text = "";
  for (const piece of pieces) {
    text += piece;
    updateMarkdown(element, text);
    if (rows.outline(element) !== rows.outline(renderMarkdown(text))) return text;
  }
  return null;
}"""


@pytest.mark.req("rows.markdown.grows")
async def test_a_growing_text_always_looks_as_if_drawn_at_once(page: Page) -> None:
    chance = random.Random(7)
    for _ in range(150):
        pieces = [chance.choice(WORDS) for _ in range(chance.randint(5, 40))]
        assert await page.evaluate(GROWN, pieces) is None


# Lists, tables and code, whose elements are reused while they grow.
LINES = [
    "- a\n", "- b\n", "-", "x", "\n", "  - c\n", "# ", "- [x] d\n", "- # e\n", "1. f\n", "  g\n",
    "|h|i|\n", "|-|-|\n", "j|k\n", "```js\n", "let l = `m", "`; // n\n", "/* o\n", "*/", "    ",
]  # fmt: skip


@pytest.mark.req("rows.markdown.grows")
@pytest.mark.slow
async def test_growing_lists_tables_and_code_look_as_if_drawn_at_once(page: Page) -> None:
    chance = random.Random(8)
    for _ in range(150):
        pieces = chance.choices(LINES, weights=[6, 6, *[1] * (len(LINES) - 2)], k=40)
        assert await page.evaluate(GROWN, pieces) is None
    for line in LINES:
        table = ["|a|b|\n", "|-|-|\n", *chance.choices([line, "|c|d|\n", "e"], k=20)]
        assert await page.evaluate(GROWN, table) is None


@pytest.mark.req("rows.markdown.grows")
async def test_a_growing_text_redraws_only_its_last_block(page: Page) -> None:
    kept_elements: dict[str, Any] = await page.evaluate(
        """async () => {
          const { renderMarkdown, updateMarkdown } = rows.markdown;
          const lines = "# One\\n\\nTwo *words*\\n\\n```js\\nlet a = 1;\\n";
          const element = renderMarkdown(lines, { copy() {} });
          rows.shelf.replaceChildren(element);
          const before = [...element.children];
          getSelection().selectAllChildren(before[1]);
          const button = before[2].querySelector("button");
          button.focus();
          updateMarkdown(element, lines + "let b = 2;\\n", { copy() {} });
          const after = [...element.children];
          return {
            isSame: before.every((child, at) => child === after[at]),
            hasFocus: document.activeElement === button,
            selected: getSelection().toString(),
            code: after[2].querySelector("code").textContent,
          };
        }"""
    )
    assert kept_elements == {
        "isSame": True,
        "hasFocus": True,
        "selected": "Two words",
        "code": "let a = 1;\nlet b = 2;",
    }


@pytest.mark.req("rows.markdown.links")
async def test_a_misleading_link_shows_its_address(page: Page) -> None:
    shown = """(text) => rows.markdown.renderMarkdown(text).textContent"""
    lies = [
        ("[https://bank.example](https://evil.example/)", "https://bank.example (evil.example)"),
        ("[bank.com](https://evil.example/)", "bank.com (evil.example)"),
        ("[home](https://bank.com@evil.example/)", "home (evil.example)"),
        ("[аpple.com](https://xn--pple-43d.com/)", "аpple.com (xn--pple-43d.com)"),
    ]
    for text, want in lies:
        assert await page.evaluate(shown, text) == want
    for text, want in (
        ("[www.bank.com/x](https://bank.com/y)", "www.bank.com/x"),
        ("[README.md](https://code.example/a)", "README.md"),
    ):
        assert await page.evaluate(shown, text) == want


@pytest.mark.req("rows.markdown.links")
async def test_links_open_in_a_new_tab_without_a_referrer(page: Page) -> None:
    link = await page.evaluate(
        """() => {
          const link = rows.markdown.renderMarkdown("[a](https://b.example/)").querySelector("a");
          return Object.fromEntries([...link.attributes].map(({ name, value }) => [name, value]));
        }"""
    )
    assert link["rel"] == "noopener noreferrer"
    assert link["target"] == "_blank"
