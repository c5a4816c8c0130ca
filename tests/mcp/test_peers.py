"""The bookkeeping of peers, without a process: what happened goes in, what follows comes out."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from crabtalk.mcp.declaration import MASK, fingerprint, without_secrets
from crabtalk.mcp.messages import McpTool
from crabtalk.mcp.peers import (
    FIRST_DELAY,
    LONGEST_DELAY,
    STEADY,
    Effect,
    Happened,
    Look,
    Owner,
    Peers,
    Retry,
    Start,
    Status,
    Stop,
)
from crabtalk.storage import McpServer

ECHO = (McpTool("echo"),)


def server(name: str = "beach", command: str = "beach-mcp", **settings: Any) -> McpServer:
    return McpServer(name, command, **settings)


def starts(effects: list[Effect]) -> list[int]:
    return [effect.number for effect in effects if isinstance(effect, Start)]


def stops(effects: list[Effect]) -> list[int]:
    return [effect.number for effect in effects if isinstance(effect, Stop)]


def told(effects: list[Effect]) -> list[tuple[str, str, str]]:
    return [(e.agent, e.name, e.status.value) for e in effects if isinstance(e, Happened)]


def connected(peers: Peers, agent: str = "crab", *servers: McpServer) -> int:
    """The number of the start that came of declaring them."""
    (number,) = starts(peers.declare(agent, servers or [server()]))
    peers.offers(number, ECHO, 0.0)
    return number


# ── Who means the same ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.fingerprint")
@pytest.mark.parametrize(
    "other",
    [
        {"command": "other-mcp"},
        {"args": ("-v",)},
        {"env": {"TOKEN": "b"}},
        {"url": "http://x/mcp"},
    ],
)
def test_declarations_that_differ_in_what_a_process_sees_are_different_peers(
    other: dict[str, Any],
) -> None:
    given: dict[str, Any] = {"command": "beach-mcp", "args": (), "env": {"TOKEN": "a"}}
    assert fingerprint(McpServer("x", **given)) != fingerprint(McpServer("x", **{**given, **other}))


@pytest.mark.req("mcp.fingerprint")
def test_declarations_that_differ_in_their_authorisation_are_different_peers() -> None:
    one, other = (McpServer("x", url="http://x/mcp", auth=auth) for auth in ("a", "b"))
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.req("mcp.fingerprint")
def test_neither_its_name_nor_the_order_of_its_environment_makes_a_peer_another() -> None:
    one = McpServer("x", "c", env={"A": "1", "B": "2"})
    other = McpServer("y", "c", env={"B": "2", "A": "1"}, auto_restart=False, idle_timeout=5.0)
    assert fingerprint(one) == fingerprint(other)


# ── Sharing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.shared")
def test_agents_that_declare_the_same_share_one_peer_until_the_last_of_them_leaves() -> None:
    peers = Peers()
    number = connected(peers, "crab")
    joined = peers.declare("twin", [server("sand")])
    assert starts(joined) == []
    assert told(joined) == [("twin", "sand", "connected")]
    assert stops(peers.release("crab")) == []
    left = peers.release("twin")
    assert stops(left) == [number]
    assert told(left) == [("twin", "sand", "disconnected")]
    assert len(peers) == 0


@pytest.mark.req("mcp.rename")
def test_an_agent_that_is_called_something_else_keeps_its_peers() -> None:
    """As the daemon renames: the new name is registered before the old one is dropped."""
    peers = Peers()
    connected(peers, "crab")
    effects = peers.declare("hermit", [server()]) + peers.release("crab")
    assert (starts(effects), stops(effects)) == ([], [])
    assert told(effects) == [("hermit", "beach", "connected"), ("crab", "beach", "disconnected")]


@pytest.mark.req("mcp.changed")
def test_a_changed_declaration_serves_from_the_old_peer_until_the_new_one_is_there() -> None:
    peers = Peers()
    old = connected(peers)
    changed = peers.declare("crab", [server(command="new-mcp")])
    (new,) = starts(changed)
    assert stops(changed) == []
    ((_, serving),) = peers.serving("crab")
    assert serving.number == old
    there = peers.offers(new, ECHO, 1.0)
    assert stops(there) == [old]
    ((_, serving),) = peers.serving("crab")
    assert serving.number == new
    assert len(peers) == 1


@pytest.mark.req("mcp.changed")
def test_of_declarations_changed_twice_in_a_row_none_is_left_behind() -> None:
    peers = Peers()
    old = connected(peers)
    (second,) = starts(peers.declare("crab", [server(command="second")]))
    changed = peers.declare("crab", [server(command="third")])
    (third,) = starts(changed)
    assert stops(changed) == [second]
    assert stops(peers.lost(third, "no", 1.0)) == [third, old]
    assert len(peers) == 1


@pytest.mark.req("mcp.changed")
def test_a_declaration_that_is_changed_back_has_its_peer_as_it_was() -> None:
    peers = Peers()
    old = connected(peers)
    (new,) = starts(peers.declare("crab", [server(command="new-mcp")]))
    back = peers.declare("crab", [server()])
    assert starts(back) == []
    assert stops(back) == [new]
    ((_, serving),) = peers.serving("crab")
    assert (serving.number, serving.status) == (old, Status.CONNECTED)
    assert len(peers) == 1


# ── Losing and retrying ─────────────────────────────────────────────────────────────────────────


def delays(effects: list[Effect]) -> list[float]:
    return [effect.after for effect in effects if isinstance(effect, Retry)]


@pytest.mark.req("mcp.restart")
def test_a_peer_that_keeps_failing_is_tried_again_ever_more_rarely() -> None:
    peers = Peers()
    (number,) = starts(peers.declare("crab", [server()]))
    waited = []
    for _ in range(12):
        lost = peers.lost(number, "no beach", 0.0)
        assert told(lost) == [("crab", "beach", "failed")]
        (retry,) = [effect for effect in lost if isinstance(effect, Retry)]
        waited.append(retry.after)
        (number,) = starts(peers.due(retry.peer, retry.number))
    assert waited[:3] == [FIRST_DELAY, FIRST_DELAY * 2, FIRST_DELAY * 4]
    assert waited[-1] == LONGEST_DELAY
    assert waited == sorted(waited)


@pytest.mark.req("mcp.restart")
def test_only_a_peer_that_stayed_connected_for_a_while_starts_over_with_short_delays() -> None:
    peers = Peers()
    number = connected(peers)
    lost = peers.lost(number, "gone", 1.0)
    assert delays(lost) == [FIRST_DELAY]
    (number,) = starts(peers.due(fingerprint(server()), number))
    peers.offers(number, ECHO, 2.0)
    lost = peers.lost(number, "gone", 3.0)
    assert delays(lost) == [FIRST_DELAY * 2]
    (number,) = starts(peers.due(fingerprint(server()), number))
    peers.offers(number, ECHO, 4.0)
    assert delays(peers.lost(number, "gone", 4.0 + STEADY)) == [FIRST_DELAY]


@pytest.mark.req("mcp.restart")
def test_without_auto_restart_a_peer_stays_failed_until_it_is_declared_again() -> None:
    peers = Peers()
    mortal = server(auto_restart=False)
    number = connected(peers, "crab", mortal)
    assert delays(peers.lost(number, "gone", 1.0)) == []
    assert told(peers.declare("crab", [mortal])) == [("crab", "beach", "connecting")]


@pytest.mark.req("mcp.oauth")
def test_what_only_a_person_can_mend_is_not_tried_again_until_somebody_says_so() -> None:
    peers = Peers()
    (number,) = starts(peers.declare("crab", [server()]))
    assert told(peers.asking(number, "open this")) == [("crab", "beach", "connecting")]
    assert delays(peers.lost(number, "nobody allowed it", 0.0, is_final=True)) == []
    assert told(peers.retry()) == [("crab", "beach", "connecting")]


@pytest.mark.req("mcp.host.death")
def test_when_the_host_dies_every_peer_has_failed_and_is_tried_again() -> None:
    peers = Peers()
    connected(peers, "crab", server(auto_restart=False))
    connected(peers, "twin", server(command="other"))
    lost = peers.host_lost("the host died", 1.0)
    assert told(lost) == [("crab", "beach", "failed"), ("twin", "beach", "failed")]
    assert stops(lost) == []
    assert delays(lost) == [FIRST_DELAY, FIRST_DELAY]


def test_what_is_said_of_a_start_that_was_given_up_is_not_heard() -> None:
    peers = Peers()
    number = connected(peers)
    peers.release("crab")
    assert peers.offers(number, ECHO, 1.0) == []
    assert peers.lost(number, "gone", 1.0) == []
    assert peers.asking(number, "open this") == []


@pytest.mark.req("mcp.secrets")
def test_why_a_peer_failed_does_not_repeat_what_it_was_told_in_confidence() -> None:
    secretive = server(env={"TOKEN": "s3cret-enough", "MODE": "dev"})
    peers = Peers()
    (number,) = starts(peers.declare("crab", [secretive]))
    peers.lost(number, "bad token s3cret-enough in dev", 0.0)
    ((_, peer),) = peers.states()
    assert peer.error == f"bad token {MASK} in dev"
    bearer = McpServer("x", url="http://x", auth="Bearer s3cret-enough")
    assert without_secrets("s3cret-enough", bearer) == MASK


@pytest.mark.req("mcp.peers.bounded")
def test_past_the_bound_a_declared_server_fails_with_what_to_do() -> None:
    peers = Peers(most=1)
    connected(peers)
    refused = peers.declare("twin", [server(command="one too many")])
    assert starts(refused) == []
    assert told(refused) == [("twin", "beach", "failed")]
    ((_, peer),) = peers.serving("twin")
    assert "mcp_peers" in peer.error
    assert len(starts(peers.release("crab") + peers.retry())) == 1


# ── Want of use ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.idle")
def test_a_peer_nobody_uses_is_stopped_keeps_its_tools_and_comes_back_when_wanted() -> None:
    peers = Peers()
    idle = server(idle_timeout=60.0)
    (number,) = starts(peers.declare("crab", [idle]))
    (look,) = [e for e in peers.offers(number, ECHO, 0.0) if isinstance(e, Look)]
    assert look.after == 60.0
    ((_, peer),) = peers.serving("crab")
    peer.begun()
    busy = peers.unused(look.peer, 61.0)
    assert stops(busy) == []
    peer.ended(70.0)
    again = peers.unused(look.peer, 100.0)
    assert [effect.after for effect in again if isinstance(effect, Look)] == [30.0]
    stopped = peers.unused(look.peer, 130.0)
    assert stops(stopped) == [number]
    assert told(stopped) == [("crab", "beach", "disconnected")]
    assert peer.is_offered
    assert peer.tools == ECHO
    assert told(peers.wanted(look.peer)) == [("crab", "beach", "connecting")]
    assert peer.is_offered
    assert starts(peers.wanted(look.peer)) == [], "it is coming already"
    peers.offers(peer.number, ECHO, 140.0)
    assert (peer.status, peer.is_idle) == (Status.CONNECTED, False)


@pytest.mark.req("mcp.idle")
def test_a_peer_is_kept_as_long_as_one_of_its_owners_wants_it_kept() -> None:
    peers = Peers()
    (number,) = starts(peers.declare("crab", [server(idle_timeout=60.0)]))
    peers.declare("twin", [server()])
    assert not [e for e in peers.offers(number, ECHO, 0.0) if isinstance(e, Look)]
    watched = peers.release("twin") + peers.declare("crab", [server(idle_timeout=60.0)])
    assert [e.after for e in watched if isinstance(e, Look)] == [60.0]


# ── Whatever happens ────────────────────────────────────────────────────────────────────────────


class Life(RuleBasedStateMachine):
    """Any agents, any declarations, any fate."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = Peers()
        self.now = 0.0
        self.running: set[int] = set()
        self.heard: dict[Owner, Happened] = {}
        self.retries: list[Retry] = []
        self.looks: list[Look] = []
        self.declared: dict[str, tuple[McpServer, ...]] = {}

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(number=number):
                    assert number not in self.running
                    self.running.add(number)
                case Stop(number=number):
                    self.running.discard(number)
                case Happened():
                    self.heard[Owner(effect.agent, effect.name)] = effect
                case Retry():
                    self.retries.append(effect)
                case Look():
                    self.looks.append(effect)

    @rule(
        agent=st.sampled_from(["crab", "twin", "owl"]),
        servers=st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.tuples(st.sampled_from("xyz"), st.booleans(), st.sampled_from([None, 5.0])),
        ),
    )
    def declare(self, agent: str, servers: dict[str, tuple[str, bool, float | None]]) -> None:
        made = tuple(
            McpServer(name, command, auto_restart=restarts, idle_timeout=idle)
            for name, (command, restarts, idle) in servers.items()
        )
        self.declared[agent] = made
        self.do(self.peers.declare(agent, made))

    @rule(data=st.data(), fate=st.sampled_from(["offers", "lost", "final", "asking"]))
    def happens(self, data: st.DataObject, fate: str) -> None:
        number = data.draw(st.integers(1, max(self.running, default=1)))
        match fate:
            case "offers":
                self.do(self.peers.offers(number, ECHO, self.now))
            case "asking":
                self.do(self.peers.asking(number, "open this"))
            case _:
                self.do(self.peers.lost(number, "gone", self.now, is_final=fate == "final"))

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        retries, self.retries = self.retries, []
        looks, self.looks = self.looks, []
        for retry in retries:
            self.do(self.peers.due(retry.peer, retry.number))
        for look in looks:
            self.do(self.peers.unused(look.peer, self.now))

    @rule()
    def host_dies(self) -> None:
        self.running.clear()
        self.do(self.peers.host_lost("gone", self.now))

    @rule(command=st.sampled_from("xyz"))
    def is_called(self, command: str) -> None:
        if (peer := self.peers.get(fingerprint(McpServer("n", command)))) is not None:
            self.do(self.peers.wanted(peer.id))
            peer.begun()
            peer.ended(self.now)

    @invariant()
    def what_runs_is_what_is_declared(self) -> None:
        wanted = {fingerprint(one) for servers in self.declared.values() for one in servers}
        states = list(self.peers.states())
        assert {owner for owner, _ in states} == {
            Owner(agent, one.name) for agent, servers in self.declared.items() for one in servers
        }
        assert {peer.id for _, peer in states} == wanted
        active = {
            peer.number
            for _, peer in states
            if peer.status in (Status.CONNECTING, Status.CONNECTED)
        }
        assert active <= self.running
        # What else runs serves until its successor is there.
        connecting = any(peer.status is Status.CONNECTING for _, peer in states)
        assert connecting or self.running == active

    @invariant()
    def whoever_listens_knows_the_state(self) -> None:
        for owner, peer in self.peers.states():
            assert self.heard[owner].status is peer.status
            assert self.heard[owner].error == peer.error


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_whatever_happens_what_runs_is_what_is_declared(count: int) -> None:
    run_state_machine_as_test(Life, settings=settings(max_examples=count, stateful_step_count=40))
