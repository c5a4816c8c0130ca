"""Agent bindings: a chat talks only to the agents its owner allows."""

from pathlib import Path
from typing import Any

import pytest

from crabtalk.gateway import GatewayError, GatewaySettings, load_settings
from crabtalk.gateway.agent_bindings import AgentBindings
from crabtalk.gateway.chat_service import Chat, Person, Update
from crabtalk.gateway.journal_records import AgentChosen
from crabtalk.gateway.settings import ChatSettings
from tests.daemon.in_process_daemon import AGENTS
from tests.gateway.approval_daemon import run_approval_daemon
from tests.gateway.gateway_world import GatewayWorld, open_gateway_world
from tests.gateway.test_recovery import make_received, make_request, write_journal

pytestmark = pytest.mark.one_loop

GUARDED = {**AGENTS, "guarded": 'prompt = "You are guarded."\ntools = ["recall"]\n'}
NOT_HERE = "You cannot talk to {} in this chat; /agents lists who answers here."


def make_update(person: str = "7", chat: str = "", *, is_group: bool = False) -> Update:
    return Update("u", Chat(chat or person, is_group), Person(person, "Ann"))


async def list_senders(w: GatewayWorld, agent: str) -> list[str]:
    assert w.daemon is not None
    async with w.daemon.client() as client:
        conversations = (await client.list_conversations(agent=agent)).conversations
        return [conversation.sender for conversation in conversations]


# ── In a chat ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.gateways.agents")
async def test_a_chat_cannot_leave_the_agent_its_owner_chose(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, agents=GUARDED) as w:
        async with w.run_gateway(agent="guarded", agents=()):
            w.server.add_message("/agents")
            await w.wait_for_texts("Agents:\n- guarded (here)")
            for words in ("/agent crab", "@crab !say leaked", "/guest crab !say leaked"):
                w.server.messages.clear()
                w.server.add_message(words)
                await w.wait_for_texts(NOT_HERE.format("crab"))
            w.server.add_message("/agent ghost")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == NOT_HERE.format("ghost"))
            w.server.add_message("hello")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello")
            await w.wait_until_idle()
        assert await list_senders(w, "guarded") == ["pg:7"]
        assert await list_senders(w, "crab") == []


@pytest.mark.req("trust.gateways.agents")
async def test_a_guest_that_is_not_allowed_cannot_join_a_turn(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, agents=GUARDED) as w:
        async with w.run_gateway(agent="guarded", agents=()):
            w.server.add_message("!say So far.\n!wait\n!say The end.")
            await w.wait_for_texts("So far.")
            w.server.add_message("@crab !say leaked")
            assert w.daemon is not None
            await w.daemon.model.until_waiting()
            w.daemon.model.release()
            await w.wait_for_texts("So far.The end.", NOT_HERE.format("crab"))
            await w.wait_until_idle()
        assert await w.list_messages("pg:7", "guarded") == [
            ("user", "!say So far.\n!wait\n!say The end."),
            ("assistant", "So far.The end."),
        ]


@pytest.mark.req("trust.gateways.agents.stored")
async def test_a_chosen_agent_that_is_no_longer_allowed_is_replaced_and_announced_once(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, agents=GUARDED) as w:
        write_journal(w, AgentChosen("7", "crab"))
        async with w.run_gateway(agent="guarded", agents=()):
            w.server.add_message("hello")
            notice = "This chat cannot talk to crab any more. guarded answers now."
            await w.wait_for_texts(notice, "heard: hello")
            w.server.add_message("hello")
            await w.wait_for_texts(notice, "heard: hello", "heard: hello")
            await w.wait_until_idle()
        async with w.run_gateway(agent="guarded", agents=()):
            w.server.add_message("/agents")
            await w.server.wait_until(
                lambda: w.server.texts_in()[-1] == "Agents:\n- guarded (here)"
            )
            await w.wait_until_idle()
        assert len(w.server.texts_in()) == 4
        assert await list_senders(w, "crab") == []


@pytest.mark.req("trust.gateways.agents.stored")
@pytest.mark.parametrize(
    "stored",
    [
        (make_received("u1", "hello"), make_request("u1", "hello")),
        (
            make_received("u1", "@crab hello"),
            make_request("u1", "hello", agent="guarded", guest="crab"),
        ),
    ],
)
async def test_a_waiting_turn_does_not_begin_if_its_agent_is_no_longer_allowed(
    tmp_path: Path, stored: tuple[Any, ...]
) -> None:
    async with open_gateway_world(tmp_path, agents=GUARDED) as w:
        write_journal(w, *stored)
        async with w.run_gateway(agent="guarded", agents=()):
            await w.wait_for_texts(NOT_HERE.format("crab"))
            await w.wait_until_idle()
        assert await list_senders(w, "crab") == []
        assert w.daemon is not None
        assert w.daemon.model.requests == []


@pytest.mark.req("trust.gateways.owners")
async def test_only_an_owners_own_chat_may_talk_to_every_agent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, agents=GUARDED) as w:
        async with w.run_gateway(agent="guarded", agents=(), owners=("7",)):
            w.server.add_message("/agent crab")
            w.server.add_message("hello")
            await w.wait_for_texts("You are talking to crab now.", "heard: hello")
            w.server.add_message("/agent crab", "8")
            await w.wait_for_texts(NOT_HERE.format("crab"), chat="8")
            # All members of a group would get what its owner unlocks.
            w.server.add_message("/agent crab", "7", chat="-5", is_group=True)
            await w.wait_for_texts(NOT_HERE.format("crab"), chat="-5")
            await w.wait_until_idle()
        assert await list_senders(w, "crab") == ["pg:7"]


@pytest.mark.req("trust.gateways.mode")
async def test_only_the_owner_can_see_and_set_the_mode(tmp_path: Path) -> None:
    async with (
        open_gateway_world(tmp_path, has_daemon=False) as w,
        run_approval_daemon(w.home) as daemon,
    ):
        async with w.run_gateway(owners=("7",)):
            w.server.add_message("/mode")
            await w.wait_for_texts("The mode is ask (as the agent's file says).")
            w.server.messages.clear()
            w.server.add_message("/mode Plan")
            await w.wait_for_texts("The mode is plan (set for this conversation).")
            assert daemon.modes == {("crab", "pg:7"): "plan"}
            w.server.messages.clear()
            w.server.add_message("/mode default")
            await w.wait_for_texts("The mode is ask (as the agent's file says).")
            w.server.add_message("/mode yolo")
            await w.server.wait_until(lambda: "There is no mode yolo" in w.server.texts_in()[-1])
            assert "accept-edits" in w.server.texts_in()[-1]
            w.server.add_message("/help")
            await w.server.wait_until(lambda: "/mode NAME" in w.server.texts_in()[-1])
            for words in ("/mode", "/mode auto"):
                w.server.messages.clear()
                w.server.add_message(words, "8")
                await w.wait_for_texts(
                    "Only the owner of this program can see or set the mode.", chat="8"
                )
            w.server.add_message("/help", "8")
            await w.server.wait_until(lambda: "/agents" in w.server.texts_in("8")[-1])
            assert "/mode" not in w.server.texts_in("8")[-1]
            await w.wait_until_idle()
        assert daemon.modes == {("crab", "pg:7"): ""}


# ── The settings ───────────────────────────────────────────────────────────────────────────────


def list_allowed_agents(settings: GatewaySettings, update: Update) -> list[str]:
    bindings = AgentBindings(settings)
    return [name for name in ("crab", "guarded", "twin", "") if bindings.is_allowed(update, name)]


@pytest.mark.req("trust.gateways.agents")
def test_each_chat_has_the_agents_of_its_table_or_the_general_ones() -> None:
    chats = {
        "8": ChatSettings(("crab", "twin"), "twin"),
        "group:-5": ChatSettings(("guarded",)),
        "-6": ChatSettings(("crab",)),
        "-6/2": ChatSettings(("twin",)),
    }
    settings = GatewaySettings(agent="guarded", agents=("guarded", "twin"), chats=chats)
    bindings = AgentBindings(settings)

    def bindings_of(update: Update) -> tuple[list[str], str]:
        return list_allowed_agents(settings, update), bindings.choose_default_agent(update)

    assert bindings_of(make_update("7")) == (["guarded", "twin"], "guarded")
    assert bindings_of(make_update("8")) == (["crab", "twin"], "twin")
    assert bindings_of(make_update("7", "-5", is_group=True)) == (["guarded"], "guarded")
    assert bindings_of(make_update("8", "-5", is_group=True)) == (["guarded"], "guarded")
    assert bindings_of(make_update("7", "-6", is_group=True)) == (["crab"], "crab")
    assert bindings_of(make_update("7", "-6/1", is_group=True)) == (["crab"], "crab")
    assert bindings_of(make_update("7", "-6/2", is_group=True)) == (["twin"], "twin")
    assert bindings_of(make_update("7", "-7", is_group=True)) == (["guarded", "twin"], "guarded")


def test_by_default_there_is_one_agent() -> None:
    assert list_allowed_agents(GatewaySettings(), make_update()) == ["crab"]
    assert list_allowed_agents(GatewaySettings(agent="guarded"), make_update()) == ["guarded"]
    # An agent that is not listed never answers, however the settings were made.
    settings = GatewaySettings(agent="crab", agents=("guarded",))
    assert AgentBindings(settings).choose_default_agent(make_update()) == "guarded"


@pytest.mark.req("trust.gateways.owners")
def test_a_group_counts_as_an_owners_chat_only_if_it_is_listed_itself() -> None:
    bindings = AgentBindings(GatewaySettings(owners=("7", "group:-5")))
    assert bindings.is_owner(make_update("7"))
    assert not bindings.is_owner(make_update("8"))
    assert bindings.is_owner(make_update("8", "-5", is_group=True))
    assert not bindings.is_owner(make_update("7", "-6", is_group=True))
    assert bindings.may_approve(make_update("7", "-6", is_group=True))
    assert not bindings.may_approve(make_update("8", "-6", is_group=True))


@pytest.mark.req("trust.gateways.owners")
def test_members_of_a_listed_group_cannot_approve_or_set_the_mode() -> None:
    bindings = AgentBindings(GatewaySettings(owners=("7", "group:-5")))
    for person, is_owner in (("7", True), ("8", False)):
        update = make_update(person, "-5", is_group=True)
        assert bindings.is_allowed(update, "crab")
        assert bindings.may_approve(update) is is_owner
        assert bindings.may_set_mode(update) is is_owner
    assert not bindings.may_set_mode(make_update("7", "-6", is_group=True))
    assert bindings.may_set_mode(make_update("7", "7"))


@pytest.mark.req("trust.gateways.agents")
def test_the_settings_file_names_the_agents(tmp_path: Path) -> None:
    path = tmp_path / "pigeon.toml"
    path.write_text(
        'agents = ["guarded", "crab"]\nowners = [7]\n'
        '[chats."8"]\nagents = ["crab"]\n[chats."group:-5"]\nagent = "guarded"\n'
    )
    settings = load_settings(path)
    assert (settings.agent, settings.agents, settings.owners) == (
        "guarded",
        ("guarded", "crab"),
        ("7",),
    )
    assert settings.chats == {
        "8": ChatSettings(("crab",), "crab"),
        "group:-5": ChatSettings(("guarded",), "guarded"),
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("agents = []", "agents must be a list of names"),
        ("agents = [1]", "agents must be a list of names"),
        ("agents = 'crab'", "agents must be a list of names"),
        ("agent = 'crab'\nagents = ['guarded']", "agent is 'crab', which agents does not list"),
        ("owners = [true]", "owners has True, which is no id"),
        ("chats = 3", "chats must be tables"),
        ("[chats]\n7 = 'crab'", r'\[chats."7"\]: write it as a table'),
        ("[chats.'7']\nagnets = ['crab']", r'\[chats."7"\]: agnets means nothing here'),
        ("[chats.'7']\nagents = []", r'\[chats."7"\]: agents must be a list'),
    ],
)
def test_a_mistake_is_reported(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "pigeon.toml"
    path.write_text(text)
    with pytest.raises(GatewayError, match=complaint):
        load_settings(path)
