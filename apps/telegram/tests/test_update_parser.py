"""Updates of the Bot API, parsed for the gateway."""

from typing import Any

import pytest
import telegram

from apps.telegram.tests.bot_api_server import ME, BotApiServer
from crabtalk.gateway import Attachment, Chat, Person, Update
from crabtalk_telegram.update_parser import parse_update

GROUP = {"id": -100500, "type": "supergroup", "title": "Shells"}
BOT = telegram.User.de_json(ME, None)


def parse_message(text: str = "", person: str = "7", **more: Any) -> Update | None:
    api = BotApiServer()
    number = api.add_message(text, person, **more)
    return parse_update(telegram.Update.de_json(api.pending[number], None), BOT)


def parse_group_message(text: str, **more: Any) -> tuple[bool, str]:
    update = parse_message(text, chat=GROUP, **more)
    assert update is not None
    return update.is_to_us, update.text


@pytest.mark.req("telegram.sender")
def test_a_message_of_a_person_is_parsed() -> None:
    update = parse_message("hello @crab_bot")
    assert update is not None
    assert (update.chat, update.person) == (Chat("7"), Person("7", "Ann"))
    assert (update.text, update.is_to_us, update.press) == ("hello @crab_bot", True, "")
    assert update.at > 1_600_000_000


@pytest.mark.req("telegram.groups")
def test_in_groups_only_messages_to_the_bot_are_marked_as_such() -> None:
    assert parse_group_message("just talking") == (False, "just talking")
    assert parse_group_message("@crab_bot hello") == (True, "hello")
    assert parse_group_message("🦀 hi @Crab_Bot, dig") == (True, "🦀 hi , dig")
    assert parse_group_message("@crab_bottom hello") == (False, "@crab_bottom hello")
    assert parse_group_message("@crab_bot @twin hello") == (True, "@twin hello")
    assert parse_group_message("/stop") == (True, "/stop")
    assert parse_group_message("/stop@crab_bot now") == (True, "/stop@crab_bot now")
    assert parse_group_message("/stop@other_bot") == (False, "/stop@other_bot")
    our_message = {"message_id": 1, "date": 1, "chat": GROUP, "from": ME, "text": "x"}
    their_message = {**our_message, "from": {"id": 8, "is_bot": False, "first_name": "Bo"}}
    assert parse_group_message("yes", reply_to_message=our_message) == (True, "yes")
    assert parse_group_message("/stop@other_bot", reply_to_message=our_message) == (
        False,
        "/stop@other_bot",
    )
    assert parse_group_message("yes", reply_to_message=their_message) == (False, "yes")
    named = {"type": "text_mention", "offset": 0, "length": 4, "user": ME}
    assert parse_group_message("Crab, dig", entities=[named]) == (True, "Crab, dig")
    mention = {"type": "mention", "offset": 0, "length": 9}
    caption = {"caption": "@crab_bot look", "caption_entities": [mention]}
    assert parse_group_message("", **caption) == (True, "look")


@pytest.mark.req("telegram.groups")
def test_a_topic_is_a_chat_of_its_own() -> None:
    update = parse_message("hi", chat=GROUP, is_topic_message=True, message_thread_id=12)
    assert update is not None
    assert update.chat == Chat("-100500/12", is_group=True, title="Shells")


@pytest.mark.req("telegram.own")
def test_messages_of_bots_channels_and_the_service_are_ignored() -> None:
    assert parse_message("loop", "4242", is_bot=True) is None
    assert parse_message("news", chat={"id": -1, "type": "channel", "title": "News"}) is None
    assert parse_update(telegram.Update.de_json({"update_id": 1}, None), BOT) is None
    joined = parse_message("", chat=GROUP, new_chat_members=[ME])
    assert joined is not None
    assert (joined.text, joined.attachments) == ("", ())


@pytest.mark.req("telegram.files")
def test_files_of_every_kind_are_named() -> None:
    def file(**more: Any) -> dict[str, Any]:
        return {"file_id": "f", "file_unique_id": "u", **more}

    sizes = [file(width=9, height=9), {**file(width=90, height=90), "file_id": "big"}]
    video = file(width=1, height=1, duration=1)
    expected: list[tuple[dict[str, Any], Attachment]] = [
        ({"photo": sizes}, Attachment("big", "photo-u.jpg", 0, "image/jpeg")),
        (
            {"document": file(file_name="a.txt", mime_type="text/plain", file_size=3)},
            Attachment("f", "a.txt", 3, "text/plain"),
        ),
        ({"voice": file(duration=1)}, Attachment("f", "voice-u.ogg", 0, "audio/ogg")),
        ({"audio": file(duration=1)}, Attachment("f", "audio-u.mp3", 0, "audio/mpeg")),
        ({"video": video}, Attachment("f", "video-u.mp4", 0, "video/mp4")),
        (
            {"video_note": file(length=1, duration=1)},
            Attachment("f", "video-u.mp4", 0, "video/mp4"),
        ),
        (
            {"animation": video, "document": file()},
            Attachment("f", "animation-u.mp4", 0, "video/mp4"),
        ),
    ]
    for document, attachment in expected:
        update = parse_message("", caption="look", **document)
        assert update is not None
        assert (update.text, update.attachments) == ("look", (attachment,))


def test_content_without_text_is_described_in_words() -> None:
    sticker = {"file_id": "s", "file_unique_id": "u", "width": 1, "height": 1, "emoji": "🦀"}
    sticker |= {"is_animated": False, "is_video": False, "type": "regular"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"sticker": sticker}, "🦀"),
        ({"location": {"latitude": 1.5, "longitude": 2.5}}, "Location: 1.5, 2.5"),
        ({"contact": {"phone_number": "+1", "first_name": "Bo"}}, "Contact: Bo, +1"),
    ]
    for fields, text in cases:
        update = parse_message("", **fields)
        assert update is not None
        assert update.text == text
