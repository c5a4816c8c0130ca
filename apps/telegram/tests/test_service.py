"""The service, by itself, against a server that speaks the Bot API."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from apps.telegram.tests.bot_api import PATIENCE, BotApi, Fault, bot_api
from crabtalk.component.gateway import (
    Attachment,
    Away,
    Blocked,
    Button,
    Chat,
    GatewayError,
    Refused,
    ServiceError,
    Settings,
    TooLong,
    TryLater,
)
from crabtalk_telegram.cli import EXTRA
from crabtalk_telegram.opening import open_telegram, who_am_i
from crabtalk_telegram.service import Telegram, keyboard, units
from crabtalk_telegram.webhook import MOST_WAITING
from tests.daemon.served import within

pytestmark = pytest.mark.one_loop

ANN, GROUP = Chat("7"), Chat("-100500", is_group=True)


def settings_of(api: BotApi, **extra: str) -> Settings:
    return Settings(token=api.token, base_url=api.url, extra={**EXTRA, **extra})


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[BotApi, Telegram]]:
    async with bot_api() as api, open_telegram(settings_of(api)) as service:
        yield api, service


async def test_a_message_has_its_marks_its_buttons_and_what_it_answers() -> None:
    async with opened() as (api, service):
        buttons = [Button("Yes", "a:0:0"), Button("No", "a:0:1"), Button("x" * 30, "a:0:2")]
        number = await service.send(ANN, "**Dig?** (1.5 m)", buttons=buttons, reply_to="12")
        (message,) = api.messages
        assert (message.id, message.text, message.reply_to) == (number, "Dig? (1.5 m)", "12")
        assert [entity.kind for entity in message.entities] == ["bold"]
        assert [[one["text"] for one in row] for row in message.buttons] == [
            ["Yes", "No"],
            ["x" * 30],
        ]
        await service.edit(ANN, number, "Dug.")
        assert (message.text, message.buttons) == ("Dug.", [])
        await service.typing(ANN)
        assert api.typing == ["7"]
    assert keyboard(()) is None


@pytest.mark.req("telegram.measure")
async def test_a_message_is_measured_as_telegram_counts() -> None:
    async with opened() as (api, service):
        longest = "🦀" * 2048
        assert service.measure(longest) == service.limits.text == 4096
        await service.send(ANN, longest)
        await service.send(ANN, "**" + "x" * 4096 + "**")
        with pytest.raises(TooLong):
            await service.send(ANN, f"{longest}a")
        with pytest.raises(TooLong):
            await service.edit(ANN, api.messages[0].id, f"{longest}a")
        table = "|a|b|\n|-|-|\n" + f"|x|{'y' * 40}|\n" * 20
        await service.send(ANN, table)
        assert units(api.messages[-1].text) <= service.measure(table)


@pytest.mark.req("telegram.plain")
async def test_what_telegram_cannot_parse_is_sent_as_bare_text() -> None:
    async with opened() as (api, service):
        cannot = Fault(400, "Bad Request: can't parse entities: Can't find end of Bold entity")
        api.fail("sendMessage", cannot)
        number = await service.send(ANN, "**a** `b`")
        (message,) = api.messages
        assert (message.raw, message.entities) == ("a b", [])
        api.fail("editMessageText", cannot)
        await service.edit(ANN, number, "**c**")
        assert (message.raw, message.entities) == ("c", [])
        await service.send(ANN, "```\n```")
        assert api.messages[-1].text == "```\n```"


@pytest.mark.req("telegram.edit.unchanged")
async def test_that_nothing_changed_is_no_error() -> None:
    async with opened() as (api, service):
        number = await service.send(ANN, "same")
        await service.edit(ANN, number, "same")
        assert api.calls["editMessageText"] == 1
        with pytest.raises(Refused, match="not found"):
            await service.edit(ANN, "99", "same")


@pytest.mark.req("telegram.errors")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(429, "Too Many Requests: retry after 3", retry_after=3), TryLater),
        (Fault(401, "Unauthorized"), TryLater),
        (Fault(403, "Forbidden: bot was kicked from the group chat"), Blocked),
        (Fault(400, "Bad Request: chat not found"), Blocked),
        (Fault(400, "Bad Request: not enough rights to send text messages"), Blocked),
        (Fault(400, "Bad Request: not enough rights to send photos to the chat"), Refused),
        (Fault(400, "Bad Request: message is too long"), TooLong),
        (Fault(400, "Bad Request: BUTTON_DATA_INVALID"), Refused),
        (Fault(413, "Request Entity Too Large"), Refused),
        (Fault(500, "Internal Server Error"), Away),
        (Fault(502, page=True), Away),
        (Fault(200, page=True), Away),
        (Fault(403, page=True), Away),
        (Fault(0), Away),
        (Fault(0, is_done=True), Away),
    ],
)
async def test_what_went_wrong_is_said_as_it_is(fault: Fault, kind: type[ServiceError]) -> None:
    async with opened() as (api, service):
        api.fail("sendMessage", fault)
        with pytest.raises(kind) as caught:
            await service.send(ANN, "hello")
        if fault.retry_after:
            assert isinstance(caught.value, TryLater)
            assert caught.value.seconds == 3
        assert len(api.messages) == fault.is_done


@pytest.mark.req("telegram.errors")
async def test_nobody_there_means_that_nothing_was_sent() -> None:
    async with bot_api() as api:
        settings = settings_of(api)
    async with open_telegram(settings) as service:
        with pytest.raises(TryLater):
            await service.send(ANN, "hello")


async def test_a_group_that_has_another_id_now_is_found_there() -> None:
    async with opened() as (api, service):
        api.fail("sendMessage", Fault(400, "Bad Request: group chat was upgraded", moved_to=-42))
        await service.send(GROUP, "one")
        await service.send(GROUP, "two")
        assert api.texts("-42") == ["one", "two"]
        assert api.calls["sendMessage"] == 3


async def test_a_topic_of_a_forum_is_written_to() -> None:
    async with opened() as (api, service):
        await service.send(Chat("-100500/12", is_group=True), "here")
        assert [(one.chat, one.topic) for one in api.messages] == [("-100500", "12")]


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("telegram.files")
async def test_files_are_fetched_whole_or_not_at_all(tmp_path: Path) -> None:
    async with opened() as (api, service):
        api.files["f1"] = b"sand" * 50_000
        await service.fetch(Attachment("f1", "a.bin", 0, ""), tmp_path / "a.bin")
        assert (tmp_path / "a.bin").read_bytes() == b"sand" * 50_000
        with pytest.raises(Refused):
            await service.fetch(Attachment("f2", "b.bin", 0, ""), tmp_path / "b.bin")
        for status, kind in ((404, Refused), (502, Away)):
            api.fail("file", Fault(status))
            with pytest.raises(kind):
                await service.fetch(Attachment("f1", "c.bin", 0, ""), tmp_path / "c.bin")
        assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.req("telegram.files")
async def test_pictures_are_sent_as_such_and_others_as_files(tmp_path: Path) -> None:
    for name in ("a.png", "b.txt"):
        (tmp_path / name).write_bytes(name.encode())
    async with opened() as (api, service):
        await service.upload(ANN, tmp_path / "a.png", "look")
        await service.upload(ANN, tmp_path / "b.txt", "")
        api.fail("sendPhoto", Fault(400, "Bad Request: PHOTO_INVALID_DIMENSIONS"))
        await service.upload(ANN, tmp_path / "a.png", "")
        api.blocked.add("7")
        with pytest.raises(Blocked):
            await service.upload(ANN, tmp_path / "a.png", "")
        with pytest.raises(TooLong):
            await service.upload(ANN, tmp_path / "b.txt", "x" * 1025)
    assert [(one.file, one.text) for one in api.messages] == [
        (("photo", "a.png", b"a.png"), "look"),
        (("document", "b.txt", b"b.txt"), ""),
        (("document", "a.png", b"a.png"), ""),
    ]


# ── What comes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("telegram.polling")
async def test_an_update_is_confirmed_when_it_was_taken_and_not_before() -> None:
    async with opened() as (api, service), aclosing(service.updates()) as updates:
        first, second = api.says("one"), api.says("two")
        api.says("of a bot", "99", is_bot=True)
        one, two = await within(anext(updates)), await within(anext(updates))
        assert [one.id, two.id] == [str(first), str(second)]
        assert len(api.waiting) == 3, "a crash now loses nothing"
        await service.taken(one)
        await service.taken(two)
        api.says("three")
        three = await within(anext(updates))
        assert three.text == "three"
        assert list(api.waiting) == [int(three.id)]
        await service.taken(three)
        coming = asyncio.ensure_future(anext(updates))
        await api.until(lambda: not api.waiting)
        api.says("below them all", update=5)
        assert (await within(coming)).text == "below them all"


@pytest.mark.req("telegram.polling")
async def test_polling_goes_on_after_whatever_happens() -> None:
    async with opened() as (api, service):
        api.webhook = {"url": "https://old.example"}
        api.fail("getMe", Fault(502, page=True))
        api.fail("deleteWebhook", Fault(0))
        api.fail("getUpdates", Fault(0), Fault(500), Fault(409, "Conflict"))
        api.says("hello")
        async with aclosing(service.updates()) as updates:
            assert (await within(anext(updates))).text == "hello"
            assert not api.webhook
        await api.until(lambda: "stop" in api.offered)


def broken(api: BotApi, what: str) -> int:
    """An update that the library cannot read."""
    number = api.says("half of it")
    message = api.waiting[number]["message"]
    match what:
        case "chat":
            del message["chat"]
        case "date":
            message["date"] = "yesterday"
        case "person":
            message["from"] = {"id": 7}
        case "message":
            api.waiting[number]["message"] = ["hello"]
    return number


@pytest.mark.req("telegram.unread")
@pytest.mark.parametrize("what", ["chat", "date", "person", "message"])
async def test_an_update_that_cannot_be_read_holds_up_no_other(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (api, service), aclosing(service.updates()) as updates:
        first, odd, last = api.says("first"), broken(api, what), api.says("last")
        found = [await within(anext(updates)) for _ in range(3)]
        assert [one.id for one in found] == [str(first), str(odd), str(last)]
        assert [one.text for one in found] == ["first", "", "last"]
        assert json.loads(found[1].unread) == api.waiting[odd]
        for one in found:
            await service.taken(one)
        coming = asyncio.ensure_future(anext(updates))
        await api.until(lambda: not api.waiting)
        api.says("even")
        assert (await within(coming)).text == "even"
    assert f"update {odd} makes no sense" in caplog.text
    assert "half of it" not in caplog.text, "what people write is in no log"


@pytest.mark.req("telegram.unread")
async def test_what_has_no_number_is_left_out_and_not_asked_for_in_a_rush() -> None:
    async with opened() as (api, service), aclosing(service.updates()) as updates:
        odd = api.says("of no number")
        del api.waiting[odd]["update_id"]
        coming = asyncio.ensure_future(anext(updates))
        await api.until(lambda: api.calls["getUpdates"] == 2)
        api.says("even")
        assert (await within(coming)).text == "even"
        assert api.calls["getUpdates"] <= 4


@pytest.mark.req("telegram.order")
async def test_updates_that_come_together_are_in_the_order_of_their_numbers() -> None:
    async with opened() as (api, service), aclosing(service.updates()) as updates:
        for number in (703, 701, 702):
            api.says(f"{number}", update=number)
        found = [await within(anext(updates)) for _ in range(3)]
        assert [one.text for one in found] == ["701", "702", "703"]


@pytest.mark.req("telegram.webhook")
async def test_telegram_keeps_what_there_is_no_room_for() -> None:
    more = {"webhook_url": "https://bot.example", "webhook_listen": "127.0.0.1:0"}
    async with (
        bot_api() as api,
        open_telegram(settings_of(api, **more)) as service,
        aclosing(service.updates()) as updates,
    ):
        coming = asyncio.ensure_future(anext(updates))
        await api.until(lambda: api.webhook)
        api.listener = f"http://127.0.0.1:{service.port}"
        numbers = [api.says(f"{number}") for number in range(MOST_WAITING + 3)]
        waiting = [json.dumps(api.waiting.pop(number)).encode() for number in numbers]
        first = asyncio.ensure_future(api.bring(data=waiting[0]))
        update = await within(coming)
        others = {asyncio.ensure_future(api.bring(data=one)) for one in waiting[1:]}
        done: set[asyncio.Future[int]] = set()
        async with asyncio.timeout(PATIENCE):
            while len(done) < 2:
                done = {one for one in others if one.done()}
                await asyncio.sleep(0.01)
        assert {one.result() for one in done} == {503}
        assert not first.done()
        await service.taken(update)
        assert await within(first) == 200
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.req("telegram.token")
async def test_a_token_that_telegram_does_not_know_ends_it() -> None:
    async with bot_api() as api:
        wrong = replace(settings_of(api), token="1:no")
        async with open_telegram(wrong) as service:
            with pytest.raises(Refused, match="crabtalk-telegram setup"):
                await within(anext(service.updates()))
        with pytest.raises(Refused, match="crabtalk-telegram setup"):
            await who_am_i(wrong)
        assert await who_am_i(settings_of(api)) == "@crab_bot"


@pytest.mark.req("telegram.buttons")
async def test_a_press_is_answered_when_it_was_taken() -> None:
    async with opened() as (api, service), aclosing(service.updates()) as updates:
        await service.send(ANN, "Dig?", buttons=[Button("Yes", "a:0:0")])
        api.presses(api.messages[0], "Yes")
        update = await within(anext(updates))
        assert (update.press, update.message_id) == ("a:0:0", api.messages[0].id)
        assert not api.answered
        await service.taken(update)
        await api.until(lambda: api.answered == [f"q{update.id}"])


@pytest.mark.req("telegram.token.secret")
async def test_the_token_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with opened() as (api, service):
            api.fail("sendMessage", Fault(0))
            with pytest.raises(Away) as caught:
                await service.send(ANN, "hello")
            await service.send(ANN, "hello")
    assert api.token not in caplog.text
    assert api.token not in str(caught.value)
    assert api.token not in repr(settings_of(api))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"webhook_url": "http://bot.example"}, "webhook_url must begin with https://"),
        ({"webhook_url": "https://b.example", "webhook_listen": "0.0.0.0:80"}, "a proxy with"),
        ({"webhook_url": "https://b.example", "webhook_listen": "8443"}, "127.0.0.1:8443"),
    ],
)
async def test_settings_that_cannot_work_say_so(extra: dict[str, str], words: str) -> None:
    async with bot_api() as api:
        with pytest.raises(GatewayError, match=words):
            await who_am_i(settings_of(api, **extra))
        with pytest.raises(GatewayError, match="base_url must begin with https://"):
            await who_am_i(replace(settings_of(api), base_url="api.example"))
