"""It loses nothing, even if it and its daemon are killed and the network cuts its messages."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.wechat.tests.ilink_server import TOKEN, WeChatFault, run_ilink_server
from apps.wechat.tests.wechat_command import WECHAT_COMMAND
from crabtalk.gateway import write_settings
from crabtalk.gateway.streamed_reply import SENT_AGAIN_MARK
from tests.gateway.kill_scenario import GatewayKillReport, KillScenarioSetup, run_kill_scenario
from tests.gateway.restartable_daemon import run_restartable_daemon
from tests.model_server import model_server

pytestmark = [pytest.mark.one_loop, pytest.mark.req("wechat.kill")]

CHATS, BURSTS = ("x101", "x102", "x103"), "x200"
CUTS = (
    WeChatFault(0),
    WeChatFault(0, is_done=True),
    WeChatFault(502),
    WeChatFault(429, retry_after="1"),
)


async def run_with_kills(path: Path, *, rounds: int, seed: int) -> GatewayKillReport:
    async with (
        run_ilink_server() as api,
        model_server() as model,
        run_restartable_daemon(path, model) as daemon,
    ):
        write_settings(
            daemon.home / "config" / "wechat.toml",
            {
                "token": TOKEN,
                "base_url": api.url,
                "cdn_url": f"{api.url}/cdn",
                "allowed_users": [*CHATS, BURSTS],
            },
        )

        def cut(chance: random.Random) -> None:
            api.inject_faults(chance.choice(("sendmessage", "getuploadurl")), chance.choice(CUTS))

        def files(chat: str) -> list[tuple[str, bool]]:
            """The mark is a separate message before the file."""
            messages = api.messages_to(chat)
            before = ["", *(message.text for message in messages)]
            return [
                (message.file[1], SENT_AGAIN_MARK in text)
                for text, message in zip(before, messages, strict=False)
                if message.file is not None
            ]

        setup = KillScenarioSetup(
            daemon=daemon,
            journal=daemon.home / "wechat" / "journal",
            chats=CHATS,
            bursts=BURSTS,
            running=lambda: WECHAT_COMMAND.run_gateway(daemon.home),
            says=api.add_message,
            texts=api.texts_to,
            files=files,
            sender="wx:{}".format,
            asked=lambda: api.calls["getupdates"],
            is_read=lambda: api.is_read,
            cut=cut,
        )
        return await run_kill_scenario(setup, rounds=rounds, seed=seed)


@pytest.mark.timeout(240)
async def test_three_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await run_with_kills(tmp_path, rounds=3, seed=12)
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 3
    assert report.words_sent >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_three_hundred_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = await run_with_kills(tmp_path, rounds=300, seed=34)
    record_property("report", str(report))
    assert report.is_clean, report
    assert report.kills == report.daemon_kills == 300
