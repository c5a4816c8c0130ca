"""The service alone, against a server that speaks the Bot API."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from apps.telegram.tests.bot_api_server import PATIENCE, BotApiServer, TelegramFault, run_bot_api
from crabtalk.gateway import (
    Attachment,
    Button,
    Chat,
    ChatBlockedError,
    ChatServiceError,
    DeliveryUnknownError,
    GatewayError,
    GatewaySettings,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
)
from crabtalk_telegram.bot_setup import fetch_identity, open_telegram
from crabtalk_telegram.cli import EXTRA_SETTINGS
from crabtalk_telegram.service import TelegramService, build_keyboard, count_utf16_units
from crabtalk_telegram.webhook import MAX_WAITING
from tests.daemon.in_process_daemon import wait_with_timeout

pytestmark = pytest.mark.one_loop

ANN, GROUP = Chat("7"), Chat("-100500", is_group=True)


def make_settings(api: BotApiServer, **extra: str) -> GatewaySettings:
    return GatewaySettings(token=api.token, base_url=api.url, extra={**EXTRA_SETTINGS, **extra})


@asynccontextmanager
async def open_service() -> AsyncIterator[tuple[BotApiServer, TelegramService]]:
    async with run_bot_api() as api, open_telegram(make_settings(api)) as service:
        yield api, service


async def test_a_message_has_its_markup_its_buttons_and_its_reply() -> None:
    async with open_service() as (api, service):
        buttons = [Button("Yes", "a:0:0"), Button("No", "a:0:1"), Button("x" * 30, "a:0:2")]
        number = await service.send(ANN, "**Dig?** (1.5 m)", buttons=buttons, reply_to="12")
        (message,) = api.messages
        assert (message.id, message.text, message.reply_to) == (number, "Dig? (1.5 m)", "12")
        assert [entity.kind for entity in message.entities] == ["bold"]
        assert [[cell["text"] for cell in row] for row in message.buttons] == [
            ["Yes", "No"],
            ["x" * 30],
        ]
        await service.edit(ANN, number, "Dug.")
        assert (message.text, message.buttons) == ("Dug.", [])
        await service.send_typing(ANN)
        assert api.typing == ["7"]
    assert build_keyboard(()) is None


@pytest.mark.req("telegram.measure")
async def test_a_message_is_measured_as_telegram_counts() -> None:
    async with open_service() as (api, service):
        text = "🦀" * 2048
        assert service.measure(text) == service.limits.text == 4096
        await service.send(ANN, text)
        await service.send(ANN, "**" + "x" * 4096 + "**")
        with pytest.raises(MessageTooLongError):
            await service.send(ANN, f"{text}a")
        with pytest.raises(MessageTooLongError):
            await service.edit(ANN, api.messages[0].id, f"{text}a")
        table = "|a|b|\n|-|-|\n" + f"|x|{'y' * 40}|\n" * 20
        await service.send(ANN, table)
        assert count_utf16_units(api.messages[-1].text) <= service.measure(table)


@pytest.mark.req("telegram.plain")
async def test_markup_that_telegram_cannot_parse_is_sent_as_plain_text() -> None:
    async with open_service() as (api, service):
        cannot = TelegramFault(
            400, "Bad Request: can't parse entities: Can't find end of Bold entity"
        )
        api.inject_faults("sendMessage", cannot)
        number = await service.send(ANN, "**a** `b`")
        (message,) = api.messages
        assert (message.raw, message.entities) == ("a b", [])
        api.inject_faults("editMessageText", cannot)
        await service.edit(ANN, number, "**c**")
        assert (message.raw, message.entities) == ("c", [])
        await service.send(ANN, "```\n```")
        assert api.messages[-1].text == "```\n```"


@pytest.mark.req("telegram.edit.unchanged")
async def test_an_edit_without_a_change_is_no_error() -> None:
    async with open_service() as (api, service):
        number = await service.send(ANN, "same")
        await service.edit(ANN, number, "same")
        assert api.calls["editMessageText"] == 1
        with pytest.raises(RejectedError, match="not found"):
            await service.edit(ANN, "99", "same")


@pytest.mark.req("telegram.errors")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TelegramFault(429, "Too Many Requests: retry after 3", retry_after=3), RetryLaterError),
        (TelegramFault(401, "Unauthorized"), RetryLaterError),
        (TelegramFault(403, "Forbidden: bot was kicked from the group chat"), ChatBlockedError),
        (TelegramFault(400, "Bad Request: chat not found"), ChatBlockedError),
        (
            TelegramFault(400, "Bad Request: not enough rights to send text messages"),
            ChatBlockedError,
        ),
        (
            TelegramFault(400, "Bad Request: not enough rights to send photos to the chat"),
            RejectedError,
        ),
        (TelegramFault(400, "Bad Request: message is too long"), MessageTooLongError),
        (TelegramFault(400, "Bad Request: BUTTON_DATA_INVALID"), RejectedError),
        (TelegramFault(413, "Request Entity Too Large"), RejectedError),
        (TelegramFault(500, "Internal Server Error"), DeliveryUnknownError),
        (TelegramFault(502, page=True), DeliveryUnknownError),
        (TelegramFault(200, page=True), DeliveryUnknownError),
        (TelegramFault(403, page=True), DeliveryUnknownError),
        (TelegramFault(0), DeliveryUnknownError),
        (TelegramFault(0, is_done=True), DeliveryUnknownError),
    ],
)
async def test_each_fault_is_mapped_to_the_right_error(
    fault: TelegramFault, kind: type[ChatServiceError]
) -> None:
    async with open_service() as (api, service):
        api.inject_faults("sendMessage", fault)
        with pytest.raises(kind) as caught:
            await service.send(ANN, "hello")
        if fault.retry_after:
            assert isinstance(caught.value, RetryLaterError)
            assert caught.value.seconds == 3
        assert len(api.messages) == fault.is_done


@pytest.mark.req("telegram.errors")
async def test_a_refused_connection_means_that_nothing_was_sent() -> None:
    async with run_bot_api() as api:
        settings = make_settings(api)
    async with open_telegram(settings) as service:
        with pytest.raises(RetryLaterError):
            await service.send(ANN, "hello")


async def test_a_group_is_found_at_its_new_id() -> None:
    async with open_service() as (api, service):
        api.inject_faults(
            "sendMessage", TelegramFault(400, "Bad Request: group chat was upgraded", moved_to=-42)
        )
        await service.send(GROUP, "one")
        await service.send(GROUP, "two")
        assert api.texts_in("-42") == ["one", "two"]
        assert api.calls["sendMessage"] == 3


async def test_messages_can_be_sent_to_a_topic_of_a_forum() -> None:
    async with open_service() as (api, service):
        await service.send(Chat("-100500/12", is_group=True), "here")
        assert [(message.chat, message.topic) for message in api.messages] == [("-100500", "12")]


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("telegram.files")
async def test_files_are_fetched_whole_or_not_at_all(tmp_path: Path) -> None:
    async with open_service() as (api, service):
        api.files["f1"] = b"sand" * 50_000
        await service.fetch(Attachment("f1", "a.bin", 0, ""), tmp_path / "a.bin")
        assert (tmp_path / "a.bin").read_bytes() == b"sand" * 50_000
        with pytest.raises(RejectedError):
            await service.fetch(Attachment("f2", "b.bin", 0, ""), tmp_path / "b.bin")
        for status, kind in ((404, RejectedError), (502, DeliveryUnknownError)):
            api.inject_faults("file", TelegramFault(status))
            with pytest.raises(kind):
                await service.fetch(Attachment("f1", "c.bin", 0, ""), tmp_path / "c.bin")
        assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.req("telegram.files")
async def test_pictures_are_sent_as_photos_and_other_files_as_documents(tmp_path: Path) -> None:
    for name in ("a.png", "b.txt"):
        (tmp_path / name).write_bytes(name.encode())
    async with open_service() as (api, service):
        await service.upload(ANN, tmp_path / "a.png", "look")
        await service.upload(ANN, tmp_path / "b.txt", "")
        api.inject_faults("sendPhoto", TelegramFault(400, "Bad Request: PHOTO_INVALID_DIMENSIONS"))
        await service.upload(ANN, tmp_path / "a.png", "")
        api.blocked.add("7")
        with pytest.raises(ChatBlockedError):
            await service.upload(ANN, tmp_path / "a.png", "")
        with pytest.raises(MessageTooLongError):
            await service.upload(ANN, tmp_path / "b.txt", "x" * 1025)
    assert [(message.file, message.text) for message in api.messages] == [
        (("photo", "a.png", b"a.png"), "look"),
        (("document", "b.txt", b"b.txt"), ""),
        (("document", "a.png", b"a.png"), ""),
    ]


# ── Receiving ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("telegram.polling")
async def test_an_update_is_confirmed_only_after_it_was_acknowledged() -> None:
    async with open_service() as (api, service), aclosing(service.updates()) as updates:
        first, second = api.add_message("one"), api.add_message("two")
        api.add_message("of a bot", "99", is_bot=True)
        one, two = await wait_with_timeout(anext(updates)), await wait_with_timeout(anext(updates))
        assert [one.id, two.id] == [str(first), str(second)]
        assert len(api.pending) == 3, "a crash now loses nothing"
        await service.acknowledge(one)
        await service.acknowledge(two)
        api.add_message("three")
        three = await wait_with_timeout(anext(updates))
        assert three.text == "three"
        assert list(api.pending) == [int(three.id)]
        await service.acknowledge(three)
        coming = asyncio.ensure_future(anext(updates))
        await api.wait_until(lambda: not api.pending)
        api.add_message("below them all", update=5)
        assert (await wait_with_timeout(coming)).text == "below them all"


@pytest.mark.req("telegram.polling")
async def test_polling_survives_every_fault() -> None:
    async with open_service() as (api, service):
        api.webhook = {"url": "https://old.example"}
        api.inject_faults("getMe", TelegramFault(502, page=True))
        api.inject_faults("deleteWebhook", TelegramFault(0))
        api.inject_faults(
            "getUpdates", TelegramFault(0), TelegramFault(500), TelegramFault(409, "Conflict")
        )
        api.add_message("hello")
        async with aclosing(service.updates()) as updates:
            assert (await wait_with_timeout(anext(updates))).text == "hello"
            assert not api.webhook
        await api.wait_until(lambda: "stop" in api.offered)


def add_broken_update(api: BotApiServer, kind: str) -> int:
    """Add an update that the library cannot parse."""
    number = api.add_message("half of it")
    message = api.pending[number]["message"]
    match kind:
        case "chat":
            del message["chat"]
        case "date":
            message["date"] = "yesterday"
        case "person":
            message["from"] = {"id": 7}
        case "message":
            api.pending[number]["message"] = ["hello"]
    return number


@pytest.mark.req("telegram.unread")
@pytest.mark.parametrize("kind", ["chat", "date", "person", "message"])
async def test_an_update_that_cannot_be_parsed_does_not_hold_up_others(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service() as (api, service), aclosing(service.updates()) as updates:
        first, broken, last = (
            api.add_message("first"),
            add_broken_update(api, kind),
            api.add_message("last"),
        )
        updates_received = [await wait_with_timeout(anext(updates)) for _ in range(3)]
        assert [update.id for update in updates_received] == [str(first), str(broken), str(last)]
        assert [item.text for item in updates_received] == ["first", "", "last"]
        assert json.loads(updates_received[1].unread) == api.pending[broken]
        for item in updates_received:
            await service.acknowledge(item)
        coming = asyncio.ensure_future(anext(updates))
        await api.wait_until(lambda: not api.pending)
        api.add_message("even")
        assert (await wait_with_timeout(coming)).text == "even"
    assert f"update {broken} makes no sense" in caplog.text
    assert "half of it" not in caplog.text, "what people write is in no log"


@pytest.mark.req("telegram.unread")
async def test_an_update_without_a_number_is_left_out_and_polling_slows_down() -> None:
    async with open_service() as (api, service), aclosing(service.updates()) as updates:
        broken = api.add_message("of no number")
        del api.pending[broken]["update_id"]
        coming = asyncio.ensure_future(anext(updates))
        await api.wait_until(lambda: api.calls["getUpdates"] == 2)
        api.add_message("even")
        assert (await wait_with_timeout(coming)).text == "even"
        assert api.calls["getUpdates"] <= 4


@pytest.mark.req("telegram.order")
async def test_updates_that_come_together_are_in_the_order_of_their_numbers() -> None:
    async with open_service() as (api, service), aclosing(service.updates()) as updates:
        for number in (703, 701, 702):
            api.add_message(f"{number}", update=number)
        received = [await wait_with_timeout(anext(updates)) for _ in range(3)]
        assert [item.text for item in received] == ["701", "702", "703"]


@pytest.mark.req("telegram.webhook")
async def test_telegram_keeps_updates_while_there_is_no_room() -> None:
    webhook_settings = {"webhook_url": "https://bot.example", "webhook_listen": "127.0.0.1:0"}
    async with (
        run_bot_api() as api,
        open_telegram(make_settings(api, **webhook_settings)) as service,
        aclosing(service.updates()) as updates,
    ):
        coming = asyncio.ensure_future(anext(updates))
        await api.wait_until(lambda: api.webhook)
        api.listener = f"http://127.0.0.1:{service.port}"
        numbers = [api.add_message(f"{number}") for number in range(MAX_WAITING + 3)]
        waiting = [json.dumps(api.pending.pop(number)).encode() for number in numbers]
        first = asyncio.ensure_future(api.deliver_to_webhook(data=waiting[0]))
        update = await wait_with_timeout(coming)
        deliveries = {
            asyncio.ensure_future(api.deliver_to_webhook(data=item)) for item in waiting[1:]
        }
        done: set[asyncio.Future[int]] = set()
        async with asyncio.timeout(PATIENCE):
            while len(done) < 2:
                done = {delivery for delivery in deliveries if delivery.done()}
                await asyncio.sleep(0.01)
        assert {item.result() for item in done} == {503}
        assert not first.done()
        await service.acknowledge(update)
        assert await wait_with_timeout(first) == 200
        for delivery in deliveries:
            delivery.cancel()
        await asyncio.gather(*deliveries, return_exceptions=True)


@pytest.mark.req("telegram.token")
async def test_an_unknown_token_ends_polling() -> None:
    async with run_bot_api() as api:
        wrong = replace(make_settings(api), token="1:no")
        async with open_telegram(wrong) as service:
            with pytest.raises(RejectedError, match="crabtalk-telegram setup"):
                await wait_with_timeout(anext(service.updates()))
        with pytest.raises(RejectedError, match="crabtalk-telegram setup"):
            await fetch_identity(wrong)
        assert await fetch_identity(make_settings(api)) == "@crab_bot"


@pytest.mark.req("telegram.buttons")
async def test_a_button_press_is_answered_when_it_was_acknowledged() -> None:
    async with open_service() as (api, service), aclosing(service.updates()) as updates:
        await service.send(ANN, "Dig?", buttons=[Button("Yes", "a:0:0")])
        api.press_button(api.messages[0], "Yes")
        update = await wait_with_timeout(anext(updates))
        assert (update.press, update.message_id) == ("a:0:0", api.messages[0].id)
        assert not api.answered_presses
        await service.acknowledge(update)
        await api.wait_until(lambda: api.answered_presses == [f"q{update.id}"])


@pytest.mark.req("telegram.token.secret")
async def test_the_token_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with open_service() as (api, service):
            api.inject_faults("sendMessage", TelegramFault(0))
            with pytest.raises(DeliveryUnknownError) as caught:
                await service.send(ANN, "hello")
            await service.send(ANN, "hello")
    assert api.token not in caplog.text
    assert api.token not in str(caught.value)
    assert api.token not in repr(make_settings(api))


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"webhook_url": "http://bot.example"}, "webhook_url must begin with https://"),
        ({"webhook_url": "https://b.example", "webhook_listen": "0.0.0.0:80"}, "a proxy with"),
        ({"webhook_url": "https://b.example", "webhook_listen": "8443"}, "127.0.0.1:8443"),
    ],
)
async def test_settings_that_cannot_work_are_reported(
    extra: dict[str, str], complaint: str
) -> None:
    async with run_bot_api() as api:
        with pytest.raises(GatewayError, match=complaint):
            await fetch_identity(make_settings(api, **extra))
        with pytest.raises(GatewayError, match="base_url must begin with https://"):
            await fetch_identity(replace(make_settings(api), base_url="api.example"))
