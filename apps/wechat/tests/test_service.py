"""The service, by itself, against a server that speaks iLink."""

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
    own = path / "home" / "wechat"
    own.mkdir(parents=True)
    async with (
        run_ilink_server() as api,
        open_wechat(make_settings(api, ANN), own, pauses=TEST_DELAYS) as service,
    ):
        yield api, service


async def receive_updates(service: WeChatService, count: int = 1) -> list[Update]:
    """So many updates, all of them taken."""
    found: list[Update] = []
    async with aclosing(service.updates()) as updates:
        while len(found) < count:
            found.append(await wait_with_timeout(anext(updates)))
            await service.acknowledge(found[-1])
    return found


# ── What goes ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wechat.send")
async def test_a_message_is_plain_text_with_the_context_of_what_its_person_wrote(
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
        longest = "🦀" * 2000
        assert service.measure(longest) == service.limits.text == 4000
        await service.send(CHAT, longest)
        with pytest.raises(MessageTooLongError):
            await service.send(CHAT, f"{longest}a")
        assert [message.text for message in api.messages] == [longest]


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
async def test_what_went_wrong_is_said_as_it_is(
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
async def test_nobody_there_means_that_nothing_was_sent(tmp_path: Path) -> None:
    async with run_ilink_server() as api:
        settings = make_settings(api)
    async with open_wechat(settings, tmp_path) as service:
        with pytest.raises(RetryLaterError):
            await service.send(CHAT, "hello")


@pytest.mark.req("wechat.context.spent")
async def test_what_wechat_takes_no_more_of_waits_until_its_person_writes_again(
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
        asked = api.calls["sendmessage"]
        with pytest.raises(RetryLaterError, match="writes again"):
            await service.send(CHAT, "eleventh")
        assert api.calls["sendmessage"] == asked, "WeChat is not asked again and again"
        monkeypatch.setattr(crabtalk_wechat.service, "FOR_WORD", 1000.0)
        sending = asyncio.ensure_future(service.send(CHAT, "eleventh"))
        api.add_message("to others", BO)
        api.add_message("go on")
        await receive_updates(service, 2)
        await wait_with_timeout(sending)
        assert api.texts_to()[-1] == "eleventh"


# ── What comes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wechat.cursor")
async def test_the_cursor_moves_when_all_before_it_was_taken_and_is_kept(tmp_path: Path) -> None:
    async with open_service(tmp_path) as (api, service):
        state = tmp_path / "home" / "wechat" / "state.json"
        api.add_message("one")
        api.add_message("our own words", message_type=2)
        api.add_message("of a group", group_id="g1")
        api.add_message("two", BO)
        async with aclosing(service.updates()) as updates:
            one, two = (
                await wait_with_timeout(anext(updates)),
                await wait_with_timeout(anext(updates)),
            )
            assert [(one.text, one.person.id), (two.text, two.person.id)] == [
                ("one", ANN),
                ("two", BO),
            ]
            kept = json.loads(state.read_bytes())
            assert kept["cursor"] == "", "a crash now loses nothing"
            assert kept["contexts"] == api.contexts, "and whoever comes next can answer"
            coming = asyncio.ensure_future(anext(updates))
            await service.acknowledge(one)
            with pytest.raises(TimeoutError):  # nothing is asked for while one is open
                async with asyncio.timeout(0.5):
                    await api.wait_until(lambda: len(api.cursors) > 1)
            assert json.loads(state.read_bytes())["cursor"] == ""
            await service.acknowledge(two)
            await api.wait_until(lambda: api.cursors[-1] == "buf-4")
            assert json.loads(state.read_bytes())["cursor"] == "buf-4"
            assert state.stat().st_mode & 0o777 == 0o600
            api.add_message("three")
            assert (await wait_with_timeout(coming)).text == "three"
        async with open_wechat(make_settings(api), state.parent, pauses=TEST_DELAYS) as another:
            (three,) = await receive_updates(another)
            assert three.text == "three"
            assert api.cursors[-1] == "buf-4"
            await another.send(Chat(BO), "still known")
        state.write_bytes(b"{")
        async with open_wechat(make_settings(api), state.parent, pauses=TEST_DELAYS) as third:
            assert len(await receive_updates(third, 3)) == 3


@pytest.mark.req("wechat.polling")
async def test_polling_goes_on_after_whatever_happens(tmp_path: Path) -> None:
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
        assert [one.text for one in await receive_updates(service, 2)] == ["", "hello"]


@pytest.mark.req("wechat.unread")
async def test_a_message_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(tmp_path) as (api, service):
        odd: Any = ["half of it"]
        api.add_message("one")
        api.log.append(odd)
        api.add_message("two")
        found = await receive_updates(service, 3)
        assert [one.text for one in found] == ["one", "", "two"]
        assert json.loads(found[1].unread) == odd
        assert len({one.id for one in found}) == 3
    assert "a message makes no sense" in caplog.text
    assert "half of it" not in caplog.text, "what people write is in no log"


@pytest.mark.req("wechat.expiry")
async def test_a_session_that_is_over_is_told_once_and_a_new_login_is_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(tmp_path) as (api, service):
        api.add_message("one")
        async with aclosing(service.updates()) as updates:
            await service.acknowledge(await wait_with_timeout(anext(updates)))
            coming = asyncio.ensure_future(anext(updates))
            await api.wait_until(lambda: api.cursors[-1] == "buf-1")
            api.tokens.clear()
            asked = api.calls["getupdates"]
            await api.wait_until(lambda: api.calls["getupdates"] > asked + 3)
            told = [one for one in caplog.records if one.levelno == logging.ERROR]
            assert [one.message for one in told] == [crabtalk_wechat.polling.EXPIRED_WORDS]
            assert "crabtalk-wechat setup" in told[0].message
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
async def test_a_token_is_tried_before_it_is_used() -> None:
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
async def test_pictures_and_videos_are_sent_as_such_and_others_as_files(tmp_path: Path) -> None:
    names = ("a.png", "b.txt", "c.mp4")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    async with open_service(tmp_path) as (api, service):
        api.add_message("hello")
        await receive_updates(service)
        for name in names:
            await service.upload(CHAT, tmp_path / name, "look" if name == "b.txt" else "")
        assert [one.file or one.text for one in api.messages] == [
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
