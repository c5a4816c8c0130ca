"""What people in WeChat see, with a daemon behind the gateway."""

import asyncio
import json
from pathlib import Path

import pytest

from apps.wechat.tests.ilink_server import ANN, BO, EVE, QUOTA, WeChatFault
from apps.wechat.tests.wechat_world import WeChatWorld, open_wechat_world
from crabtalk.gateway.streamed_reply import SENT_AGAIN_MARK
from crabtalk.runtime import ToolDispatch
from tests.daemon.in_process_daemon import script_tool_calls

pytestmark = pytest.mark.one_loop


async def say_and_wait(w: WeChatWorld, text: str, *answer: str, person: str = ANN) -> None:
    """Send a new message, and wait until its answer is the last one."""
    w.api.messages.clear()
    w.api.add_message(text, person)
    await w.wait_for_texts(*answer, person=person)
    await w.wait_until_idle()


@pytest.mark.req("wechat.sender")
async def test_people_get_answers_despite_faults_of_wechat(tmp_path: Path) -> None:
    async with open_wechat_world(tmp_path) as w, w.run_gateway():
        await say_and_wait(w, "hello", "heard: hello")
        await say_and_wait(w, "hello", "heard: hello", person=BO)
        assert (await w.list_user_messages(), await w.list_user_messages(BO)) == (
            ["hello"],
            ["hello"],
        )
        assert set(w.api.typing) <= {ANN, BO}

        w.api.inject_faults("sendmessage", WeChatFault(429, retry_after="1"))
        await say_and_wait(w, "!say slow", "slow")

        # Each message twice, and an old cursor once more.
        w.api.redelivers = True
        await say_and_wait(w, "!say once", "once")
        await say_and_wait(w, "!say twice", "twice")
        w.api.redelivers = False
        w.api.inject_faults("getupdates", WeChatFault(0, is_done=True))
        await say_and_wait(w, "!say again", "again")
        received = await w.list_user_messages()
        assert [received.count(f"!say {word}") for word in ("once", "twice", "again")] == [1, 1, 1]


@pytest.mark.req("wechat.cut")
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_that_may_have_arrived_is_sent_again_with_a_mark(
    tmp_path: Path, is_done: bool
) -> None:
    async with open_wechat_world(tmp_path) as w, w.run_gateway():
        w.api.inject_faults("sendmessage", WeChatFault(0, is_done=is_done))
        repeat = f"{SENT_AGAIN_MARK}\n\nheard: hello"
        await say_and_wait(w, "hello", *(["heard: hello", repeat] if is_done else [repeat]))
        assert await w.list_user_messages() == ["hello"]


@pytest.mark.req("wechat.splitting")
async def test_long_answers_are_split_and_have_no_markdown(tmp_path: Path) -> None:
    async with open_wechat_world(tmp_path) as w, w.run_gateway():
        lines = [f"print({number}, '**_')" for number in range(400)]
        code = "\n".join(lines)
        w.api.add_message(f"Before.\n\n```python\n{code}\n```\n\n**After.**")
        await w.api.wait_until(lambda: "After." in "".join(w.api.texts_to()))
        await w.wait_until_idle()
        texts = w.api.texts_to()
        assert len(texts) > 1
        assert all(len(text.encode("utf-16-le")) <= 8000 for text in texts)
        sent_lines = "\n".join(texts).split("\n")
        assert [line for line in sent_lines if line] == ["heard: Before.", *lines, "After."]

        family = "👩\u200d👩\u200d👧"
        w.api.messages.clear()
        w.api.add_message(family * 1100)
        await w.api.wait_until(lambda: "".join(w.api.texts_to()).count(family) == 1100)
        await w.wait_until_idle()
        assert all(
            not text.removeprefix("heard: ").replace(family, "") for text in w.api.texts_to()
        )


@pytest.mark.req("wechat.no_edits")
async def test_an_answer_is_one_message_at_the_end_without_tool_calls(tmp_path: Path) -> None:
    digging = asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        digging.set()
        return "sand"

    async with open_wechat_world(tmp_path, tools={"dig": dig}) as w, w.run_gateway():
        steps = "!say I dig.\n!tool dig {}\n!then\n!say Deeper.\n!tool dig {}\n!then\n!say Found."
        await say_and_wait(w, steps, "I dig.\n\nDeeper.\n\nFound.")
        await w.api.wait_until(lambda: ANN in w.api.typing)
        await say_and_wait(w, "!tool dig {}\n!then\n!say Found.", "Found.")
        w.api.messages.clear()
        digging.clear()
        w.api.add_message("!say So far.\n!tool dig {}\n!then\n!hang")
        await digging.wait()
        w.api.add_message("/stop")
        await w.wait_for_texts("So far.\n\n(stopped)")
        await w.wait_until_idle()


@pytest.mark.req("wechat.allow_list")
async def test_strangers_are_told_how_to_get_access(tmp_path: Path) -> None:
    async with open_wechat_world(tmp_path) as w, w.run_gateway():
        w.api.add_message("hello", EVE)
        await w.api.wait_until(lambda: w.api.texts_to(EVE))
        assert "crabtalk-wechat pair" in w.api.texts_to(EVE)[0]
        assert f'"{EVE}"' in w.api.texts_to(EVE)[0]
        await w.wait_until_idle()
        assert await w.list_user_messages(EVE) == []


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
    async with open_wechat_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.api.add_message(f"!tool ask_user {json.dumps(QUESTIONS)}\n!then\n!say Off we go.")
        await w.api.wait_until(lambda: "Where to?" in "".join(w.api.texts_to()[-1:]))
        assert "2. Reef: Rock." in w.api.texts_to()[-1]
        quote = {"title": "crab", "message_item": {"text_item": {"text": w.api.texts_to()[-1]}}}
        item = {"type": 1, "text_item": {"text": "2"}, "ref_msg": quote}
        w.api.add_message(item_list=[item])
        await w.api.wait_until(lambda: "With what?" in w.api.texts_to()[-1])
        w.api.add_message("1，3")
        await w.api.wait_until(lambda: "How deep?" in w.api.texts_to()[-1])
        w.api.add_message("as deep as it goes")
        await w.api.wait_until(lambda: w.api.texts_to()[-1] == "Off we go.")
        await w.wait_until_idle()
        tool_results = [
            message["text"] for message in w.daemon.read_messages() if message["role"] == "tool"
        ]
    assert json.loads(tool_results[0]) == {
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

    async with open_wechat_world(tmp_path, tools={"send_file": send_file}) as w, w.run_gateway():
        w.api.inject_faults("download", WeChatFault(502))
        w.api.add_file(4, b"low water", text="look at this", file_name="../notes.txt", len="9")
        await w.api.wait_until(lambda: "inbox" in "".join(w.api.texts_to()))
        w.api.add_file(2, b"jpeg")
        await w.api.wait_until(lambda: "photo-1.jpg" in "".join(w.api.texts_to()))
        await w.wait_until_idle()
        note, photo = await w.list_user_messages()
        assert note.startswith("look at this\n\nFiles:\n- ")
        assert Path(note.partition("- ")[2]).name == "notes.txt"
        assert Path(note.partition("- ")[2]).read_bytes() == b"low water"
        assert Path(photo.partition("- ")[2]).read_bytes() == b"jpeg"

        calls = [("send_file", {"path": path}) for path in ("chart.png", "report.txt")]
        w.api.inject_faults("upload", WeChatFault(0))
        w.api.add_message(script_tool_calls(calls))
        await w.api.wait_until(lambda: w.api.texts_to()[-1:] == ["done"])
        await w.wait_until_idle()
        files = [message.file for message in w.api.messages if message.file]
        assert sorted(map(str, files)) == sorted(
            map(str, [(2, "", b"png"), (4, "report.txt", b"sand")])
        )


@pytest.mark.req("wechat.expiry")
async def test_messages_that_waited_for_a_new_login_are_answered_once(tmp_path: Path) -> None:
    async with open_wechat_world(tmp_path) as w:
        async with w.run_gateway():
            await say_and_wait(w, "hello", "heard: hello")
        w.api.add_message("!say later")
        async with w.run_gateway():
            await w.wait_for_texts("heard: hello", "later")
            w.api.messages.clear()
            w.api.inject_faults("sendmessage", WeChatFault(200, -14, "session timeout"))
            await say_and_wait(w, "!say back", "back")
            assert (await w.list_user_messages()).count("!say back") == 1


@pytest.mark.req("wechat.context.spent")
async def test_an_answer_beyond_wechats_limit_continues_when_its_person_writes(
    tmp_path: Path,
) -> None:
    async with open_wechat_world(tmp_path) as w, w.run_gateway():
        words = [f"w{number}" for number in range(7000)]
        w.api.add_message(" ".join(words))
        await w.api.wait_until(lambda: len(w.api.messages) == QUOTA)
        await w.api.wait_until(lambda: w.api.calls["sendmessage"] > QUOTA)
        w.api.add_message("!say more")
        await w.api.wait_until(lambda: w.api.texts_to()[-1] == "more")
        await w.wait_until_idle()
        *texts, _ = w.api.texts_to()
        assert len(texts) > QUOTA
        assert " ".join(texts).split() == ["heard:", *words]
        assert SENT_AGAIN_MARK not in "".join(texts)
