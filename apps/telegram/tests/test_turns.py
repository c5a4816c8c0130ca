"""What people in Telegram see, with a daemon behind the gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.telegram.tests.bot_api_server import TelegramFault
from apps.telegram.tests.telegram_world import GROUP, TelegramWorld, open_telegram_world
from crabtalk.gateway.streamed_reply import SENT_AGAIN_MARK
from crabtalk.runtime import ToolDispatch
from crabtalk_telegram.service import count_utf16_units
from tests.daemon.in_process_daemon import script_tool_calls

pytestmark = pytest.mark.one_loop


async def say_and_wait(w: TelegramWorld, text: str, *answer: str, **more: Any) -> None:
    """Send a new message, and wait until its answer is the last one."""
    w.api.messages.clear()
    w.api.add_message(text, **more)
    await w.wait_for_texts(*answer)
    await w.wait_until_idle()


@pytest.mark.req("telegram.sender")
async def test_people_get_answers_despite_faults_of_telegram(tmp_path: Path) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        await say_and_wait(w, "hello", "heard: hello")
        assert await w.list_user_messages() == ["hello"]

        # Too fast, told to wait, and cut off before the request was sent.
        w.api.inject_faults("sendMessage", TelegramFault(429, retry_after=1))
        await say_and_wait(w, "!say slow", "slow")

        # Markup that Telegram cannot parse.
        cannot = "Bad Request: can't parse entities: Can't find end of Bold entity"
        w.api.inject_faults("sendMessage", TelegramFault(400, cannot))
        send_count = w.api.calls["sendMessage"]
        await say_and_wait(w, "!say **bold**", "bold")
        assert w.api.calls["sendMessage"] == send_count + 2

        # A message that Telegram finds too long is split smaller.
        w.api.inject_faults("sendMessage", TelegramFault(400, "Bad Request: message is too long"))
        words = " ".join(f"w{number}" for number in range(200))
        w.api.messages.clear()
        w.api.add_message(f"!say {words}")
        await w.api.wait_until(lambda: "w199" in "".join(w.api.texts_in()))
        await w.wait_until_idle()
        assert " ".join(w.api.texts_in()).split() == words.split()

        # A repeated update, and updates with smaller ids than answered ones.
        w.api.redelivers = True
        await say_and_wait(w, "!say once", "once")
        await say_and_wait(w, "!say later", "later", update=90)
        await say_and_wait(w, "!say earlier", "earlier", update=80)
        w.api.redelivers = False
        received = await w.list_user_messages()
        assert [received.count(f"!say {word}") for word in ("once", "later", "earlier")] == [
            1,
            1,
            1,
        ]


@pytest.mark.req("telegram.cut")
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_that_may_have_arrived_is_sent_again_with_a_mark(
    tmp_path: Path, is_done: bool
) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        w.api.inject_faults("sendMessage", TelegramFault(0, is_done=is_done))
        repeat = f"{SENT_AGAIN_MARK}\n\nheard: hello"
        await say_and_wait(w, "hello", *(["heard: hello", repeat] if is_done else [repeat]))
        assert await w.list_user_messages() == ["hello"]


@pytest.mark.req("telegram.cut")
async def test_an_edit_that_may_have_arrived_is_repeated_without_a_mark(
    tmp_path: Path,
) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        w.api.inject_faults("editMessageText", TelegramFault(0, is_done=True))
        w.api.add_message("!chunks 12 40")
        await w.wait_until_idle()
        (text,) = w.api.texts_in()
        assert len(text.split()) == 12
        assert SENT_AGAIN_MARK not in text


@pytest.mark.req("telegram.splitting")
async def test_long_answers_are_split_as_telegram_counts_also_in_code_and_emoji(
    tmp_path: Path,
) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():

        async def get_answer(text: str) -> list[str]:
            w.api.messages.clear()
            w.api.add_message(text)
            await w.wait_until_idle()
            texts = w.api.texts_in()
            assert all(count_utf16_units(text) <= 4096 for text in texts)
            return texts

        lines = "\n".join(f"print({number}, '**_`')" for number in range(400))
        first, *_, last = await get_answer(f"Before.\n\n```python\n{lines}\n```\n\nAfter.")
        assert (first[:14], last[-6:]) == ("heard: Before.", "After.")
        entities = [entity for message in w.api.messages_in("7") for entity in message.entities]
        assert {(entity.kind, entity.more) for entity in entities} == {("pre", "python")}
        assert "\n".join(entity.text for entity in entities) == lines

        family = "👩\u200d👩\u200d👧"
        texts = await get_answer(family * 1100)
        assert len(texts) == 3
        assert all(not text.removeprefix("heard: ").replace(family, "") for text in texts)

        # An emoji in code at each position around the limit of a message, marks included.
        for shift in range(4):
            code = "a" * shift + "🦀" * 2100
            texts = await get_answer(f"Here:\n```\n{code}\n```")
            entities = [entity for message in w.api.messages_in("7") for entity in message.entities]
            assert 2 <= len(texts) <= 3
            assert "".join(entity.text for entity in entities) == code
            assert {entity.kind for entity in entities} == {"pre"}

        edge = "🦀" * 2044 + "a"
        assert await get_answer(edge) == [f"heard: {edge}"]
        assert count_utf16_units(f"heard: {edge}") == 4096
        over = await get_answer(f"{edge}b")
        assert len(over) == 2
        assert "".join(over) == f"heard: {edge}b"


@pytest.mark.req("telegram.splitting")
async def test_an_answer_grows_past_the_end_of_a_message_into_the_next(tmp_path: Path) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        w.api.add_message("!chunks 50 0\n!wait\n!chunks 50 0\n!wait\n!chunks 300 0")
        await w.api.wait_until(lambda: len(" ".join(w.api.texts_in()).split()) == 50)
        w.daemon.model.release()
        await w.api.wait_until(lambda: len(" ".join(w.api.texts_in()).split()) == 100)
        w.daemon.model.release()
        await w.wait_until_idle()
        first, *other_messages = w.api.messages_in("7")
        assert len(other_messages) == 1
        assert len(first.history) > 2, "it grew"
        assert all(
            count_utf16_units(text) <= 4096
            for item in (first, *other_messages)
            for text in item.history
        )
        assert count_utf16_units(first.text) > 4000
        assert len(" ".join(w.api.texts_in()).split()) == 400


@pytest.mark.req("telegram.blocked")
async def test_a_bot_that_is_blocked_during_a_turn_stops_and_can_answer_again_later(
    tmp_path: Path,
) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        w.api.add_message("!say So far.\n!chunks 1000 50")
        await w.api.wait_until(lambda: w.api.texts_in())
        w.api.blocked.add("7")
        await w.daemon.model.until_hung_up()
        await w.wait_until_idle()
        send_count = w.api.calls["sendMessage"]
        w.api.blocked.clear()
        await say_and_wait(w, "!say again", "again")
        assert w.api.calls["sendMessage"] == send_count + 1
        assert await w.list_user_messages() == ["!say So far.\n!chunks 1000 50", "!say again"]


@pytest.mark.req("telegram.groups")
async def test_members_of_a_group_can_steer_and_answer_if_they_are_served(tmp_path: Path) -> None:
    async with open_telegram_world(tmp_path, hooks={}) as w, w.run_gateway():
        question = {
            "questions": [{"question": "Dig?", "header": "Dig", "options": [{"label": "Yes"}]}]
        }
        w.api.add_message(
            f"@crab_bot go\n!tool ask_user {json.dumps(question)}\n!then\n!say Dug.", chat=GROUP
        )
        await w.api.wait_until(
            lambda: w.api.messages_in("-100500") and w.api.messages_in("-100500")[-1].buttons
        )
        form = w.api.messages_in("-100500")[-1]
        w.api.press_button(form, "Yes", "66")  # a stranger, who is told so
        await w.api.wait_until(lambda: "do not know you" in w.api.texts_in("-100500")[-1])
        assert form.buttons
        w.api.press_button(form, "Yes", "8")
        await w.api.wait_until(lambda: "Dug." in w.api.texts_in("-100500")[-1])
        await w.wait_until_idle()
        assert [
            message["text"] for message in w.daemon.read_messages() if message["role"] == "tool"
        ] == ['{"Dig?": "Yes"}']


@pytest.mark.req("telegram.groups")
async def test_in_a_group_only_messages_to_the_bot_count_and_a_block_does_not_hold_up_other_chats(
    tmp_path: Path,
) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        w.api.blocked.add("8")
        w.api.add_message("hello", "8", name="Bo")
        w.api.add_message("not for us", "8", name="Bo", chat=GROUP)
        w.api.add_message("of a bot", "99", chat=GROUP, is_bot=True)
        number = w.api.add_message("@crab_bot hello", "7", chat=GROUP)
        await w.wait_for_texts("heard: Ann: hello", chat="-100500")
        assert w.api.messages_in("-100500")[0].reply_to == str(number + 1_000_000)
        w.api.add_message("/agents@crab_bot", "7", chat=GROUP)
        await w.api.wait_until(lambda: "twin" in w.api.texts_in("-100500")[-1])
        await w.wait_until_idle()
        assert await w.list_user_messages("tg:group:-100500") == ["Ann: hello"]
        assert not w.api.texts_in("8")
        w.api.blocked.clear()
        w.api.add_message("!say again", "8", name="Bo")
        await w.wait_for_texts("again", chat="8")
        await w.wait_until_idle()


@pytest.mark.req("telegram.stop")
async def test_stop_stops_a_turn_and_strangers_are_told_how_to_get_access(tmp_path: Path) -> None:
    async with open_telegram_world(tmp_path) as w, w.run_gateway():
        w.api.add_message("!say So far.\n!hang")
        await w.wait_for_texts("So far.")
        w.api.add_message("/stop")
        await w.wait_for_texts("So far.\n\n(stopped)")
        await w.api.wait_until(lambda: "7" in w.api.typing)
        w.api.add_message("hello", "66", name="Eve")
        await w.api.wait_until(lambda: w.api.texts_in("66"))
        assert "crabtalk-telegram pair" in w.api.texts_in("66")[0]
        assert [entity.kind for entity in w.api.messages_in("66")[0].entities] == ["code"]
        await w.wait_until_idle()
        assert await w.list_user_messages("tg:66") == []


QUESTIONS = {
    "questions": [
        {
            "question": "Where to?",
            "header": "Place",
            "options": [
                {"label": "Beach", "description": "Sand."},
                {"label": "Reef", "description": "Rock."},
            ],
        },
        {
            "question": "With what?",
            "header": "Tools",
            "multi_select": True,
            "options": [{"label": "Spade"}, {"label": "Bucket"}, {"label": "Rope"}],
        },
        {"question": "How deep?", "header": "Depth", "options": [{"label": "1 m"}]},
    ]
}


@pytest.mark.req("telegram.buttons")
async def test_questions_are_answered_with_buttons_and_words(tmp_path: Path) -> None:
    async with open_telegram_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.api.add_message(f"!tool ask_user {json.dumps(QUESTIONS)}\n!then\n!say Off we go.")
        await w.api.wait_until(
            lambda: w.api.messages_in("7") and w.api.messages_in("7")[-1].buttons
        )
        form = w.api.messages_in("7")[-1]
        assert "Where to?" in form.text
        w.api.press_button(form, "Reef")
        await w.api.wait_until(lambda: "With what?" in form.text)
        w.api.press_button(form, "Spade")
        await w.api.wait_until(lambda: "☑ Spade" in str(form.buttons))
        w.api.press_button(form, "Rope")
        await w.api.wait_until(lambda: "☑ Rope" in str(form.buttons))
        w.api.press_button(form, "Done")
        await w.api.wait_until(lambda: "How deep?" in form.text)
        w.api.add_message("as deep as it goes")
        await w.api.wait_until(lambda: w.api.texts_in()[-1] == "Off we go.")
        await w.wait_until_idle()
        assert not form.buttons
        assert len(w.api.answered_presses) == 4
        w.api.press_payload(form, "0000000000:0:0")
        await w.api.wait_until(lambda: len(w.api.answered_presses) == 5)
        await w.wait_until_idle()
        tool_results = [
            message["text"] for message in w.daemon.read_messages() if message["role"] == "tool"
        ]
    assert json.loads(tool_results[0]) == {
        "Where to?": "Reef",
        "With what?": "Spade, Rope",
        "How deep?": "as deep as it goes",
    }


@pytest.mark.req("telegram.files")
async def test_files_and_photos_go_both_ways(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "chart.png").write_bytes(b"png")
        (call.cwd / "report.txt").write_bytes(b"sand")
        return "sent"

    async with open_telegram_world(tmp_path, tools={"send_file": send_file}) as w, w.run_gateway():
        w.api.add_file("../notes.txt", b"low water", caption="look at this")
        await w.api.wait_until(lambda: "inbox" in "".join(w.api.texts_in()))
        await w.wait_until_idle()
        w.api.add_photo(b"jpeg")
        await w.api.wait_until(lambda: "photo-u800.jpg" in "".join(w.api.texts_in()))
        await w.wait_until_idle()
        note, photo = await w.list_user_messages()
        assert note.startswith("look at this\n\nFiles:\n- ")
        assert Path(note.partition("- ")[2]).name == "notes.txt"
        assert Path(note.partition("- ")[2]).read_bytes() == b"low water"
        assert Path(photo.partition("- ")[2]).read_bytes() == b"jpeg"

        calls = [("send_file", {"path": path}) for path in ("chart.png", "report.txt")]
        w.api.inject_faults("sendDocument", TelegramFault(429, retry_after=1))
        w.api.add_message(script_tool_calls(calls))
        await w.api.wait_until(lambda: w.api.texts_in()[-1:] == ["done"])
        await w.wait_until_idle()
        files = [message.file for message in w.api.messages if message.file]
        assert sorted(map(str, files)) == sorted(
            map(str, [("photo", "chart.png", b"png"), ("document", "report.txt", b"sand")])
        )


@pytest.mark.req("telegram.webhook")
async def test_the_webhook_delivers_updates_and_telegram_forgets_those_in_the_journal(
    tmp_path: Path,
) -> None:
    async with open_telegram_world(tmp_path) as w:
        extra = {"webhook_url": "https://bot.example/hook", "webhook_listen": "127.0.0.1:0"}
        w.api.inject_faults("setWebhook", TelegramFault(502))
        async with w.run_gateway(extra=extra) as service:
            await w.api.wait_until(lambda: w.api.webhook)
            assert w.api.webhook["url"] == "https://bot.example/hook"
            assert json.loads(w.api.webhook["allowed_updates"]) == ["message", "callback_query"]
            w.api.listener = f"http://127.0.0.1:{service.port}"
            w.api.add_message("hello")
            assert await w.api.deliver_to_webhook("wrong") == 401
            assert await w.api.deliver_to_webhook("") == 401
            assert await w.api.deliver_to_webhook(data=b"{") == 400
            assert await w.api.deliver_to_webhook(data=b"[]") == 400
            assert await w.api.deliver_to_webhook(data=b'{"update_id": "5"}') == 400
            assert (
                await w.api.deliver_to_webhook(data=b'{"update_id": 5, "message": {"date": []}}')
                == 200
            )
            assert b'"LeftOut","id":"5"' in (w.home / "telegram" / "journal").read_bytes()
            update = dict(w.api.pending)
            assert await w.api.deliver_to_webhook() == 200
            assert b"hello" in (w.home / "telegram" / "journal").read_bytes()
            await w.wait_for_texts("heard: hello")
            w.api.pending.update(update)  # as if the answer was lost on the way
            assert await w.api.deliver_to_webhook() == 200
            w.api.add_message("of a bot", "99", is_bot=True)
            assert await w.api.deliver_to_webhook() == 200
            await w.wait_until_idle()
            assert w.api.calls["getUpdates"] == 0
            assert await w.list_user_messages() == ["hello"]
        async with w.run_gateway():
            w.api.add_message("!say polled")
            await w.wait_for_texts("heard: hello", "polled")
            await w.wait_until_idle()
