"""What people in Telegram see, with a daemon behind it."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.telegram.tests.bot_api import Fault
from apps.telegram.tests.world import GROUP, World, world
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.runtime import ToolDispatch
from crabtalk_telegram.service import units
from tests.daemon.served import calling

pytestmark = pytest.mark.one_loop


async def says(w: World, text: str, *answer: str, **more: Any) -> None:
    """Says something new, and waits until that is the last that was answered."""
    w.api.messages.clear()
    w.api.says(text, **more)
    await w.told(*answer)
    await w.idle()


@pytest.mark.req("telegram.sender")
async def test_people_talk_whatever_telegram_does(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        await says(w, "hello", "heard: hello")
        assert await w.heard() == ["hello"]

        # Too fast, asked to wait, and cut off before anything left.
        w.api.fail("sendMessage", Fault(429, retry_after=1))
        await says(w, "!say slow", "slow")

        # Marks that Telegram cannot read.
        cannot = "Bad Request: can't parse entities: Can't find end of Bold entity"
        w.api.fail("sendMessage", Fault(400, cannot))
        sent = w.api.calls["sendMessage"]
        await says(w, "!say **bold**", "bold")
        assert w.api.calls["sendMessage"] == sent + 2

        # A message that is too long after all is cut smaller.
        w.api.fail("sendMessage", Fault(400, "Bad Request: message is too long"))
        words = " ".join(f"w{number}" for number in range(200))
        w.api.messages.clear()
        w.api.says(f"!say {words}")
        await w.api.until(lambda: "w199" in "".join(w.api.texts()))
        await w.idle()
        assert " ".join(w.api.texts()).split() == words.split()

        # The same update twice, and updates below those that were answered.
        w.api.hands_twice = True
        await says(w, "!say once", "once")
        await says(w, "!say later", "later", update=90)
        await says(w, "!say earlier", "earlier", update=80)
        w.api.hands_twice = False
        heard = await w.heard()
        assert [heard.count(f"!say {word}") for word in ("once", "later", "earlier")] == [1, 1, 1]


@pytest.mark.req("telegram.cut")
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_that_may_have_arrived_is_sent_again_and_says_so(
    tmp_path: Path, is_done: bool
) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.fail("sendMessage", Fault(0, is_done=is_done))
        again = f"{SENT_AGAIN}\n\nheard: hello"
        await says(w, "hello", *(["heard: hello", again] if is_done else [again]))
        assert await w.heard() == ["hello"]


@pytest.mark.req("telegram.cut")
async def test_a_change_that_may_have_been_made_is_made_again_without_a_word(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.fail("editMessageText", Fault(0, is_done=True))
        w.api.says("!chunks 12 40")
        await w.idle()
        (text,) = w.api.texts()
        assert len(text.split()) == 12
        assert SENT_AGAIN not in text


@pytest.mark.req("telegram.splitting")
async def test_long_answers_are_cut_as_telegram_counts_also_in_code_and_in_emoji(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w, w.running():

        async def answered(text: str) -> list[str]:
            w.api.messages.clear()
            w.api.says(text)
            await w.idle()
            texts = w.api.texts()
            assert all(units(one) <= 4096 for one in texts)
            return texts

        lines = "\n".join(f"print({number}, '**_`')" for number in range(400))
        first, *_, last = await answered(f"Before.\n\n```python\n{lines}\n```\n\nAfter.")
        assert (first[:14], last[-6:]) == ("heard: Before.", "After.")
        entities = [entity for message in w.api.of("7") for entity in message.entities]
        assert {(entity.kind, entity.more) for entity in entities} == {("pre", "python")}
        assert "\n".join(entity.text for entity in entities) == lines

        family = "👩\u200d👩\u200d👧"
        texts = await answered(family * 1100)
        assert len(texts) == 3
        assert all(not one.removeprefix("heard: ").replace(family, "") for one in texts)

        # An emoji in code at each place around the end of a message, marks of code included.
        for shift in range(4):
            code = "a" * shift + "🦀" * 2100
            texts = await answered(f"Here:\n```\n{code}\n```")
            entities = [one for message in w.api.of("7") for one in message.entities]
            assert 2 <= len(texts) <= 3
            assert "".join(entity.text for entity in entities) == code
            assert {entity.kind for entity in entities} == {"pre"}

        edge = "🦀" * 2044 + "a"
        assert await answered(edge) == [f"heard: {edge}"]
        assert units(f"heard: {edge}") == 4096
        over = await answered(f"{edge}b")
        assert len(over) == 2
        assert "".join(over) == f"heard: {edge}b"


@pytest.mark.req("telegram.splitting")
async def test_an_answer_grows_past_the_end_of_a_message_into_the_next(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.says("!chunks 50 0\n!wait\n!chunks 50 0\n!wait\n!chunks 300 0")
        await w.api.until(lambda: len(" ".join(w.api.texts()).split()) == 50)
        w.daemon.model.release()
        await w.api.until(lambda: len(" ".join(w.api.texts()).split()) == 100)
        w.daemon.model.release()
        await w.idle()
        first, *others = w.api.of("7")
        assert len(others) == 1
        assert len(first.history) > 2, "it grew"
        assert all(units(text) <= 4096 for one in (first, *others) for text in one.history)
        assert units(first.text) > 4000
        assert len(" ".join(w.api.texts()).split()) == 400


@pytest.mark.req("telegram.blocked")
async def test_a_bot_that_is_blocked_in_the_middle_stops_and_is_heard_again_later(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.says("!say So far.\n!chunks 1000 50")
        await w.api.until(lambda: w.api.texts())
        w.api.blocked.add("7")
        await w.daemon.model.until_hung_up()
        await w.idle()
        sent = w.api.calls["sendMessage"]
        w.api.blocked.clear()
        await says(w, "!say again", "again")
        assert w.api.calls["sendMessage"] == sent + 1
        assert await w.heard() == ["!say So far.\n!chunks 1000 50", "!say again"]


@pytest.mark.req("telegram.groups")
async def test_a_group_steers_and_answers_as_one_and_only_who_is_served(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        asked = {
            "questions": [{"question": "Dig?", "header": "Dig", "options": [{"label": "Yes"}]}]
        }
        w.api.says(
            f"@crab_bot go\n!tool ask_user {json.dumps(asked)}\n!then\n!say Dug.", chat=GROUP
        )
        await w.api.until(lambda: w.api.of("-100500") and w.api.of("-100500")[-1].buttons)
        form = w.api.of("-100500")[-1]
        w.api.presses(form, "Yes", "66")  # who is a stranger, and told so
        await w.api.until(lambda: "do not know you" in w.api.texts("-100500")[-1])
        assert form.buttons
        w.api.presses(form, "Yes", "8")
        await w.api.until(lambda: "Dug." in w.api.texts("-100500")[-1])
        await w.idle()
        assert [one["text"] for one in w.daemon.kept() if one["role"] == "tool"] == [
            '{"Dig?": "Yes"}'
        ]


@pytest.mark.req("telegram.groups")
async def test_a_group_hears_what_is_meant_for_it_and_a_blocked_bot_holds_up_nobody(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.blocked.add("8")
        w.api.says("hello", "8", name="Bo")
        w.api.says("not for us", "8", name="Bo", chat=GROUP)
        w.api.says("of a bot", "99", chat=GROUP, is_bot=True)
        number = w.api.says("@crab_bot hello", "7", chat=GROUP)
        await w.told("heard: Ann: hello", chat="-100500")
        assert w.api.of("-100500")[0].reply_to == str(number + 1_000_000)
        w.api.says("/agents@crab_bot", "7", chat=GROUP)
        await w.api.until(lambda: "twin" in w.api.texts("-100500")[-1])
        await w.idle()
        assert await w.heard("tg:group:-100500") == ["Ann: hello"]
        assert not w.api.texts("8")
        w.api.blocked.clear()
        w.api.says("!say again", "8", name="Bo")
        await w.told("again", chat="8")
        await w.idle()


@pytest.mark.req("telegram.stop")
async def test_stop_stops_and_strangers_are_told_how_to_be_let_in(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.says("!say So far.\n!hang")
        await w.told("So far.")
        w.api.says("/stop")
        await w.told("So far.\n\n(stopped)")
        await w.api.until(lambda: "7" in w.api.typing)
        w.api.says("hello", "66", name="Eve")
        await w.api.until(lambda: w.api.texts("66"))
        assert "crabtalk-telegram pair" in w.api.texts("66")[0]
        assert [entity.kind for entity in w.api.of("66")[0].entities] == ["code"]
        await w.idle()
        assert await w.heard("tg:66") == []


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
async def test_questions_are_buttons_and_words_and_the_answers_go_back(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.api.says(f"!tool ask_user {json.dumps(QUESTIONS)}\n!then\n!say Off we go.")
        await w.api.until(lambda: w.api.of("7") and w.api.of("7")[-1].buttons)
        form = w.api.of("7")[-1]
        assert "Where to?" in form.text
        w.api.presses(form, "Reef")
        await w.api.until(lambda: "With what?" in form.text)
        w.api.presses(form, "Spade")
        await w.api.until(lambda: "☑ Spade" in str(form.buttons))
        w.api.presses(form, "Rope")
        await w.api.until(lambda: "☑ Rope" in str(form.buttons))
        w.api.presses(form, "Done")
        await w.api.until(lambda: "How deep?" in form.text)
        w.api.says("as deep as it goes")
        await w.api.until(lambda: w.api.texts()[-1] == "Off we go.")
        await w.idle()
        assert not form.buttons
        assert len(w.api.answered) == 4
        w.api.presses_payload(form, "0000000000:0:0")
        await w.api.until(lambda: len(w.api.answered) == 5)
        await w.idle()
        told = [one["text"] for one in w.daemon.kept() if one["role"] == "tool"]
    assert json.loads(told[0]) == {
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

    async with world(tmp_path, tools={"send_file": send_file}) as w, w.running():
        w.api.sends_file("../notes.txt", b"low water", caption="look at this")
        await w.api.until(lambda: "inbox" in "".join(w.api.texts()))
        await w.idle()
        w.api.sends_photo(b"jpeg")
        await w.api.until(lambda: "photo-u800.jpg" in "".join(w.api.texts()))
        await w.idle()
        note, photo = await w.heard()
        assert note.startswith("look at this\n\nFiles:\n- ")
        assert Path(note.partition("- ")[2]).name == "notes.txt"
        assert Path(note.partition("- ")[2]).read_bytes() == b"low water"
        assert Path(photo.partition("- ")[2]).read_bytes() == b"jpeg"

        calls = [("send_file", {"path": path}) for path in ("chart.png", "report.txt")]
        w.api.fail("sendDocument", Fault(429, retry_after=1))
        w.api.says(calling(calls))
        await w.api.until(lambda: w.api.texts()[-1:] == ["done"])
        await w.idle()
        sent = [message.file for message in w.api.messages if message.file]
        assert sorted(map(str, sent)) == sorted(
            map(str, [("photo", "chart.png", b"png"), ("document", "report.txt", b"sand")])
        )


@pytest.mark.req("telegram.webhook")
async def test_telegram_can_bring_updates_and_forgets_what_is_in_the_journal(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        extra = {"webhook_url": "https://bot.example/hook", "webhook_listen": "127.0.0.1:0"}
        w.api.fail("setWebhook", Fault(502))
        async with w.running(extra=extra) as service:
            await w.api.until(lambda: w.api.webhook)
            assert w.api.webhook["url"] == "https://bot.example/hook"
            assert json.loads(w.api.webhook["allowed_updates"]) == ["message", "callback_query"]
            w.api.listener = f"http://127.0.0.1:{service.port}"
            w.api.says("hello")
            assert await w.api.bring("wrong") == 401
            assert await w.api.bring("") == 401
            assert await w.api.bring(data=b"{") == 400
            assert await w.api.bring(data=b"[]") == 400
            assert await w.api.bring(data=b'{"update_id": "5"}') == 400
            assert await w.api.bring(data=b'{"update_id": 5, "message": {"date": []}}') == 200
            assert b'"LeftOut","id":"5"' in (w.home / "telegram" / "journal").read_bytes()
            update = dict(w.api.waiting)
            assert await w.api.bring() == 200
            assert b"hello" in (w.home / "telegram" / "journal").read_bytes()
            await w.told("heard: hello")
            w.api.waiting.update(update)  # its answer was lost on the way
            assert await w.api.bring() == 200
            w.api.says("of a bot", "99", is_bot=True)
            assert await w.api.bring() == 200
            await w.idle()
            assert w.api.calls["getUpdates"] == 0
            assert await w.heard() == ["hello"]
        async with w.running():
            w.api.says("!say polled")
            await w.told("heard: hello", "polled")
            await w.idle()
