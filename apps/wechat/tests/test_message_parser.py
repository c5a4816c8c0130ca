"""Messages of iLink, parsed for the gateway; and markdown rendered for WeChat."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_wechat.message_parser import parse_message
from crabtalk_wechat.plain_text import render_plain

ANN = "ann@im.wechat"


def make_message(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"message_type": 1, "from_user_id": ANN, "message_id": 7, "item_list": list(items)}
    return {**message, **more}


def make_text_item(text: str, **more: Any) -> dict[str, Any]:
    return {"type": 1, "text_item": {"text": text}, **more}


@pytest.mark.req("wechat.reading")
def test_a_text_is_parsed_with_its_author_and_time() -> None:
    update = parse_message(
        make_message(
            make_text_item("dig"), make_text_item("here"), create_time_ms=1_700_000_000_500
        )
    )
    assert update is not None
    assert (update.id, update.text, update.at) == ("7", "dig\nhere", 1_700_000_000.5)
    assert (update.chat.id, update.person.id, update.chat.is_group) == (ANN, ANN, False)
    assert parse_message(make_message(make_text_item("ours"), message_type=2)) is None
    assert parse_message(make_message(make_text_item("of a group"), group_id="g")) is None
    assert parse_message(make_message(make_text_item("no sender"), from_user_id="")) is None


@pytest.mark.req("wechat.reading")
def test_messages_without_an_id_get_different_ids() -> None:
    messages = [
        make_message(make_text_item("a"), message_id=0, client_id="c1"),
        make_message(make_text_item("a"), message_id=0, client_id="c2"),
        make_message(make_text_item("a"), message_id=0, create_time_ms=1),
        make_message(make_text_item("a"), message_id=0, create_time_ms=2),
        make_message(make_text_item("b"), message_id=0, create_time_ms=2),
    ]
    first, second = [
        [update.id for update in map(parse_message, messages) if update is not None]
        for _ in range(2)
    ]
    assert len(set(first)) == 5
    assert first == second


@pytest.mark.req("wechat.reading")
@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("how deep?", "> dig\n> here\n\nhow deep?"),
        ("/stop", "/stop"),
        ("2", "2"),
        ("1, 3", "1, 3"),
    ],
)
def test_a_quote_is_put_before_text_but_not_before_commands_and_numbers(
    text: str, read_as: str
) -> None:
    quote = {"title": "crab", "message_item": make_text_item("dig\nhere")}
    update = parse_message(make_message(make_text_item(text, ref_msg=quote)))
    assert update is not None
    assert update.text == read_as


@pytest.mark.req("wechat.reading")
def test_a_voice_message_is_its_transcript_or_else_a_file() -> None:
    media = {"encrypt_query_param": "w", "aes_key": "k"}
    update = parse_message(make_message({"type": 3, "voice_item": {"media": media, "text": "dig"}}))
    assert update is not None
    assert (update.text, update.attachments) == ("dig", ())
    update = parse_message(make_message({"type": 3, "voice_item": {"media": media}}))
    assert update is not None
    (voice,) = update.attachments
    assert (voice.name, json.loads(voice.id)) == ("voice-1.silk", ["w", "k"])
    video = {"type": 5, "video_item": {"media": media}}
    update = parse_message(
        make_message(make_text_item("look"), video, {"type": 2, "image_item": {}})
    )
    assert update is not None
    assert [attachment.name for attachment in update.attachments] == ["video-2.mp4"]


KEYS = "type text_item text image_item file_item voice_item media len encrypt_query_param ref_msg"
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYS.split(), "message_item", "title"]), inside, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.req("wechat.reading")
@given(anything, anything, anything)
def test_any_message_is_parsed_or_left_out(items: Any, at: Any, number: Any) -> None:
    update = parse_message(make_message(item_list=items, create_time_ms=at, message_id=number))
    assert update is not None
    assert update.id


# ── Rendering for WeChat ───────────────────────────────────────────────────────────────────────


@pytest.mark.req("wechat.plain")
@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("# Tide #\n\nIt is **low** at *three*.", "Tide\n\nIt is low at three."),
        ("```python\na = '**b**'\n# c\n```\nafter", "a = '**b**'\n# c\nafter"),
        ("~~~\n```\n~~~", "```"),
        ("`**a**` and ``b ` c``", "**a** and b ` c"),
        ("[map](https://a.example/x) <b>", "map (https://a.example/x) <b>"),
        ("![map](https://a.example/x.png)", "map (https://a.example/x.png)"),
        ("[https://a.example](https://a.example)", "https://a.example"),
        ("~~no~~ 2 * 3 * 4 and a*b*c, snake_case_name", "no 2 * 3 * 4 and a*b*c, snake_case_name"),
        ("- **one**: two\n- three", "- one: two\n- three"),
        ("| a | b |\n|---|---|", "| a | b |\n|---|---|"),
        ("```\n```", "```\n```"),
    ],
)
def test_markdown_marks_are_removed_and_the_text_stays(text: str, rendered: str) -> None:
    assert render_plain(text) == rendered


@pytest.mark.req("wechat.plain")
@given(st.text(alphabet="ab *_`~#[]()\n!1", max_size=80))
def test_plain_text_is_never_longer_than_its_markdown_nor_empty(text: str) -> None:
    rendered = render_plain(text)
    assert len(rendered) <= len(text)
    assert rendered or not text
    letters = [character for character in text if character in "ab1"]
    if "```" not in text and "~~~" not in text:
        assert [item for item in rendered if item in "ab1"] == letters or "](" in text
