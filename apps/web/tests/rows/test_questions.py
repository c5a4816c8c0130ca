"""Questions: filled in by keyboard, answered once, and never lost silently."""

import pytest
from playwright.async_api import Page, expect

from .sample_rows import QUESTION

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASK = """([question, outcome]) => {
  globalThis.answers = [];
  const act = async (given) => {
    globalThis.answers.push(given ?? "dismissed");
    await new Promise((done) => { globalThis.let = done; });
    if (outcome === "fails") throw new Error("The machine is away. Try again later.");
    return outcome;
  };
  rows.shelf.replaceChildren(rows.all.renderQuestion(question, { answer: act, dismiss: act }));
}"""


@pytest.mark.req("rows.question")
async def test_a_form_is_filled_in_by_keyboard_and_shows_that_it_is_sent(page: Page) -> None:
    await page.evaluate(ASK, [QUESTION, {}])
    form = page.get_by_role("form", name="Target, Checks")
    await page.keyboard.press("Tab")
    await page.keyboard.press("ArrowDown")
    assert await form.get_by_role("radio", name="next").is_checked()
    await form.get_by_role("checkbox", name="Lint").press("Space")
    await form.get_by_role("checkbox", name="Tests").press("Space")
    words = form.get_by_role("textbox", name="Something else").last
    await words.fill("and format")
    await words.press("Control+Enter")
    await expect(form.get_by_role("status")).to_have_text("Sending your answer")
    await page.keyboard.press("Control+Enter")
    await page.evaluate("globalThis.let()")
    await expect(form.get_by_role("status")).to_have_text("Answered.")
    await expect(form.get_by_role("button")).to_have_count(0)
    question = {
        "q0": {"options": ["next"]},
        "q1": {"options": ["Tests", "Lint"], "custom": "and format"},
    }
    assert await page.evaluate("globalThis.answers") == [question]


@pytest.mark.req("rows.question")
async def test_free_text_replaces_the_single_choice(page: Page) -> None:
    await page.evaluate(ASK, [QUESTION, {}])
    await page.get_by_role("radio", name="main").check()
    words = page.get_by_role("textbox", name="Something else").first
    await words.fill("a tag")
    assert not await page.get_by_role("radio", name="main").is_checked()
    await page.get_by_role("radio", name="main").check()
    assert await words.input_value() == ""


@pytest.mark.req("rows.question")
async def test_a_form_without_an_answer_is_not_sent(page: Page) -> None:
    await page.evaluate(ASK, [QUESTION, {}])
    await page.get_by_role("button", name="Answer").click()
    await expect(page.get_by_role("alert")).to_have_text("Choose or write an answer first.")
    assert await page.get_by_role("radio", name="main").evaluate(
        "(one) => document.activeElement === one"
    )
    assert await page.evaluate("globalThis.answers") == []


@pytest.mark.req("rows.question.elsewhere")
async def test_an_answer_of_another_device_is_shown(page: Page) -> None:
    await page.evaluate(ASK, [QUESTION, {"already": True}])
    await page.get_by_role("radio", name="main").check()
    await page.get_by_role("button", name="Answer").press("Enter")
    await page.evaluate("globalThis.let()")
    await expect(page.get_by_role("status")).to_have_text("Another device has answered already.")


@pytest.mark.req("rows.question.elsewhere")
async def test_a_form_that_fails_to_send_keeps_its_input(page: Page) -> None:
    await page.evaluate(ASK, [QUESTION, "fails"])
    await page.get_by_role("radio", name="main").check()
    await page.get_by_role("button", name="Answer").press("Enter")
    await page.evaluate("globalThis.let()")
    await expect(page.get_by_role("alert")).to_have_text("The machine is away. Try again later.")
    assert await page.get_by_role("radio", name="main").is_checked()
    assert await page.get_by_role("button", name="Answer").is_enabled()


@pytest.mark.req("rows.question")
async def test_a_question_can_be_dismissed(page: Page) -> None:
    await page.evaluate(ASK, [QUESTION, {}])
    await page.get_by_role("button", name="Dismiss").press("Enter")
    await page.evaluate("globalThis.let()")
    await expect(page.get_by_role("status")).to_have_text("Dismissed.")
    assert await page.evaluate("globalThis.answers") == ["dismissed"]
