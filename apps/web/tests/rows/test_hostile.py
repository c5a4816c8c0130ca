"""Foreign text: nothing in it runs, sends requests, hides, or makes the page slow."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from apps.web.tests.rows import hostile_markdown

from .sample_rows import (
    QUESTION,
    TASK,
    format_shell_result,
    make_row,
    make_text_row,
    make_tool_row,
    make_user_row,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
DANGERS = Path(__file__).with_name("dangers.js").read_text().partition("\n")[2]
FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


@pytest.fixture
def is_loaded_anew() -> bool:
    return True


async def find_dangers(page: Page) -> list[str]:
    """The dangers found after everything was opened, hovered over and given time."""
    await page.evaluate(
        """() => {
          for (let round = 0; round < 4; round += 1) {
            document.querySelectorAll("details").forEach((one) => (one.open = true));
          }
          for (const element of rows.shelf.querySelectorAll("*")) {
            element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
          }
        }"""
    )
    await page.evaluate(FRAME)
    found: list[str] = await page.evaluate(DANGERS)
    return found


@pytest.mark.req("rows.hostile.markdown")
async def test_foreign_markdown_becomes_only_text_and_safe_links(page: Page) -> None:
    """The page's watch fails this test for any request or error, too."""
    texts = list(hostile_markdown.list_hostile_markdown())
    assert len(texts) > 900
    for at in range(0, len(texts), 100):
        batch = [
            make_text_row(f"t{number}", words) for number, words in enumerate(texts[at : at + 100])
        ]
        batch += [
            make_user_row(f"u{number}", words) for number, words in enumerate(texts[at : at + 100])
        ]
        await page.evaluate("(list) => { rows.show(...list); }", batch)
        assert await find_dangers(page) == []


@pytest.mark.req("rows.hostile.markdown")
async def test_foreign_markdown_is_safe_while_it_grows(page: Page) -> None:
    """A part of a text may look like something that the whole is not."""
    texts = [
        *hostile_markdown.SCRIPTS,
        *(place.format(f"javascript:{hostile_markdown.RUN}") for place in hostile_markdown.PLACES),
    ]
    await page.evaluate(
        """(texts) => {
          for (const text of texts) {
            const element = rows.all.renderLive({ text: "", thinking: false, speaker: null });
            rows.shelf.append(element);
            for (let end = 1; end <= text.length; end += 1) {
              const live = { text: text.slice(0, end), thinking: false, speaker: null };
              rows.all.updateLive(element, live);
            }
          }
        }""",
        texts,
    )
    assert await find_dangers(page) == []


def make_hostile_rows(words: str) -> list[dict[str, Any]]:
    """Foreign text in every place of a call, a file, a name and a line."""
    guest = {"id": "x", "name": words, "kind": "guest", "hue": words}
    task = {"name": words, "title": words, "isActive": True}
    inner = [
        make_text_row("i", words, speaker={**TASK, "name": words}),
        make_tool_row(words, "j", words, {words: words}, speaker=TASK),
    ]
    return [
        make_tool_row(
            "bash",
            "1",
            words,
            {"command": words, "extra": words},
            result=format_shell_result(words, words, 1),
            state="failed",
        ),
        make_tool_row("bash", "2", words, {"command": [words]}, result=words),
        make_tool_row(
            "read", "3", words, {"path": words}, result=f"1\t{words}\n\n--- 1 total lines ---"
        ),
        make_tool_row(
            "edit",
            "4",
            words,
            {"path": words, "old_string": words, "new_string": words + "x"},
            result=words,
        ),
        make_tool_row(words, "5", words, {words: {words: [words]}, "raw": words}, result=words),
        make_tool_row("other", "6", words, {}, result=f"@@ -1 +1 @@\n-{words}\n+{words} x\n"),
        make_tool_row(
            "multiedit", "7", words, {"edits": [{"old_string": words}, None, 3]}, result="{}"
        ),
        make_tool_row("write", "8", words, {"path": "a.html", "content": words}),
        make_tool_row(
            "ask-user", "9", words, {"questions": [{"question": words}, None]}, result=words
        ),
        make_tool_row(
            "task",
            "10",
            words,
            {"prompt": words},
            result=words,
            task=task,
            children=inner,
            state="running",
        ),
        make_row(
            "file", "11", role="agent", ref="no", name=words, size=3, mimeType=words, image=None
        ),
        make_row(
            "file",
            "12",
            role="agent",
            ref="no",
            name=words,
            size=3,
            mimeType="text/html",
            image=None,
        ),
        make_row("service", "13", text=words, speaker=guest),
        make_text_row("14", words, speaker=guest),
        make_text_row("15", words, thinking=True, speaker=guest),
        make_user_row("16", words, state="failed", problem=words),
        make_row("end", "17", status=words),
    ]


@pytest.mark.req("rows.hostile.output")
@pytest.mark.slow
async def test_foreign_calls_results_names_and_files_become_only_text(page: Page) -> None:
    strange = [
        *hostile_markdown.SCRIPTS,
        *hostile_markdown.TERMINAL,
        *hostile_markdown.ADDRESSES[:6],
    ]
    for at in range(0, len(strange), 12):
        batch = [one for words in strange[at : at + 12] for one in make_hostile_rows(words)]
        await page.evaluate("(list) => { rows.show(...list); }", batch)
        assert await find_dangers(page) == []


@pytest.mark.req("rows.hostile.output")
async def test_foreign_questions_become_only_text(page: Page) -> None:
    for words in hostile_markdown.SCRIPTS:
        part = {
            "id": words,
            "header": words,
            "question": words,
            "options": [{"label": words, "description": words}],
        }
        long = {**part, "question": words + "\n\n" + words, "options": []}
        question = {
            **QUESTION,
            "id": words,
            "questions": [part, {**part, "multiSelect": True}, long],
        }
        await page.evaluate(
            """(question) => {
              const acts = { answer: async () => ({}), dismiss: async () => ({}) };
              rows.shelf.replaceChildren(rows.all.renderQuestion(question, acts));
            }""",
            question,
        )
        assert await find_dangers(page) == []


@pytest.mark.req("rows.hostile.output")
async def test_arguments_and_results_of_any_shape_are_shown(page: Page) -> None:
    odd: list[Any] = [
        None,
        0,
        -1.5,
        True,
        [],
        {},
        [[[]]],
        {"a": {"b": {"c": [1, None]}}},
        "x" * 9999,
    ]
    names = ["bash", "read", "edit", "multiedit", "write", "ask-user", "task", "search", ""]
    keys = [
        "command",
        "path",
        "old_string",
        "new_string",
        "edits",
        "content",
        "questions",
        "offset",
    ]
    for value in odd:
        args = dict.fromkeys(keys, value)
        rows_made = [
            make_tool_row(name, f"{n}", "", args, result=value) for n, name in enumerate(names)
        ]
        await page.evaluate("(list) => { rows.show(...list); }", rows_made)
        assert await find_dangers(page) == []


@pytest.mark.req("rows.hostile.bidi")
async def test_bidi_and_hidden_characters_are_shown_without_effect(page: Page) -> None:
    """The surrounding text keeps its place and order."""
    found = await page.evaluate(
        """(names) => names.map((char) => {
          const [element] = rows.show({
            kind: "text", id: "x", time: 0, revision: 1, thinking: false, speaker: null,
            text: `one ${char}two\\n\\n\\`three ${char}four\\``,
          });
          const places = (selector) => {
            const part = element.querySelector(selector);
            const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
            const range = document.createRange();
            const lefts = [];
            while (walker.nextNode()) {
              if (walker.currentNode.parentElement.closest(".hidden-character")) continue;
              for (let at = 0; at < walker.currentNode.length; at += 1) {
                range.setStart(walker.currentNode, at);
                range.setEnd(walker.currentNode, at + 1);
                lefts.push(range.getBoundingClientRect().left);
              }
            }
            return lefts.every((left, at) => at === 0 || left >= lefts[at - 1]);
          };
          const marks = element.querySelectorAll(".hidden-character").length;
          return [char, places("p"), places("code"), marks, element.textContent.includes(char)];
        })""",
        ["\u202a", "\u202b", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u0007", "\u009b"],
    )
    assert [entry for entry in found if entry[1:] != [True, True, 2, True]] == []


@pytest.mark.req("rows.hostile.bidi")
async def test_a_file_name_cannot_fake_another_type(page: Page) -> None:
    rows_made = make_row(
        "file",
        "f",
        role="agent",
        ref="r",
        name="photo\u202egnp.exe",
        size=1,
        mimeType="",
        image=None,
    )
    name = await page.evaluate(
        """(made) => {
          const [element] = rows.show(made);
          const letters = [...element.querySelector(".file-name").childNodes];
          return [letters.at(-1).data, element.querySelector("button").getAttribute("aria-label")];
        }""",
        rows_made,
    )
    assert name == ["gnp.exe", "Download photognp.exe"]


# The fastest of three runs, because the machine is shared.
MEASURE = """(texts) => texts.map((text) => {
  let quickest = Infinity;
  for (let round = 0; round < 3 && quickest > 300; round += 1) {
    const start = performance.now();
    rows.markdown.renderMarkdown(text);
    quickest = Math.min(quickest, performance.now() - start);
  }
  return quickest;
})"""


def is_slow(short: float, long: float) -> bool:
    """Four times the text may take longer than four times as long, but not sixteen times."""
    return long > 1000 and long > 10 * short


@pytest.mark.timeout(200)
@pytest.mark.req("rows.hostile.linear")
@pytest.mark.slow
@pytest.mark.clock
async def test_markdown_takes_linear_time(page: Page) -> None:
    for mark in hostile_markdown.MARKS:
        texts = [(mark * (size // len(mark) + 1))[:size] for size in (10_000, 40_000)]
        short, long = await page.evaluate(MEASURE, texts)
        assert not is_slow(short, long), (mark, short, long)


LANGUAGES = [
    "python", "js", "json", "sh", "rust", "go", "c", "java", "html", "css", "sql", "yaml", "toml",
    "diff", "md",
]  # fmt: skip
CODE_TIMES = """([marks, languages]) => {
  const found = [];
  const quickest = (text, language) => {
    let time = Infinity;
    for (let round = 0; round < 3 && time > 300; round += 1) {
      const start = performance.now();
      const whole = rows.code.tokens(text, language).map((token) => token.text).join("");
      time = Math.min(time, performance.now() - start);
      if (whole !== text) throw new Error(`${language} lost something of ${text.slice(0, 20)}`);
    }
    return time;
  };
  for (const mark of marks) {
    const line = mark.repeat(5000 / mark.length).replaceAll("\\n", " ") + "\\n";
    for (const unit of [mark, mark + "\\n", line]) {
      for (const language of languages) {
        const [short, long] = [5000, 20_000].map((size) =>
          quickest(unit.repeat(Math.ceil(size / unit.length)), language));
        if (long > 300) found.push([language, unit.slice(0, 20), short, long]);
      }
    }
  }
  return found;
}"""


@pytest.mark.timeout(200)
@pytest.mark.req("rows.hostile.linear")
@pytest.mark.slow
@pytest.mark.clock
async def test_code_takes_linear_time(page: Page) -> None:
    for language, unit, short, long in await page.evaluate(
        CODE_TIMES, [hostile_markdown.CODE, LANGUAGES]
    ):
        assert not is_slow(short, long), (language, unit, short, long)


@pytest.mark.timeout(120)
@pytest.mark.req("rows.hostile.linear")
@pytest.mark.slow
async def test_a_megabyte_line_and_endless_nesting_are_drawn(page: Page) -> None:
    line, deep = "x" * 1_000_000, 20_000
    heavy = [
        make_text_row("1", line),
        make_text_row("2", "> " * deep + "a"),
        make_text_row("3", "- " * deep + "a"),
        make_text_row("4", "*_" * deep + "a" + "_*" * deep),
        make_text_row("5", "[" * deep + "a" + "](https://a.example/)" * deep),
        make_text_row("6", "```js\n" + line + "\n```"),
        make_text_row("7", "`" + line + "`"),
        make_tool_row("bash", "8", "Run", {"command": line}, result=format_shell_result(line)),
        make_tool_row("other", "9", line, {line[:500]: line}, result="[" * deep),
        make_tool_row(
            "edit", "10", "Edit", {"path": line[:500], "old_string": line, "new_string": line + "y"}
        ),
        make_tool_row(
            "edit", "11", "Edit", {"old_string": "a\n" * deep, "new_string": "b\n" * deep}
        ),
        make_tool_row("other", "12", "Deep", {}, result="@@ -1 +1 @@\n" + "-a\n+b\n" * deep),
        make_text_row("13", "| a " * 5000 + "|\n" + "|-" * 5000 + "|\n" + "| b\n" * 5000),
        make_text_row("14", "[x]: https://a.example/" + "y" * 5000 + "\n\n" + "[x] " * 5000),
    ]
    for one in heavy:
        depth = await page.evaluate(
            """(one) => {
              rows.show(one);
              document.querySelectorAll("details").forEach((details) => (details.open = true));
              let deepest = 0;
              for (const element of rows.shelf.querySelectorAll("*")) {
                let depth = 0;
                if (element.childElementCount) continue;
                for (let at = element; at; at = at.parentElement) depth += 1;
                deepest = Math.max(deepest, depth);
              }
              return [deepest, rows.shelf.querySelectorAll("*").length];
            }""",
            one,
        )
        assert depth[0] < 200, (one["id"], depth)
        assert depth[1] < 100_000, (one["id"], depth)
        assert await find_dangers(page) == []
