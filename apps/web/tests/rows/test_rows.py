"""Rows: their text and state, and that an update does not disturb the person."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from apps.web.tests.browser.chromium import open_browser_page

from .sample_rows import (
    NOON,
    TASK,
    format_shell_result,
    make_row,
    make_text_row,
    make_tool_row,
    make_user_row,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Shows a row, and again after a change.
SHOW = "(one) => { [globalThis.shown] = rows.show(one); }"
UPDATE = """(one) => rows.all.updateRow(globalThis.shown, one, rows.context)"""


@pytest.mark.req("rows.tool.line")
async def test_a_finished_call_is_one_line_with_title_and_duration(page: Page) -> None:
    done = make_tool_row(
        "bash",
        "b",
        "Run `ls -l`",
        {"command": "ls -l"},
        result=format_shell_result("a\n"),
        durationMs=41,
    )
    await page.evaluate(SHOW, done)
    line = page.locator("summary")
    assert re.sub(r"\s+", " ", await line.inner_text()) == "Run ls -l Done 41 ms"
    assert await page.locator(".tool-body").evaluate("(body) => body.childElementCount") == 0
    box = await page.locator(".tool").bounding_box()
    assert box is not None
    assert box["height"] < 48


@pytest.mark.req("rows.tool.opens")
async def test_a_call_opens_by_keyboard_to_its_request_and_result(page: Page) -> None:
    done = make_tool_row(
        "bash",
        "b",
        "Run `ls`",
        {"command": "ls # all"},
        result=format_shell_result("out", "err", 3),
        durationMs=5,
    )
    await page.evaluate(SHOW, done)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    body = page.locator(".tool-body")
    await expect(body.get_by_role("group", name="Code, shell")).to_have_text("ls # all")
    await expect(body.get_by_role("group", name="Output")).to_have_text("out")
    await expect(body.get_by_role("group", name="Errors")).to_have_text("err")
    await expect(body.get_by_text("Exit code 3")).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(body).to_be_hidden()


@pytest.mark.req("rows.tool.opens")
async def test_an_edit_shows_its_change_and_a_read_the_lines_it_read(page: Page) -> None:
    change = {"path": "a.py", "old_string": "x = 1", "new_string": "x = 2"}
    await page.evaluate(SHOW, make_tool_row("edit", "e", "Edit `a.py`", change, result="ok"))
    await expect(page.locator(".tool-note")).to_have_text("+1 −1")
    await page.locator("summary").click()
    group = page.get_by_role("group", name="Changes: 1 line added, 1 line removed")
    await expect(group.locator("del mark")).to_have_text("1")
    await expect(group.locator("ins mark")).to_have_text("2")
    result = "7\tdef f():\n8\t    pass\n\n--- 9 total lines (showing lines 7-8) ---"
    await page.evaluate(
        SHOW, make_tool_row("read", "r", "Read `b.py`", {"path": "b.py"}, result=result)
    )
    await page.locator("summary").click()
    await expect(page.locator(".gutter")).to_have_text("7\n8")
    await expect(page.locator(".output-text code")).to_have_text("def f():\n    pass")
    await expect(page.get_by_text("9 total lines (showing lines 7-8)")).to_be_visible()


@pytest.mark.req("rows.tool.states")
async def test_a_call_shows_its_state(page: Page) -> None:
    running = make_tool_row("bash", "b", "Run `x`", {"command": "x"}, state="running", time=0)
    await page.evaluate(SHOW, running)
    await expect(page.locator("summary")).to_contain_text("Running for")
    failed = {
        **running,
        "state": "failed",
        "result": "permission denied",
        "durationMs": 1200,
        "revision": 2,
    }
    await page.evaluate(UPDATE, failed)
    await expect(page.locator("summary")).to_contain_text("Failed 1.2 s")
    await page.locator("summary").click()
    await expect(page.locator(".output.is-error")).to_contain_text("permission denied")
    await page.evaluate(
        SHOW,
        make_tool_row(
            "bash", "c", "Run `x`", {"command": "x"}, result=format_shell_result("", "", 1)
        ),
    )
    await expect(page.locator(".tool-note.is-bad")).to_have_text("exit 1")
    await page.evaluate(
        SHOW, make_tool_row("bash", "d", "Run `x`", {}, state="cut", result="interrupted")
    )
    await expect(page.locator("summary")).to_contain_text("Stopped")


@pytest.mark.req("rows.tool.states")
async def test_a_running_call_shows_its_duration(browser: Browser, gallery: str) -> None:
    async with open_browser_page(browser, gallery) as (page, _):
        await page.clock.install(time=NOON / 1000)
        await page.goto(f"{gallery}/gallery.html")
        await page.wait_for_selector("[data-ready]")
        await page.clock.pause_at(NOON / 1000 + 1000)
        await page.evaluate(SHOW, make_tool_row("bash", "b", "Run `x`", {}, state="running"))
        since = page.locator("[data-since]")
        assert await since.inner_text() == "16 min 40 s"
        await page.clock.run_for(70_000)
        await expect(since).to_have_text("17 min 50 s")


@pytest.mark.req("rows.output.folded")
async def test_a_long_output_is_folded_and_shown_whole_when_asked(page: Page) -> None:
    long = "\n".join(f"line {number}" for number in range(400))
    await page.evaluate(SHOW, make_tool_row("other", "o", "Long", {}, result=long))
    await page.locator("summary").click()
    output = page.get_by_role("group", name="Output")
    assert (await output.inner_text()).count("\n") == 15
    await page.get_by_role("button", name="Show all (400 lines)").press("Enter")
    assert (await output.inner_text()).count("\n") == 399
    assert await output.evaluate("(pre) => document.activeElement === pre")
    await page.get_by_role("button", name="Copy").click()
    assert await page.evaluate("rows.copied.at(-1)") == long


@pytest.mark.req("rows.update")
async def test_an_update_keeps_what_is_open_focused_selected_and_scrolled(page: Page) -> None:
    long = "\n".join(f"line {number}" for number in range(400))
    inner = make_tool_row(
        "bash",
        "i",
        "Run `inner`",
        {"command": "inner"},
        result=format_shell_result(long),
        speaker=TASK,
    )
    task = {"name": "scout", "title": "look", "isActive": True}
    outer = make_tool_row(
        "task", "o", "scout — look", {"prompt": "Look."}, state="running", task=task,
        children=[make_text_row("t", "First words", speaker=TASK), inner],
    )  # fmt: skip
    await page.evaluate(SHOW, outer)
    await page.get_by_text("inner").click()
    await page.get_by_role("button", name="Show all").click()
    await page.evaluate(
        """() => {
          const pre = document.querySelector(".output-text");
          pre.scrollTop = 200;
          getSelection().selectAllChildren(document.querySelector(".said p"));
        }"""
    )
    later = {
        **outer, "revision": 2, "state": "done", "durationMs": 3000, "result": "Done.",
        "children": [*outer["children"], make_text_row("u", "Last words", speaker=TASK)],
    }  # fmt: skip
    await page.evaluate(UPDATE, later)
    kept = await page.evaluate(
        """() => ({
          open: [...document.querySelectorAll(".tool > details")].map((one) => one.open),
          focus: document.activeElement.className,
          scroll: document.querySelector(".output-text").scrollTop,
          selection: getSelection().toString(),
        })"""
    )
    assert kept == {
        "open": [True, True],
        "focus": "output-text",
        "scroll": 200,
        "selection": "First words",
    }
    await expect(page.get_by_text("Last words")).to_be_visible()
    await expect(page.locator(".task-result")).to_have_text("Done.")


@pytest.mark.req("rows.update")
async def test_a_row_of_the_same_revision_is_not_touched(page: Page) -> None:
    await page.evaluate(SHOW, make_text_row("t", "One"))
    touched = await page.evaluate(
        """async (one) => {
          const seen = [];
          const watcher = new MutationObserver((changes) => seen.push(...changes));
          const all = { subtree: true, childList: true, attributes: true, characterData: true };
          watcher.observe(rows.shelf, all);
          rows.all.updateRow(globalThis.shown, one, rows.context);
          await null;
          return seen.concat(watcher.takeRecords()).length;
        }""",
        make_text_row("t", "One"),
    )
    assert touched == 0


@pytest.mark.req("rows.subagents")
async def test_sub_agents_nest_fold_and_show_statistics(page: Page) -> None:
    def task(name: str, children: list[dict[str, object]], **rest: object) -> dict[str, object]:
        about = {"name": name, "title": f"{name}'s task", "isActive": False}
        return make_tool_row(
            "task", name, "", {"prompt": "Do."}, task=about, children=children, **rest
        )

    leaf = make_tool_row("bash", "l", "Run `deep`", {"command": "deep"}, speaker=TASK)
    tree = task("outer", [leaf, task("middle", [task("inner", [{**leaf, "id": "m"}])])])
    await page.evaluate(SHOW, tree)
    line = page.locator("summary").first
    await expect(line).to_contain_text("outer")
    await expect(line).to_contain_text("2 calls, 2 sub-agents")
    assert await page.locator("summary").count() == 1
    for name in ("outer's", "middle's", "inner's"):
        await page.get_by_text(name).click()
    await expect(page.get_by_text("deep").last).to_be_visible()


@pytest.mark.req("rows.subagents")
async def test_a_running_sub_agent_is_open_and_a_long_one_shows_its_latest_steps(
    page: Page,
) -> None:
    about = {"name": "scout", "title": "look", "isActive": True}
    children = [make_text_row(f"t{n}", f"Step number {n}", speaker=TASK) for n in range(250)]
    await page.evaluate(
        SHOW, make_tool_row("task", "k", "", {}, task=about, children=children, state="running")
    )
    await expect(page.get_by_text("Step number 249")).to_be_visible()
    assert await page.get_by_text("Step number 49", exact=True).count() == 0
    await page.get_by_role("button", name="Show 50 earlier steps").click()
    await expect(page.get_by_text("Step number 0", exact=True)).to_be_attached()


@pytest.mark.req("rows.guests")
async def test_a_guest_has_a_name_and_colour_and_a_task_does_not(page: Page) -> None:
    owl = {"id": "g", "name": "owl", "kind": "guest", "hue": 200}
    await page.evaluate("(list) => { rows.show(...list); }", [
        make_text_row("a", "Mine"), make_text_row("b", "Hers", speaker=owl),
        make_text_row("c", "Lost", speaker=TASK),
    ])  # fmt: skip
    assert await page.locator(".speaker-name").all_inner_texts() == ["owl guest", "scout"]
    assert await page.locator(".said.is-guest").count() == 1


@pytest.mark.req("rows.thinking")
async def test_reasoning_is_folded_until_it_is_opened(page: Page) -> None:
    await page.evaluate(SHOW, make_text_row("t", "Secret *thoughts*", thinking=True))
    assert await page.get_by_text("thoughts").count() == 0
    await page.get_by_text("Thinking").press("Enter")
    await expect(page.get_by_text("thoughts")).to_be_visible()


@pytest.mark.req("rows.live")
async def test_live_text_grows_and_may_change_from_reasoning_to_text(page: Page) -> None:
    await page.evaluate(
        """() => {
          globalThis.live = rows.all.renderLive({ text: "Hm", thinking: true, speaker: null });
          rows.shelf.replaceChildren(globalThis.live);
        }"""
    )
    grow = "(one) => rows.all.updateLive(globalThis.live, one)"
    await page.get_by_text("Thinking").click()
    await page.evaluate(grow, {"text": "Hm, so", "thinking": True, "speaker": None})
    await expect(page.get_by_text("Hm, so")).to_be_visible()
    await page.evaluate(grow, {"text": "The **ans", "thinking": False, "speaker": None})
    await expect(page.get_by_text("The **ans")).to_be_visible()
    await page.evaluate(grow, {"text": "The **answer**", "thinking": False, "speaker": None})
    await expect(page.locator("strong")).to_have_text("answer")


@pytest.mark.req("rows.user")
async def test_unsent_messages_can_be_resent_or_discarded(page: Page) -> None:
    waiting = make_user_row("w", "Hello", state="sending", progress=0.2)
    await page.evaluate(SHOW, waiting)
    bar = page.get_by_role("progressbar", name="Upload")
    assert await bar.evaluate("(bar) => bar.value") == 0.2
    await page.evaluate(UPDATE, {**waiting, "progress": 0.7, "revision": 2})
    assert await bar.evaluate("(bar) => bar.value") == 0.7
    failed = {
        **waiting,
        "state": "failed",
        "progress": None,
        "problem": "It is too large.",
        "revision": 3,
    }
    await page.evaluate(UPDATE, failed)
    await expect(page.get_by_text("Not sent. It is too large.")).to_be_visible()
    await page.get_by_role("button", name="Try again").press("Enter")
    await page.get_by_role("button", name="Discard").press("Enter")
    assert await page.evaluate("rows.asked") == [["retry", "w"], ["discard", "w"]]
    await page.evaluate(UPDATE, {**waiting, "state": "sent", "progress": None, "revision": 4})
    await expect(page.get_by_role("button")).to_have_count(0)


@pytest.mark.req("rows.service")
async def test_service_lines_and_turn_ends_are_shown(page: Page) -> None:
    await page.evaluate("(list) => { rows.show(...list); }", [
        make_row("service", "s", text="It was **compacted**."),
        make_row("end", "a", status="failed"),
        make_row("end", "b", status="cancelled"),
        make_row("something new", "n", text="A kind that is not known yet."),
    ])  # fmt: skip
    await expect(page.locator(".service").first).to_have_text("It was compacted.")
    assert [t.strip() for t in await page.locator(".turn-end").all_inner_texts()] == [
        "This turn failed. Say something to try again.",
        "Stopped.",
    ]
    await expect(page.get_by_text("A kind that is not known yet.")).to_be_visible()
