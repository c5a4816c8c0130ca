"""What people in WeChat see, with a daemon behind it."""

import asyncio
import json
from pathlib import Path

import pytest

from apps.wechat.tests.ilink_api import ANN, BO, EVE, QUOTA, Fault
from apps.wechat.tests.world import World, world
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.runtime import ToolDispatch
from tests.daemon.served import calling

pytestmark = pytest.mark.one_loop


async def says(w: World, text: str, *answer: str, person: str = ANN) -> None:
    """Says something new, and waits until that is the last that was answered."""
    w.api.messages.clear()
    w.api.says(text, person)
    await w.told(*answer, person=person)
    await w.idle()


@pytest.mark.req("wechat.sender")
async def test_people_talk_whatever_wechat_does(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        await says(w, "hello", "heard: hello")
        await says(w, "hello", "heard: hello", person=BO)
        assert (await w.heard(), await w.heard(BO)) == (["hello"], ["hello"])
        assert set(w.api.typing) <= {ANN, BO}

        w.api.fail("sendmessage", Fault(429, retry_after="1"))
        await says(w, "!say slow", "slow")

        # Each message twice, and the cursor of before once more.
        w.api.hands_twice = True
        await says(w, "!say once", "once")
        await says(w, "!say twice", "twice")
        w.api.hands_twice = False
        w.api.fail("getupdates", Fault(0, is_done=True))
        await says(w, "!say again", "again")
        heard = await w.heard()
        assert [heard.count(f"!say {word}") for word in ("once", "twice", "again")] == [1, 1, 1]


@pytest.mark.req("wechat.cut")
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_that_may_have_arrived_is_sent_again_and_says_so(
    tmp_path: Path, is_done: bool
) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.fail("sendmessage", Fault(0, is_done=is_done))
        again = f"{SENT_AGAIN}\n\nheard: hello"
        await says(w, "hello", *(["heard: hello", again] if is_done else [again]))
        assert await w.heard() == ["hello"]


@pytest.mark.req("wechat.splitting")
async def test_long_answers_are_cut_and_have_no_marks(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        lines = [f"print({number}, '**_')" for number in range(400)]
        code = "\n".join(lines)
        w.api.says(f"Before.\n\n```python\n{code}\n```\n\n**After.**")
        await w.api.until(lambda: "After." in "".join(w.api.texts()))
        await w.idle()
        texts = w.api.texts()
        assert len(texts) > 1
        assert all(len(one.encode("utf-16-le")) <= 8000 for one in texts)
        shown = "\n".join(texts).split("\n")
        assert [line for line in shown if line] == ["heard: Before.", *lines, "After."]

        family = "👩\u200d👩\u200d👧"
        w.api.messages.clear()
        w.api.says(family * 1100)
        await w.api.until(lambda: "".join(w.api.texts()).count(family) == 1100)
        await w.idle()
        assert all(not one.removeprefix("heard: ").replace(family, "") for one in w.api.texts())


@pytest.mark.req("wechat.no_edits")
async def test_an_answer_is_one_message_at_its_end_without_a_word_of_tools(tmp_path: Path) -> None:
    digging = asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        digging.set()
        return "sand"

    async with world(tmp_path, tools={"dig": dig}) as w, w.running():
        steps = "!say I dig.\n!tool dig {}\n!then\n!say Deeper.\n!tool dig {}\n!then\n!say Found."
        await says(w, steps, "I dig.\n\nDeeper.\n\nFound.")
        await w.api.until(lambda: ANN in w.api.typing)
        await says(w, "!tool dig {}\n!then\n!say Found.", "Found.")
        w.api.messages.clear()
        digging.clear()
        w.api.says("!say So far.\n!tool dig {}\n!then\n!hang")
        await digging.wait()
        w.api.says("/stop")
        await w.told("So far.\n\n(stopped)")
        await w.idle()


@pytest.mark.req("wechat.allow_list")
async def test_strangers_are_told_how_to_be_let_in(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.api.says("hello", EVE)
        await w.api.until(lambda: w.api.texts(EVE))
        assert "crabtalk-wechat pair" in w.api.texts(EVE)[0]
        assert f'"{EVE}"' in w.api.texts(EVE)[0]
        await w.idle()
        assert await w.heard(EVE) == []


QUESTIONS = {
    "questions": [
        {
            "question": "Where to?",
            "header": "Place",
            "options": [{"label": "Beach"}, {"label": "Reef", "description": "Rock."}],
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


@pytest.mark.req("wechat.questions")
async def test_questions_are_answered_by_numbers_and_by_words(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.api.says(f"!tool ask_user {json.dumps(QUESTIONS)}\n!then\n!say Off we go.")
        await w.api.until(lambda: "Where to?" in "".join(w.api.texts()[-1:]))
        assert "2. Reef: Rock." in w.api.texts()[-1]
        quote = {"title": "crab", "message_item": {"text_item": {"text": w.api.texts()[-1]}}}
        item = {"type": 1, "text_item": {"text": "2"}, "ref_msg": quote}
        w.api.says(item_list=[item])
        await w.api.until(lambda: "With what?" in w.api.texts()[-1])
        w.api.says("1，3")
        await w.api.until(lambda: "How deep?" in w.api.texts()[-1])
        w.api.says("as deep as it goes")
        await w.api.until(lambda: w.api.texts()[-1] == "Off we go.")
        await w.idle()
        told = [one["text"] for one in w.daemon.kept() if one["role"] == "tool"]
    assert json.loads(told[0]) == {
        "Where to?": "Reef",
        "With what?": "Spade, Rope",
        "How deep?": "as deep as it goes",
    }


@pytest.mark.req("wechat.files")
async def test_files_and_pictures_go_both_ways(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "chart.png").write_bytes(b"png")
        (call.cwd / "report.txt").write_bytes(b"sand")
        return "sent"

    async with world(tmp_path, tools={"send_file": send_file}) as w, w.running():
        w.api.fail("download", Fault(502))
        w.api.sends(4, b"low water", text="look at this", file_name="../notes.txt", len="9")
        await w.api.until(lambda: "inbox" in "".join(w.api.texts()))
        w.api.sends(2, b"jpeg")
        await w.api.until(lambda: "photo-1.jpg" in "".join(w.api.texts()))
        await w.idle()
        note, photo = await w.heard()
        assert note.startswith("look at this\n\nFiles:\n- ")
        assert Path(note.partition("- ")[2]).name == "notes.txt"
        assert Path(note.partition("- ")[2]).read_bytes() == b"low water"
        assert Path(photo.partition("- ")[2]).read_bytes() == b"jpeg"

        calls = [("send_file", {"path": path}) for path in ("chart.png", "report.txt")]
        w.api.fail("upload", Fault(0))
        w.api.says(calling(calls))
        await w.api.until(lambda: w.api.texts()[-1:] == ["done"])
        await w.idle()
        sent = [message.file for message in w.api.messages if message.file]
        assert sorted(map(str, sent)) == sorted(
            map(str, [(2, "", b"png"), (4, "report.txt", b"sand")])
        )


@pytest.mark.req("wechat.expiry")
async def test_what_waited_for_a_new_login_is_answered_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.running():
            await says(w, "hello", "heard: hello")
        w.api.says("!say later")
        async with w.running():
            await w.told("heard: hello", "later")
            w.api.messages.clear()
            w.api.fail("sendmessage", Fault(200, -14, "session timeout"))
            await says(w, "!say back", "back")
            assert (await w.heard()).count("!say back") == 1


@pytest.mark.req("wechat.context.spent")
async def test_an_answer_that_is_too_much_for_wechat_goes_on_when_its_person_writes(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w, w.running():
        words = [f"w{number}" for number in range(7000)]
        w.api.says(" ".join(words))
        await w.api.until(lambda: len(w.api.messages) == QUOTA)
        await w.api.until(lambda: w.api.calls["sendmessage"] > QUOTA)
        w.api.says("!say more")
        await w.api.until(lambda: w.api.texts()[-1] == "more")
        await w.idle()
        *texts, _ = w.api.texts()
        assert len(texts) > QUOTA
        assert " ".join(texts).split() == ["heard:", *words]
        assert SENT_AGAIN not in "".join(texts)
