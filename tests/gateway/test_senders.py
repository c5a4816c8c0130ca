"""Senders: one for each person or group, with the service's prefix, and never an owner's."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crabtalk.gateway import Gateway, GatewayError
from crabtalk.gateway.agent_bindings import build_sender, check_prefix, has_valid_ids
from crabtalk.gateway.chat_service import Chat, Person, Update
from crabtalk.gateway.journal_records import UpdateReceived
from tests.gateway.gateway_world import PIGEON_MODULE, open_gateway_world
from tests.gateway.test_recovery import write_journal

pytestmark = [pytest.mark.one_loop, pytest.mark.req("trust.gateways.senders")]

ODD_IDS = [
    "7 ",
    " 7",
    "7\u3000",
    "7\n",
    "７",
    "7\u200b",
    "tg：666",
    "",
    "group:-5",
    "x" * 129,
    "7\0",
]
IDS = st.text(st.sampled_from("7:~ -/groupser@_：\u200b"), max_size=12) | st.text(max_size=20)


def make_update(person: str, chat: str = "", *, is_group: bool = False) -> Update:
    return Update("u", Chat(chat or person, is_group), Person(person, "Ann"))


@given(IDS, IDS, st.booleans())
@example("group:5", "5", False)
def test_a_sender_has_the_prefix_and_identifies_one_person_or_group(
    person: str, chat: str, is_group: bool
) -> None:
    update = make_update(person, chat, is_group=is_group)
    if not has_valid_ids(update):
        with pytest.raises(GatewayError):
            build_sender("tg", update)
        return
    sender = build_sender("tg", update)
    assert sender.isascii()
    assert sender.isprintable()
    assert " " not in sender
    assert sender == (f"tg:group:{update.chat.id}" if is_group else f"tg:{person}")
    # The part after the prefix tells people and groups apart.
    assert sender.startswith("tg:group:") is is_group


@pytest.mark.parametrize(
    "person", ["7", "-100500", "o9cq80abc@im.wechat", "wxid_a1", "@ann:host.org"]
)
def test_ids_of_real_services_are_used_unchanged(person: str) -> None:
    assert build_sender("wx", make_update(person)) == f"wx:{person}"


@pytest.mark.parametrize("person", ODD_IDS)
def test_other_ids_are_refused_and_not_rewritten(person: str) -> None:
    assert not has_valid_ids(Update("u", Chat("7"), Person(person, "Ann")))


@pytest.mark.parametrize(
    "prefix", ["", "TG", "t g", "tg:", "user", "cron", "event", "user~a", "тг"]
)
def test_a_reserved_or_malformed_prefix_is_refused(tmp_path: Path, prefix: str) -> None:
    class Odd(PIGEON_MODULE.Pigeon):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.prefix = prefix

    with pytest.raises(GatewayError, match="prefix"):
        check_prefix(prefix)
    with pytest.raises(GatewayError, match="prefix"):
        Gateway(tmp_path, Odd(), PIGEON_MODULE.GatewaySettings())


async def test_a_person_with_an_invalid_id_reaches_no_agent_even_on_the_list(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        old = Update("u0", Chat("7 "), Person("7 ", "Ann"), "from an earlier release")
        write_journal(w, UpdateReceived(old))
        async with w.run_gateway(allowed_users=("7", *ODD_IDS)):
            for person in ODD_IDS:
                w.server.add_message("!say leaked", person or "\t")
            w.server.add_message("hello")
            await w.wait_for_texts("heard: hello")
            await w.wait_until_idle()
        assert w.server.messages == w.server.messages_in("7")
        assert w.daemon is not None
        async with w.daemon.client() as client:
            conversations = (await client.list_conversations()).conversations
        assert [conversation.sender for conversation in conversations] == ["pg:7"]
