"""The allow-list, and pairing codes."""

from pathlib import Path

import pytest

from crabtalk.gateway import (
    Chat,
    GatewaySettings,
    PairingCode,
    Person,
    Update,
    load_settings,
    write_settings,
)
from crabtalk.gateway.access_control import MAX_STRANGERS, AccessControl
from crabtalk.gateway.pairing import LIFETIME_SECONDS, MAX_TRIES
from tests.gateway.gateway_world import open_gateway_world

# It waits for network traffic, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

ANN = Person("7", "Ann")


def make_update(text: str, person: Person = ANN, chat: Chat | None = None) -> Update:
    return Update("u1", chat or Chat(person.id), person, text)


class AccessClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class AccessSetup:
    """An AccessControl with a clock of its own."""

    def __init__(self, home: Path, *allowed: str) -> None:
        (home / "config").mkdir(parents=True)
        self.path = home / "config" / "pigeon.toml"
        self.clock = AccessClock()
        self.pairing = PairingCode(home, "pigeon", clock=self.clock)
        settings = GatewaySettings(allowed_users=allowed)
        self.access = AccessControl("pigeon", settings, self.path, self.pairing, clock=self.clock)


@pytest.mark.req("gateways.allow_list")
def test_an_empty_list_serves_no_one_and_says_how_to_be_added(home: Path) -> None:
    door = AccessSetup(home)
    assert not door.access.is_allowed(ANN, Chat("7"))
    rejection = door.access.handle_stranger(make_update("hello"))
    assert "crabtalk-pigeon pair" in rejection
    assert "add 7 to allowed_users in config/pigeon.toml" in rejection
    assert door.access.handle_stranger(make_update("hello")) == "", "once an hour is enough"
    door.clock.now += 3601
    assert door.access.handle_stranger(make_update("hello"))


@pytest.mark.req("gateways.allow_list")
def test_in_a_group_listed_people_and_members_of_listed_groups_are_served(home: Path) -> None:
    door = AccessSetup(home, "7", "group:-5")
    assert door.access.is_allowed(ANN, Chat("-6", is_group=True))
    assert not door.access.is_allowed(Person("8", "Bo"), Chat("-6", is_group=True))
    assert door.access.is_allowed(Person("8", "Bo"), Chat("-5", is_group=True))
    assert not door.access.is_allowed(Person("8", "Bo"), Chat("-5", is_group=False))
    assert '"group:-6"' in door.access.handle_stranger(
        make_update("hi", chat=Chat("-6", is_group=True))
    )


@pytest.mark.req("gateways.pairing")
def test_a_code_lets_one_person_in_once(home: Path) -> None:
    door = AccessSetup(home)
    code = door.pairing.create_code()
    file = home / "run" / "pigeon.pairing"
    assert file.stat().st_mode & 0o777 == 0o600
    assert code not in file.read_text()
    spaced = f"{code[:4].lower()} {code[4:].lower()}"
    assert "Welcome" in door.access.handle_stranger(make_update(spaced))
    assert door.access.is_allowed(ANN, Chat("7"))
    assert load_settings(door.path).allowed_users == ("7",)
    assert door.path.stat().st_mode & 0o777 == 0o600
    assert "Welcome" not in door.access.handle_stranger(make_update(code, Person("8", "Bo")))
    assert not door.access.is_allowed(Person("8", "Bo"), Chat("8"))


@pytest.mark.req("gateways.pairing")
def test_a_code_is_void_after_a_few_wrong_tries(home: Path) -> None:
    door = AccessSetup(home)
    code = door.pairing.create_code()
    assert door.access.handle_stranger(make_update("hello")), "words are no try"
    for _ in range(MAX_TRIES):
        assert "not the code" in door.access.handle_stranger(make_update("/start AAAABBBB"))
    assert not door.pairing.is_open
    assert "Welcome" not in door.access.handle_stranger(make_update(code))
    assert not door.access.is_allowed(ANN, Chat("7"))


@pytest.mark.req("gateways.pairing")
def test_a_code_expires_and_a_new_code_voids_the_old_one(home: Path) -> None:
    door = AccessSetup(home)
    old = door.pairing.create_code()
    new = door.pairing.create_code()
    assert not door.pairing.claim_code(old)
    door.clock.now += LIFETIME_SECONDS + 1
    assert not door.pairing.claim_code(new)


def test_a_code_works_after_the_start_command_and_never_in_a_group(home: Path) -> None:
    door = AccessSetup(home)
    code = door.pairing.create_code()
    assert "Welcome" not in door.access.handle_stranger(
        make_update(code, chat=Chat("-5", is_group=True))
    )
    assert "Welcome" in door.access.handle_stranger(make_update(f"/start {code}"))


def test_a_damaged_pairing_file_has_no_code(home: Path) -> None:
    door = AccessSetup(home)
    door.pairing.create_code()
    (home / "run" / "pigeon.pairing").write_text("[1]")
    assert not door.pairing.is_open
    assert not door.pairing.claim_code("")


@pytest.mark.req("gateways.bounds.strangers")
def test_the_number_of_remembered_strangers_is_bounded(home: Path) -> None:
    door = AccessSetup(home)
    for number in range(MAX_STRANGERS + 100):
        door.access.handle_stranger(make_update("hello", Person(str(number), "x")))
    assert len(door.access._notified_at) == MAX_STRANGERS


def test_an_edited_list_applies_at_once_and_a_broken_one_changes_nothing(home: Path) -> None:
    door = AccessSetup(home)
    door.path.write_text("allowed_users = [7]\n")
    assert door.access.is_allowed(ANN, Chat("7"))
    door.path.write_text("allowed_users = [7\n")
    assert door.access.is_allowed(ANN, Chat("7"))
    door.path.write_text("allowed_users = [8]  # Bo alone\n")
    assert not door.access.is_allowed(ANN, Chat("7"))


@pytest.mark.req("gateways.allow_list")
async def test_a_stranger_reaches_no_agent_until_the_code_is_sent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway(allowed_users=()):
        w.server.add_message("hello", "66")
        await w.server.wait_until(lambda: w.server.texts_in("66"))
        w.server.add_message("@twin hello", "66")
        w.server.add_message("/agents", "66")
        w.server.add_message("", "66", press="x:0:0")
        await w.wait_until(lambda: not w.server.pending)
        code = PairingCode(w.home, "pigeon").create_code()
        w.server.add_message(code, "66")
        await w.server.wait_until(lambda: "Welcome" in w.server.texts_in("66")[-1])
        assert len(w.server.texts_in("66")) == 2
        assert w.daemon is not None
        assert w.daemon.model.requests == []
        w.server.add_message("hello", "66")
        await w.server.wait_until(lambda: w.server.texts_in("66")[-1] == "heard: hello")
        await w.wait_until_idle()


@pytest.mark.req("gateways.pairing")
async def test_a_repeated_code_is_not_sent_to_an_agent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        write_settings(w.home / "config" / "pigeon.toml", {"allowed_users": [7]})
        code = PairingCode(w.home, "pigeon").create_code()
        for _ in range(2):  # the service repeats it, as if it was not acknowledged
            async with w.run_gateway(allowed_users=("7",)):
                w.server.add_message(code, "66", update="u66")
                await w.wait_until(lambda: not w.server.pending)
                w.server.add_message("!say still here", "7")
                await w.server.wait_until(lambda: w.server.texts_in("7")[-1:] == ["still here"])
                await w.wait_until_idle()
        assert len(w.server.texts_in("66")) == 1
        assert "Welcome" in w.server.texts_in("66")[0]
