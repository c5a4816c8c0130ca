"""Turns in a browser: what is said, what is shown of it, and when."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.stage import drawing
from apps.web.tests.gateway.phone import endings, texts
from tests.daemon.served import calling

from .scene import Home, scene

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTIONS = [
    {
        "question": "Which colour?",
        "header": "Colour",
        "options": [{"label": "red", "description": "warm"}, "blue"],
    },
    {
        "question": "Which shapes?",
        "header": "Shapes",
        "options": ["round", "long"],
        "multi_select": True,
    },
]


@pytest.mark.req("page.turn")
async def test_a_turn_is_seen_as_it_is_written_with_its_tools(home: Home) -> None:
    async with home.room() as s:
        person = s.person
        await s.ask(
            "What is this?",
            '!think let me see\n!say before the tool\n!tool bash {"command": "echo out put"}\n'
            "!then\n!say half of\n!wait\n!say  an answer with **weight**",
        )
        await person.sees("half of")  # while the model has not said the rest
        await expect(person.button("Stop")).to_be_visible()
        await expect(person.log.get_by_text("an answer with")).to_have_count(0)
        await s.stage.release()
        await person.sees("weight")
        await expect(person.log.locator("strong", has_text="weight")).to_be_visible()
        await expect(person.button("Stop")).to_be_hidden()
        card = person.tool("echo out put")
        await expect(card).to_be_visible()
        await person.unfold(card)
        await expect(card.get_by_text("out put", exact=True)).to_be_visible()
        await expect(person.log.get_by_text("half of an answer")).to_have_count(1)


@pytest.mark.req("page.follow")
async def test_an_answer_longer_than_the_window_is_followed_to_its_end(home: Home) -> None:
    async with home.room() as s:
        await s.ask("Count.", "!chunks 2000 0\n!say the last so far\n!wait\n!say and the very last")
        await s.person.sees("the last so far")
        await s.person.is_at(lambda left: left < 60)
        await s.person.log.hover()
        await s.person.page.mouse.wheel(0, -2000)
        await s.person.is_at(lambda left: left > 1500)
        await s.stage.release()
        await s.person.is_over()
        await s.person.is_at(lambda left: left > 1500)  # whoever reads is left in peace
        await s.person.button(re.compile("Newest|new$")).click()
        await s.person.is_at(lambda left: left < 60)


@pytest.mark.req("page.mirror")
async def test_what_is_said_elsewhere_appears_by_itself(home: Home) -> None:
    async with home.room() as s:
        session = await s.session()
        await s.device.say(session, "heard on the other device")
        await s.person.sees("heard on the other device", 2)  # the words, and the answer to them


@pytest.mark.req("page.question")
async def test_a_question_is_a_form_and_its_answer_goes_to_the_agent(home: Home) -> None:
    async with home.room() as s:
        person = s.person
        await s.ask("Paint it.", calling([("ask_user", {"questions": QUESTIONS})]))
        form = person.form("Which colour?")
        await expect(form).to_be_visible()
        await form.get_by_role("radio", name="red").check()
        await form.get_by_role("checkbox", name="round").check()
        await form.get_by_role("checkbox", name="long").check()
        await form.get_by_role("button", name="Answer").click()
        await expect(form).to_be_hidden()
        session = await s.session()
        await s.device.until_ended(session)
        (result,) = await s.told("tool")
        assert all(word in result for word in ("red", "round", "long"))
        await person.sees("done")


@pytest.mark.req("page.question")
async def test_a_question_that_another_device_answers_goes_away(home: Home) -> None:
    async with home.room() as s:
        await s.ask("Paint it.", calling([("ask_user", {"questions": QUESTIONS[:1]})]))
        form = s.person.form("Which colour?")
        await expect(form).to_be_visible()
        await s.device.say(await s.session(), "something between the two")
        await expect(form).to_be_hidden()


@pytest.mark.req("page.stop")
async def test_a_turn_that_is_stopped_says_so(home: Home) -> None:
    async with home.room() as s:
        await s.ask("Count to a million.", calling([("bash", {"command": "sleep 60"})]))
        await expect(s.person.tool("sleep 60")).to_be_visible()
        await s.person.button("Stop").click()
        session = await s.session()
        assert endings(await s.device.until_ended(session)) == ["cancelled"]
        await s.person.sees(re.compile("stopped|cancelled", re.IGNORECASE))
        await expect(s.person.button("Stop")).to_be_hidden()


@pytest.mark.req("page.failure")
async def test_a_turn_that_fails_says_why_and_the_next_goes_on(home: Home) -> None:
    async with home.room() as s:
        await s.ask("All of it, please.", "!status 400 the prompt is too long")
        await s.person.sees(re.compile("the prompt is too long"))
        await s.ask("A part of it?", "!say well then")
        await s.person.sees("well then", 1)


@pytest.mark.req("page.files")
async def test_a_picture_that_is_dropped_is_sent_shown_and_reaches_the_agent(home: Home) -> None:
    async with home.room() as s:
        data = drawing(640, 360)
        await s.person.drop("cliffs.png", "image/png", data)
        await s.ask("Look at this.", "!say what a view")
        await s.person.sees("what a view", 1)
        shown = s.person.log.get_by_role("img", name=re.compile("cliffs.png"))
        await expect(shown.first).to_be_visible()
        (inbox,) = (s.stage.work / ".crabtalk" / "inbox").glob("*/cliffs.png")
        assert inbox.read_bytes() == data


@pytest.mark.req("page.reload")
async def test_after_a_reload_it_is_all_there_again(home: Home) -> None:
    async with home.room() as s:
        person = s.person
        await person.drop("beach.png", "image/png", drawing(320, 180))
        await s.ask("Count.", calling([("bash", {"command": "echo one"})]))
        await person.sees(re.compile("^done$"), 1)
        await person.say("@owl !say hoo")
        await person.sees("hoo", 2)
        await person.is_over()
        before = await person.told()
        await person.page.reload()
        await expect(person.message).to_be_visible()
        await person.sees("hoo", 2)
        assert await person.told() == before


@pytest.mark.req("page.offline")
async def test_what_is_written_without_a_connection_is_sent_once_when_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    async with scene(browser, tmp_path, keeps=True) as s:
        person = s.person
        person.watch.expect("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "WebSocket connection")
        await s.ask("Are you there?", "!say at first")
        await person.sees("at first", 1)
        await person.is_kept()
        await s.stage.stop_relay()
        await expect(person.page.get_by_role("status").filter(has_text="Offline")).to_be_visible()
        await s.ask("One more.", "!say and one")
        await s.ask("And another.", "!say and two")
        await person.has_waiting(2)
        await person.page.reload()  # it is on disk, and so is the page
        await person.sees("at first", 1)
        await person.sees("And another.", 1)
        await s.stage.start_relay()
        session = await s.session()
        envelopes = await s.device.until_ended(session, 3)
        assert texts(envelopes) == ["at first", "and one", "and two"]
        await person.sees("and two", 1)
        await person.sees("And another.", 1)
        await expect(person.page.get_by_role("status").filter(has_text="Offline")).to_have_count(0)
        assert await s.told("user") == ["Are you there?", "One more.", "And another."]
