"""Code, diffs and program output: in colours, and exact."""

import random

import pytest
from playwright.async_api import Page

pytestmark = pytest.mark.asyncio(loop_scope="session")

LANGUAGES = [
    "python", "js", "ts", "json", "bash", "rust", "go", "c", "cpp", "java", "html", "xml", "css",
    "sql", "yaml", "toml", "diff", "markdown",
]  # fmt: skip
PIECES = [
    '"', "'", "`", "\\", "\n", " ", "\t", "/*", "*/", "//", "#", "--", "<!--", "-->", "<a", ">",
    "/>",     "${", "}", "{", "(", ")", "[", "]", "=", ":", ";", ",", ".", "0x1F", "1.5e3",
    "return", "def",
    "class", "fn", "select", "true", "null", "x", "Foo", "foo(", "@a", "$b", "&amp;", "+", "-", "/",
    "'''", '"""', "r#\"", "é", "👩‍👩‍👧", "\u202e", "\x00", "\r\n", "--flag", "key: ",
    "[t]", "@@ -1 +1 @@",
]  # fmt: skip


@pytest.mark.req("rows.code.whole")
async def test_colouring_neither_loses_nor_moves_characters(page: Page) -> None:
    chance = random.Random(11)
    texts = ["".join(chance.choices(PIECES, k=chance.randint(0, 60))) for _ in range(400)]
    texts += ["".join(chr(chance.randint(0, 0x2FF)) for _ in range(80)) for _ in range(100)]
    lost = await page.evaluate(
        """([texts, languages]) => texts.flatMap((text) => languages.filter((language) => {
          const whole = rows.code.tokens(text, language).map((token) => token.text).join("");
          const block = rows.code.renderCode(text, language);
          const shown = block.querySelector("code").textContent;
          return whole !== text || shown !== text.replaceAll("\\r", "");
        }).map((language) => [language, text]))""",
        [texts, [*LANGUAGES, "", "no such language"]],
    )
    assert lost == []


SNIPPETS = {
    "python": ('@a\nasync def f(x: int) -> None:\n    """Doc."""\n    return "s" + 0x1f  # c', {
        "async": "keyword", "f": "function", "int": "type", "0x1f": "number",
        '"""Doc."""': "string",         "# c": "comment", "@a": "meta"}),
    "ts": ("const a: string = `x${1}`; // c\nif (/a[/]b/.test(a)) { new Foo(1.5) }", {
        "const": "keyword", "string": "type", "`x${1}`": "string", "// c": "comment",
        "/a[/]b/": "regexp", "Foo": "type", "1.5": "number"}),
    "json": ('{"a": [1, true, "b"]}', {
        '"a"': "key", "1": "number", "true": "keyword", '"b"': "string"}),
    "bash": ("for f in $A; do grep -n 'x' \"$f\" | wc; done # c", {
        "for": "keyword", "$A": "variable", "'x'": "string", "-n": "meta", "# c": "comment",
        "wc": "function"}),
    "rust": ('fn main() { let s: &str = r#"a"b"#; println!("{}", 1_000u32); } // c', {
        "fn": "keyword", "main": "function", "str": "type", 'r#"a"b"#': "string",
        "println!": "function", "1_000u32": "number"}),
    "go": ("func f(a int) error { return nil } // c", {
        "func": "keyword", "int": "type", "nil": "keyword", "f": "function"}),
    "cpp": ('#include <a>\nint main() { auto s = "x\\"y"; /* c */ }', {
        "#include": "meta", "int": "type", '"x\\"y"': "string", "/* c */": "comment"}),
    "java": ("@Override public void f() { String s = \"a\"; }", {
        "@Override": "meta", "public": "keyword", "String": "type"}),
    "html": ('<!-- c --><a href="x">y &amp; z</a>', {
        "<!-- c -->": "comment", "<a": "tag", "href": "attribute", '"x"': "string",
        "&amp;": "number"}),
    "css": (".a { color: #fff; margin: 1rem } /* c */ @media x {}", {
        ".a": "type", "color": "key", "#fff": "number", "1rem": "number", "@media": "meta"}),
    "sql": ("SELECT count(*) FROM t WHERE a = 'b' -- c", {
        "SELECT": "keyword", "count": "function", "'b'": "string", "-- c": "comment"}),
    "yaml": ("a: 1 # c\nb:\n  - true\n  - 'x'\n", {
        "a": "key", "1": "number", "true": "keyword", "# c": "comment", "'x'": "string"}),
    "toml": ("[t]\na = 'x' # c\nb = 1979-05-27\n", {
        "[t]": "tag", "a": "key", "'x'": "string", "1979-05-27": "number"}),
    "diff": ("@@ -1 +1 @@\n-a\n+b\n c", {"@@ -1 +1 @@": "meta", "-a": "removed", "+b": "added"}),
    "markdown": ("# T\n\n- `a` **b** [c](d)", {
        "# T": "keyword", "`a`": "string", "**b**": "type", "[c](d)": "function"}),
}  # fmt: skip


@pytest.mark.req("rows.code")
@pytest.mark.parametrize("language", sorted(SNIPPETS))
async def test_tokens_have_the_colour_of_their_class(page: Page, language: str) -> None:
    text, want = SNIPPETS[language]
    tokens = await page.evaluate(
        "([text, language]) => rows.code.tokens(text, language)", [text, language]
    )
    found = {token["text"]: token["name"] for token in tokens}
    assert {word: found.get(word) for word in want} == want


@pytest.mark.req("rows.code")
async def test_the_copy_button_copies_the_exact_code(page: Page) -> None:
    await page.evaluate(
        """() => rows.shelf.replaceChildren(rows.markdown.renderMarkdown(
             "```js\\nlet a = '\\u202e';\\n\\n  b();\\n```", { copy: rows.context.copy }))"""
    )
    button = page.get_by_role("button", name="Copy")
    await button.focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Copied").wait_for()
    assert await page.evaluate("rows.copied") == ["let a = '\u202e';\n\n  b();"]


@pytest.mark.req("rows.diff")
async def test_a_diff_has_removed_and_added_lines_with_changed_words_marked(page: Page) -> None:
    lines = await page.evaluate(
        """() => rows.diff.linesBetween("a\\nlet x = one;\\nz", "a\\nlet x = two;\\nb\\nz")"""
    )
    assert [(line["kind"], line["text"]) for line in lines] == [
        ("same", "a"),
        ("removed", "let x = one;"),
        ("added", "let x = two;"),
        ("added", "b"),
        ("same", "z"),
    ]
    lines = await page.evaluate(
        "(text) => rows.diff.linesOfDiff(text)",
        "--- a\n+++ b\n@@ -1,2 +1,2 @@\n-let x = one;\n+let x = two;\n c\n",
    )
    assert [line["kind"] for line in lines] == ["note", "note", "note", "removed", "added", "same"]
    marked = [[p["text"] for p in line["parts"] if p["isMarked"]] for line in lines[3:5]]
    assert marked == [["one"], ["two"]]


@pytest.mark.req("rows.diff")
async def test_any_diff_leads_from_the_old_text_to_the_new(page: Page) -> None:
    chance = random.Random(5)
    pairs = [
        ["\n".join(chance.choices("abcd", k=chance.randint(0, 12))) for _ in range(2)]
        for _ in range(300)
    ]
    found = await page.evaluate(
        "(pairs) => pairs.map(([a, b]) => rows.diff.linesBetween(a, b))", pairs
    )
    for (old, new), lines in zip(pairs, found, strict=True):
        old_lines = [line["text"] for line in lines if line["kind"] != "added"]
        come = [line["text"] for line in lines if line["kind"] != "removed"]
        assert "\n".join(old_lines) == old
        assert "\n".join(come) == new


@pytest.mark.req("rows.diff")
async def test_unchanged_lines_are_folded_and_can_be_shown(page: Page) -> None:
    await page.evaluate(
        """() => {
          const lines = Array.from({ length: 60 }, (_, at) => `line ${at}`);
          const changed = lines.with(30, "other");
          const made = rows.diff.linesBetween(lines.join("\\n"), changed.join("\\n"));
          rows.shelf.replaceChildren(rows.diff.renderDiff(made));
        }"""
    )
    group = page.get_by_role("group", name="Changes: 1 line added, 1 line removed")
    assert await group.locator(".diff-line").count() == 3 + 2 + 3
    await page.get_by_role("button", name="Show 27 unchanged lines").press("Enter")
    assert await group.locator(".diff-line").count() == 27 + 3 + 2 + 3
    assert await page.evaluate("document.activeElement.textContent.trim()") == "line 0"


@pytest.mark.req("rows.output.terminal")
async def test_terminal_output_keeps_colours_and_drops_cursor_movement(page: Page) -> None:
    segments = await page.evaluate(
        """(text) => {
          rows.shelf.replaceChildren(...rows.ansi.terminal(text));
          const red = rows.shelf.querySelector(".ansi-red")?.textContent;
          return [rows.shelf.textContent, red, rows.ansi.terminalText(text)];
        }""",
        "\x1b]0;t\x07a\x1b[1;31mred\x1b[0m\x1b[2K\x1b[10;10Hb\n10%\r50%\r100%\r\nend\x1b(B",
    )
    assert segments == ["aredb\n100%\nend", "red", "aredb\n100%\nend"]


@pytest.mark.req("rows.output.shell")
async def test_shell_output_is_read_even_if_its_middle_is_left_out(page: Page) -> None:
    read = "(text) => rows.shell.shellOutcome(text)"
    whole = '{"stdout":"a\\nb","stderr":"c","exit_code":3}'
    assert await page.evaluate(read, whole) == {
        "stdout": "a\nb",
        "stderr": "c",
        "code": 3,
        "note": "",
    }
    noted = await page.evaluate(read, "it took too long\n" + whole)
    assert (noted["note"], noted["code"]) == ("it took too long", 3)
    note = "\n… 900 bytes and more left out …\n"
    cut = '{"stdout":"a\\nb' + note + '\\nz","stderr":"e\\u00e9","exit_code":1}'
    found = await page.evaluate(read, cut)
    assert found["stdout"] == f"a\nb{note}\nz"
    assert (found["stderr"], found["code"]) == ("eé", 1)
    assert await page.evaluate(read, "hello") is None
