"""Turns in a browser: what is written, what is shown, and when."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.dev_server import draw_picture
from apps.web.tests.gateway.device_client import list_texts, list_turn_statuses
from tests.daemon.in_process_daemon import script_tool_calls

from .page_setup import SharedPage, set_up_page

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
async def test_a_turn_is_seen_as_it_is_written_with_its_tools(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        person = s.person
        await s.say_scripted(
            "What is this?",
            '!think let me see\n!say before the tool\n!tool bash {"command": "echo out put"}\n'
            "!then\n!say half of\n!wait\n!say  an answer with **weight**",
        )
        await person.wait_for_text("half of")  # before the model has sent the rest
        await expect(person.button("Stop")).to_be_visible()
        await expect(person.log.get_by_text("an answer with")).to_have_count(0)
        await s.server.release_model()
        await person.wait_for_text("weight")
        await expect(person.log.locator("strong", has_text="weight")).to_be_visible()
        await expect(person.button("Stop")).to_be_hidden()
        card = person.tool_card("echo out put")
        await expect(card).to_be_visible()
        await person.expand(card)
        await expect(card.get_by_text("out put", exact=True)).to_be_visible()
        await expect(person.log.get_by_text("half of an answer")).to_have_count(1)


@pytest.mark.req("page.follow")
async def test_an_answer_longer_than_the_window_is_followed_to_its_end(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        await s.say_scripted(
            "Count.", "!chunks 2000 0\n!say the last so far\n!wait\n!say and the very last"
        )
        await s.person.wait_for_text("the last so far")
        await s.person.wait_for_scroll(lambda left: left < 60)
        await s.person.log.hover()
        await s.person.page.mouse.wheel(0, -2000)
        await s.person.wait_for_scroll(lambda left: left > 1500)
        await s.server.release_model()
        await s.person.wait_for_turn_end()
        # a reader's position does not change
        await s.person.wait_for_scroll(lambda left: left > 1500)
        await s.person.button(re.compile("Newest|new$")).click()
        await s.person.wait_for_scroll(lambda left: left < 60)


@pytest.mark.req("page.mirror")
async def test_messages_from_elsewhere_appear_by_themselves(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        session = await s.wait_for_session()
        await s.device.send_text(session, "heard on the other device")
        await s.person.wait_for_text("heard on the other device", 2)  # the message, and its answer


@pytest.mark.req("page.question")
async def test_a_question_is_a_form_and_its_answer_goes_to_the_agent(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        person = s.person
        await s.say_scripted(
            "Paint it.", script_tool_calls([("ask_user", {"questions": QUESTIONS})])
        )
        form = person.question_form("Which colour?")
        await expect(form).to_be_visible()
        await form.get_by_role("radio", name="red").check()
        await form.get_by_role("checkbox", name="round").check()
        await form.get_by_role("checkbox", name="long").check()
        await form.get_by_role("button", name="Answer").click()
        await expect(form).to_be_hidden()
        session = await s.wait_for_session()
        await s.device.wait_for_turns(session)
        (result,) = await s.read_stored_texts("tool")
        assert all(word in result for word in ("red", "round", "long"))
        await person.wait_for_text("done")


@pytest.mark.req("page.question")
async def test_a_question_that_another_device_answers_goes_away(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        await s.say_scripted(
            "Paint it.", script_tool_calls([("ask_user", {"questions": QUESTIONS[:1]})])
        )
        form = s.person.question_form("Which colour?")
        await expect(form).to_be_visible()
        await s.device.send_text(await s.wait_for_session(), "something between the two")
        await expect(form).to_be_hidden()


@pytest.mark.req("page.stop")
async def test_a_stopped_turn_says_so(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        await s.say_scripted(
            "Count to a million.", script_tool_calls([("bash", {"command": "sleep 60"})])
        )
        await expect(s.person.tool_card("sleep 60")).to_be_visible()
        await s.person.button("Stop").click()
        session = await s.wait_for_session()
        assert list_turn_statuses(await s.device.wait_for_turns(session)) == ["cancelled"]
        await s.person.wait_for_text(re.compile("stopped|cancelled", re.IGNORECASE))
        await expect(s.person.button("Stop")).to_be_hidden()


@pytest.mark.req("page.failure")
async def test_a_failed_turn_says_why_and_the_next_works(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        await s.say_scripted("All of it, please.", "!status 400 the prompt is too long")
        await s.person.wait_for_text(re.compile("the prompt is too long"))
        await s.say_scripted("A part of it?", "!say well then")
        await s.person.wait_for_text("well then", 1)


@pytest.mark.req("page.files")
async def test_a_dropped_picture_is_sent_shown_and_reaches_the_agent(
    home: SharedPage,
) -> None:
    async with home.open_new_conversation() as s:
        data = draw_picture(640, 360)
        await s.person.drop_file("cliffs.png", "image/png", data)
        await s.say_scripted("Look at this.", "!say what a view")
        await s.person.wait_for_text("what a view", 1)
        image = s.person.log.get_by_role("img", name=re.compile("cliffs.png"))
        await expect(image.first).to_be_visible()
        (inbox,) = (s.server.work_folder / ".crabtalk" / "inbox").glob("*/cliffs.png")
        assert inbox.read_bytes() == data


@pytest.mark.req("page.reload")
async def test_everything_is_there_after_a_reload(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        person = s.person
        await person.drop_file("beach.png", "image/png", draw_picture(320, 180))
        await s.say_scripted("Count.", script_tool_calls([("bash", {"command": "echo one"})]))
        await person.wait_for_text(re.compile("^done$"), 1)
        await person.send_text("@owl !say hoo")
        await person.wait_for_text("hoo", 2)
        await person.wait_for_turn_end()
        before = await person.read_rows()
        await person.page.reload()
        await expect(person.message_box).to_be_visible()
        await person.wait_for_text("hoo", 2)
        assert await person.read_rows() == before


@pytest.mark.req("page.offline")
async def test_offline_messages_are_sent_once_when_the_connection_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    async with set_up_page(browser, tmp_path, keeps=True) as s:
        person = s.person
        person.watch.allow_faults(
            "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "WebSocket connection"
        )
        await s.say_scripted("Are you there?", "!say at first")
        await person.wait_for_text("at first", 1)
        await person.wait_for_service_worker()
        await s.server.stop_relay()
        await expect(person.page.get_by_role("status").filter(has_text="Offline")).to_be_visible()
        await s.say_scripted("One more.", "!say and one")
        await s.say_scripted("And another.", "!say and two")
        await person.wait_for_unsent(2)
        await person.page.reload()  # both the message and the page are stored
        await person.wait_for_text("at first", 1)
        await person.wait_for_text("And another.", 1)
        await s.server.start_relay()
        session = await s.wait_for_session()
        envelopes = await s.device.wait_for_turns(session, 3)
        assert list_texts(envelopes) == ["at first", "and one", "and two"]
        await person.wait_for_text("and two", 1)
        await person.wait_for_text("And another.", 1)
        await expect(person.page.get_by_role("status").filter(has_text="Offline")).to_have_count(0)
        assert await s.read_stored_texts("user") == ["Are you there?", "One more.", "And another."]
