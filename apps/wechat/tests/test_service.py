"""The service alone, against a server that speaks iLink."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import crabtalk_wechat.service
from apps.wechat.tests.ilink_server import (
    ANN,
    BO,
    KEY,
    TOKEN,
    ILinkServer,
    WeChatFault,
    run_ilink_server,
)
from apps.wechat.tests.wechat_world import TEST_DELAYS, make_settings
from crabtalk.gateway import (
    Attachment,
    Chat,
    ChatServiceError,
    DeliveryUnknownError,
    GatewayError,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
    Update,
    write_settings,
)
from crabtalk_wechat.service import WeChatService
from crabtalk_wechat.service_setup import fetch_identity, open_wechat
from tests.daemon.in_process_daemon import wait_with_timeout

pytestmark = pytest.mark.one_loop

CHAT = Chat(ANN)


@asynccontextmanager
async def open_service(path: Path) -> AsyncIterator[tuple[ILinkServer, WeChatService]]:
    directory = path / "home" / "wechat"
    directory.mkdir(parents=True)
    async with (
        run_ilink_server() as api,
        open_wechat(make_settings(api, ANN), directory, delays=TEST_DELAYS) as service,
    ):
        yield api, service


async def receive_updates(service: WeChatService, count: int = 1) -> list[Update]:
    """Receive `count` updates and acknowledge them."""
    updates_received: list[Update] = []
    async with aclosing(service.updates()) as updates:
        while len(updates_received) < count:
            updates_received.append(await wait_with_timeout(anext(updates)))
            await service.acknowledge(updates_received[-1])
    return updates_received


# ── Sending ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wechat.send")
async def test_a_message_is_plain_text_with_the_context_of_its_persons_last_message(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_message("hello")
        await receive_updates(service)
        number = await service.send(CHAT, "# Tide\n\n**Low** at `3`.")
        (message,) = api.messages
        assert (message.person, message.text) == (ANN, "Tide\n\nLow at 3.")
        assert (message.client, message.context) == (number, api.contexts[ANN])
        await service.send_typing(CHAT)
        await service.send_typing(CHAT)
        assert api.typing == [ANN, ANN]
        assert api.calls["getconfig"] == 1
        assert len(api.uins) >= 4, "each request has a number of its own"
        with pytest.raises(RejectedError):
            await service.edit(CHAT, number, "changed")


@pytest.mark.req("wechat.splitting")
async def test_a_message_has_four_thousand_characters(tmp_path: Path) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_message("hello")
        await receive_updates(service)
        text = "🦀" * 2000
        assert service.measure(text) == service.limits.text == 4000
        await service.send(CHAT, text)
        with pytest.raises(MessageTooLongError):
            await service.send(CHAT, f"{text}a")
        assert [message.text for message in api.messages] == [text]


@pytest.mark.req("wechat.errors")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (WeChatFault(429, retry_after="3"), RetryLaterError),
        (WeChatFault(200, -14, "session timeout"), RetryLaterError),
        (WeChatFault(401), RetryLaterError),
        (WeChatFault(200, -2, ""), RetryLaterError),
        (WeChatFault(200, -7), RejectedError),
        (WeChatFault(404), RejectedError),
        (WeChatFault(413), MessageTooLongError),
        (WeChatFault(500), DeliveryUnknownError),
        (WeChatFault(502, page=True), DeliveryUnknownError),
        (WeChatFault(200, page=True), DeliveryUnknownError),
        (WeChatFault(403, page=True), DeliveryUnknownError),
        (WeChatFault(0), DeliveryUnknownError),
        (WeChatFault(0, is_done=True), DeliveryUnknownError),
    ],
)
async def test_each_fault_is_mapped_to_the_right_error(
    tmp_path: Path, fault: WeChatFault, kind: type[ChatServiceError]
) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_message("hello")
        await receive_updates(service)
        api.inject_faults("sendmessage", fault)
        with pytest.raises(kind) as caught:
            await service.send(CHAT, "hello")
        if fault.retry_after:
            assert isinstance(caught.value, RetryLaterError)
            assert caught.value.seconds == 3
        assert len(api.messages) == fault.is_done


@pytest.mark.req("wechat.errors")
async def test_a_refused_connection_means_that_nothing_was_sent(tmp_path: Path) -> None:
    async with run_ilink_server() as api:
        settings = make_settings(api)
    async with open_wechat(settings, tmp_path) as service:
        with pytest.raises(RetryLaterError):
            await service.send(CHAT, "hello")


@pytest.mark.req("wechat.context.spent")
async def test_messages_wait_while_a_context_is_used_up_until_its_person_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_message("hello")
        await receive_updates(service)
        for number in range(10):
            await service.send(CHAT, f"{number}")
        with pytest.raises(RetryLaterError):
            await service.send(CHAT, "eleventh")
        monkeypatch.setattr(crabtalk_wechat.service, "FOR_WORD", 0.01)
        send_count = api.calls["sendmessage"]
        with pytest.raises(RetryLaterError, match="writes again"):
            await service.send(CHAT, "eleventh")
        assert api.calls["sendmessage"] == send_count, "WeChat is not asked again and again"
        monkeypatch.setattr(crabtalk_wechat.service, "FOR_WORD", 1000.0)
        sending = asyncio.ensure_future(service.send(CHAT, "eleventh"))
        api.add_message("to others", BO)
        api.add_message("go on")
        await receive_updates(service, 2)
        await wait_with_timeout(sending)
        assert api.texts_to()[-1] == "eleventh"


# ── Receiving ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wechat.cursor")
async def test_the_cursor_moves_when_all_updates_before_it_were_acknowledged_and_is_stored(
    tmp_path: Path,
) -> None:
    async with open_service(tmp_path) as (api, service):
        state = tmp_path / "home" / "wechat" / "state.json"
        api.add_message("one")
        api.add_message("our own words", message_type=2)
        api.add_message("of a group", group_id="g1")
        api.add_message("two", BO)
        async with aclosing(service.updates()) as updates:
            first, second = (
                await wait_with_timeout(anext(updates)),
                await wait_with_timeout(anext(updates)),
            )
            assert [(first.text, first.person.id), (second.text, second.person.id)] == [
                ("one", ANN),
                ("two", BO),
            ]
            kept = json.loads(state.read_bytes())
            assert kept["cursor"] == "", "a crash now loses nothing"
            assert kept["contexts"] == api.contexts, "so that the next process can answer"
            coming = asyncio.ensure_future(anext(updates))
            await service.acknowledge(first)
            with pytest.raises(TimeoutError):  # no request while an update is not acknowledged
                async with asyncio.timeout(0.5):
                    await api.wait_until(lambda: len(api.cursors) > 1)
            assert json.loads(state.read_bytes())["cursor"] == ""
            await service.acknowledge(second)
            await api.wait_until(lambda: api.cursors[-1] == "buf-4")
            assert json.loads(state.read_bytes())["cursor"] == "buf-4"
            assert state.stat().st_mode & 0o777 == 0o600
            api.add_message("three")
            assert (await wait_with_timeout(coming)).text == "three"
        async with open_wechat(
            make_settings(api), state.parent, delays=TEST_DELAYS
        ) as second_service:
            (three,) = await receive_updates(second_service)
            assert three.text == "three"
            assert api.cursors[-1] == "buf-4"
            await second_service.send(Chat(BO), "still known")
        state.write_bytes(b"{")
        async with open_wechat(
            make_settings(api), state.parent, delays=TEST_DELAYS
        ) as third_service:
            assert len(await receive_updates(third_service, 3)) == 3


@pytest.mark.req("wechat.polling")
async def test_polling_survives_every_fault(tmp_path: Path) -> None:
    async with open_service(tmp_path) as (api, service):
        faults = (
            WeChatFault(0),
            WeChatFault(500),
            WeChatFault(502, page=True),
            WeChatFault(200, -3),
            WeChatFault(429),
        )
        api.inject_faults("getupdates", *faults, WeChatFault(0, is_done=True))
        api.log.append({"message_type": 1, "from_user_id": "x", "message_id": [], "item_list": 7})
        api.add_message("hello")
        assert [update.text for update in await receive_updates(service, 2)] == ["", "hello"]


@pytest.mark.req("wechat.unread")
async def test_a_message_that_cannot_be_parsed_does_not_hold_up_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(tmp_path) as (api, service):
        broken: Any = ["half of it"]
        api.add_message("one")
        api.log.append(broken)
        api.add_message("two")
        updates = await receive_updates(service, 3)
        assert [update.text for update in updates] == ["one", "", "two"]
        assert json.loads(updates[1].unread) == broken
        assert len({update.id for update in updates}) == 3
    assert "a message makes no sense" in caplog.text
    assert "half of it" not in caplog.text, "what people write is in no log"


@pytest.mark.req("wechat.expiry")
async def test_an_expired_session_is_logged_once_and_a_new_login_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_message("one")
        async with aclosing(service.updates()) as updates:
            await service.acknowledge(await wait_with_timeout(anext(updates)))
            coming = asyncio.ensure_future(anext(updates))
            await api.wait_until(lambda: api.cursors[-1] == "buf-1")
            api.tokens.clear()
            polls = api.calls["getupdates"]
            await api.wait_until(lambda: api.calls["getupdates"] > polls + 3)
            errors = [record for record in caplog.records if record.levelno == logging.ERROR]
            assert [error.message for error in errors] == [crabtalk_wechat.polling.EXPIRED_WORDS]
            assert "crabtalk-wechat setup" in errors[0].message
            with pytest.raises(RetryLaterError, match="session"):
                await service.send(CHAT, "hello")
            state = json.loads((tmp_path / "home" / "wechat" / "state.json").read_bytes())
            assert state["cursor"] == "", "that of the session is no more"

            api.tokens.add("new")
            changes = {"token": "new", "base_url": api.url}
            write_settings(tmp_path / "home" / "config" / "wechat.toml", changes)
            assert (await wait_with_timeout(coming)).text == "one"
            await service.send(CHAT, "hello")
        assert TOKEN not in caplog.text


@pytest.mark.req("wechat.token")
async def test_a_token_is_checked_with_the_service() -> None:
    async with run_ilink_server() as api:
        settings = make_settings(api)
        assert await fetch_identity(settings) == "a bot"
        named = replace(settings, extra={**settings.extra, "bot_id": "crab@im.bot"})
        assert await fetch_identity(named) == "crab@im.bot"
        with pytest.raises(RejectedError, match="crabtalk-wechat setup"):
            await fetch_identity(replace(settings, token="wrong"))
        with pytest.raises(GatewayError, match="base_url must begin with https://"):
            await fetch_identity(replace(settings, base_url="api.example"))
        assert api.cursors == [], "and nothing that waits is read by that"


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wechat.files")
async def test_files_are_fetched_whole_or_not_at_all(tmp_path: Path) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_file(4, b"sand" * 50_000, file_name="a.bin", len="200000")
        api.add_file(2, b"jpeg", aeskey=KEY.hex())
        file, picture = await receive_updates(service, 2)
        assert (file.attachments[0].name, file.attachments[0].size) == ("a.bin", 200_000)
        assert picture.attachments[0].kind == "image/jpeg"
        await service.fetch(file.attachments[0], tmp_path / "a.bin")
        await service.fetch(picture.attachments[0], tmp_path / "b.jpg")
        assert (tmp_path / "a.bin").read_bytes() == b"sand" * 50_000
        assert (tmp_path / "b.jpg").read_bytes() == b"jpeg"
        for status, kind in (
            (404, RejectedError),
            (502, DeliveryUnknownError),
            (0, DeliveryUnknownError),
        ):
            api.inject_faults(
                "download", WeChatFault(status), *[WeChatFault(status)] * (not status)
            )
            with pytest.raises(kind):
                await service.fetch(file.attachments[0], tmp_path / "c.bin")
        where = json.loads(file.attachments[0].id)[0]
        wrong = base64.b64encode(bytes(16)).decode()
        for number, key in enumerate((wrong, "", "?", "short")):
            with pytest.raises(RejectedError):
                attachment = Attachment(json.dumps([where, key]), "d.bin", 0, "")
                await service.fetch(attachment, tmp_path / f"d{number}.bin")
        assert sorted(path.name for path in tmp_path.glob("*.*")) == ["a.bin", "b.jpg"]


@pytest.mark.req("wechat.files")
async def test_pictures_and_videos_are_sent_as_media_and_others_as_files(tmp_path: Path) -> None:
    names = ("a.png", "b.txt", "c.mp4")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    async with open_service(tmp_path) as (api, service):
        api.add_message("hello")
        await receive_updates(service)
        for name in names:
            await service.upload(CHAT, tmp_path / name, "look" if name == "b.txt" else "")
        assert [message.file or message.text for message in api.messages] == [
            (2, "", b"a.png"),
            "look",
            (4, "b.txt", b"b.txt"),
            (5, "", b"c.mp4"),
        ]
        for name, fault, kind in (
            ("getuploadurl", WeChatFault(502), RetryLaterError),
            ("getuploadurl", WeChatFault(200, -7), RejectedError),
            ("upload", WeChatFault(0), RetryLaterError),
            ("upload", WeChatFault(500), RetryLaterError),
            ("upload", WeChatFault(403), RejectedError),
            ("sendmessage", WeChatFault(0), DeliveryUnknownError),
        ):
            api.inject_faults(name, fault)
            with pytest.raises(kind):
                await service.upload(CHAT, tmp_path / "a.png", "")
        assert len(api.messages) == 4
