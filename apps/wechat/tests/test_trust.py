"""Permissions in WeChat: ids that look like another one, the agents of a chat, approvals."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from apps.wechat.tests.ilink_server import ANN, run_ilink_server
from apps.wechat.tests.wechat_command import WECHAT_COMMAND
from apps.wechat.tests.wechat_world import WeChatWorld, make_settings, open_wechat_world
from crabtalk.gateway import write_settings
from tests.daemon.in_process_daemon import AGENTS, InProcessDaemon
from tests.gateway.approval_daemon import (
    ScriptedApprovalDaemon,
    make_approval,
    make_ask_event,
    run_approval_daemon,
)

pytestmark = pytest.mark.one_loop

GUARDED = {**AGENTS, "guarded": 'prompt = "You are guarded."\ntools = ["recall"]\n'}
# Ids of people that would make another sender than they look like.
ODD = [f"{ANN} ", f" {ANN}", f"{ANN}\u200b", f"{ANN}\n", "tg：666", "user\u3000", "group:7"]


@asynccontextmanager
async def open_approval_world(
    path: Path, *asks: Any
) -> AsyncIterator[tuple[WeChatWorld, ScriptedApprovalDaemon]]:
    async with run_ilink_server() as api, run_approval_daemon(path / "home") as daemon:
        daemon.asks.extend(asks)
        yield WeChatWorld(path, api, cast("InProcessDaemon", None)), daemon


@pytest.mark.req("trust.gateways.senders")
async def test_an_id_with_a_space_or_a_letter_that_is_not_ascii_reaches_no_agent(
    tmp_path: Path,
) -> None:
    async with open_wechat_world(tmp_path) as w:
        w.settings = make_settings(w.api, ANN, *ODD)
        async with w.run_gateway():
            for person in ODD:
                w.api.add_message("!say leaked", person)
            w.api.add_message("hello")
            await w.wait_for_texts("heard: hello")
            await w.wait_until_idle()
        assert {message.person for message in w.api.messages} == {ANN}
        async with w.daemon.client() as client:
            conversations = (await client.list_conversations()).conversations
        assert [conversation.sender for conversation in conversations] == [f"wx:{ANN}"]


@pytest.mark.req("trust.gateways.agents")
async def test_agent_crab_does_not_leave_the_agent_the_owner_chose(tmp_path: Path) -> None:
    async with open_wechat_world(tmp_path, agents=GUARDED) as w:
        settings = {"token": w.settings.token, "base_url": w.api.url, "allowed_users": [ANN]}
        path = w.home / "config" / "wechat.toml"
        write_settings(path, {**settings, "cdn_url": f"{w.api.url}/cdn", "agents": ["guarded"]})
        async with WECHAT_COMMAND.run_gateway(w.home):
            refused = "You cannot talk to crab in this chat; /agents lists who answers here."
            for number, words in enumerate(("/agent crab", "@crab !say leaked"), 1):
                w.api.add_message(words)
                await w.wait_for_texts(*[refused] * number)
            w.api.add_message("hello")
            await w.wait_for_texts(refused, refused, "heard: hello")
        async with w.daemon.client() as client:
            conversations = (await client.list_conversations()).conversations
        assert [(conversation.agent, conversation.sender) for conversation in conversations] == [
            ("guarded", f"wx:{ANN}")
        ]


@pytest.mark.req("trust.gateways.approval.literal")
async def test_an_approval_keeps_its_marks_and_is_answered_in_words(tmp_path: Path) -> None:
    call = "rm -rf __init__.py\n# no heading\n**x** `y` [a](http://b)\n~~~\nz\n~~~"
    question = make_approval(call)
    async with (
        open_approval_world(tmp_path, make_ask_event(question)) as (w, daemon),
        w.run_gateway(),
    ):
        w.api.add_message("go")
        await w.api.wait_until(lambda: w.api.texts_to())
        assert call in w.api.texts_to()[0]
        assert w.api.texts_to()[0].endswith("1. Allow  2. Deny  3. Always")
        journal = w.directory / "journal"
        await w.wait_until(lambda: b'"message":"crabtalk-' in journal.read_bytes())
        w.api.add_message("Yes")
        await w.api.wait_until(lambda: w.api.texts_to()[-1] == "done")
        await w.wait_until_idle()
        (reply,) = daemon.replies
        assert (reply.sender, reply.ask_id) == (f"wx:{ANN}", "ask-1")
        assert json.loads(reply.content) == {question.question: "Allow"}
