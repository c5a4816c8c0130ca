"""PeerRegistry without processes: events in, effects out."""

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

from crabtalk.mcp.declarations import MASK, compute_fingerprint, mask_secrets
from crabtalk.mcp.messages import McpTool
from crabtalk.mcp.peers import (
    FIRST_DELAY,
    LONGEST_DELAY,
    STEADY_SECONDS,
    PeerEffect,
    PeerOwner,
    PeerRegistry,
    PeerStateChanged,
    PeerStatus,
    ScheduleIdleCheck,
    ScheduleRetry,
    StartPeer,
    StopPeer,
)
from crabtalk.storage import McpServerConfig

ECHO = (McpTool("echo"),)


def build_server(
    name: str = "beach", command: str = "beach-mcp", **settings: Any
) -> McpServerConfig:
    return McpServerConfig(name, command, **settings)


def list_starts(effects: list[PeerEffect]) -> list[int]:
    return [effect.number for effect in effects if isinstance(effect, StartPeer)]


def list_stops(effects: list[PeerEffect]) -> list[int]:
    return [effect.number for effect in effects if isinstance(effect, StopPeer)]


def list_states(effects: list[PeerEffect]) -> list[tuple[str, str, str]]:
    return [(e.agent, e.name, e.status.value) for e in effects if isinstance(e, PeerStateChanged)]


def connect_peer(peers: PeerRegistry, agent: str = "crab", *servers: McpServerConfig) -> int:
    """Declare servers and return the number of the start this caused."""
    (number,) = list_starts(peers.declare(agent, servers or [build_server()]))
    peers.handle_tools(number, ECHO, 0.0)
    return number


# ── Fingerprints ───────────────────────────────────────────────────────────────────────────────


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
def test_declarations_with_different_commands_or_environments_are_different_peers(
    other: dict[str, Any],
) -> None:
    given: dict[str, Any] = {"command": "beach-mcp", "args": (), "env": {"TOKEN": "a"}}
    assert compute_fingerprint(McpServerConfig("x", **given)) != compute_fingerprint(
        McpServerConfig("x", **{**given, **other})
    )


@pytest.mark.req("mcp.fingerprint")
def test_declarations_that_differ_in_their_authorisation_are_different_peers() -> None:
    one, other = (McpServerConfig("x", url="http://x/mcp", auth=auth) for auth in ("a", "b"))
    assert compute_fingerprint(one) != compute_fingerprint(other)


@pytest.mark.req("mcp.fingerprint")
def test_the_name_and_the_order_of_variables_do_not_matter_for_a_peer() -> None:
    one = McpServerConfig("x", "c", env={"A": "1", "B": "2"})
    other = McpServerConfig(
        "y", "c", env={"B": "2", "A": "1"}, auto_restart=False, idle_timeout=5.0
    )
    assert compute_fingerprint(one) == compute_fingerprint(other)


# ── Sharing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.shared")
def test_agents_that_declare_the_same_share_one_peer_until_the_last_of_them_leaves() -> None:
    peers = PeerRegistry()
    number = connect_peer(peers, "crab")
    joined = peers.declare("twin", [build_server("sand")])
    assert list_starts(joined) == []
    assert list_states(joined) == [("twin", "sand", "connected")]
    assert list_stops(peers.release("crab")) == []
    left = peers.release("twin")
    assert list_stops(left) == [number]
    assert list_states(left) == [("twin", "sand", "disconnected")]
    assert len(peers) == 0


@pytest.mark.req("mcp.rename")
def test_a_renamed_agent_keeps_its_peers() -> None:
    """Like the daemon, register the new name before the old one is dropped."""
    peers = PeerRegistry()
    connect_peer(peers, "crab")
    effects = peers.declare("hermit", [build_server()]) + peers.release("crab")
    assert (list_starts(effects), list_stops(effects)) == ([], [])
    assert list_states(effects) == [
        ("hermit", "beach", "connected"),
        ("crab", "beach", "disconnected"),
    ]


@pytest.mark.req("mcp.changed")
def test_a_changed_declaration_uses_the_old_peer_until_the_new_one_connects() -> None:
    peers = PeerRegistry()
    old = connect_peer(peers)
    changed = peers.declare("crab", [build_server(command="new-mcp")])
    (new,) = list_starts(changed)
    assert list_stops(changed) == []
    ((_, serving),) = peers.list_serving("crab")
    assert serving.number == old
    there = peers.handle_tools(new, ECHO, 1.0)
    assert list_stops(there) == [old]
    ((_, serving),) = peers.list_serving("crab")
    assert serving.number == new
    assert len(peers) == 1


@pytest.mark.req("mcp.changed")
def test_two_changes_in_a_row_leave_no_old_peer() -> None:
    peers = PeerRegistry()
    old = connect_peer(peers)
    (second,) = list_starts(peers.declare("crab", [build_server(command="second")]))
    changed = peers.declare("crab", [build_server(command="third")])
    (third,) = list_starts(changed)
    assert list_stops(changed) == [second]
    assert list_stops(peers.handle_lost(third, "no", 1.0)) == [third, old]
    assert len(peers) == 1


@pytest.mark.req("mcp.changed")
def test_a_declaration_that_is_changed_back_keeps_its_peer() -> None:
    peers = PeerRegistry()
    old = connect_peer(peers)
    (new,) = list_starts(peers.declare("crab", [build_server(command="new-mcp")]))
    back = peers.declare("crab", [build_server()])
    assert list_starts(back) == []
    assert list_stops(back) == [new]
    ((_, serving),) = peers.list_serving("crab")
    assert (serving.number, serving.status) == (old, PeerStatus.CONNECTED)
    assert len(peers) == 1


# ── Losing and retrying ─────────────────────────────────────────────────────────────────────────


def list_delays(effects: list[PeerEffect]) -> list[float]:
    return [effect.after for effect in effects if isinstance(effect, ScheduleRetry)]


@pytest.mark.req("mcp.restart")
def test_the_retry_delay_of_a_failing_peer_grows() -> None:
    peers = PeerRegistry()
    (number,) = list_starts(peers.declare("crab", [build_server()]))
    waited = []
    for _ in range(12):
        lost = peers.handle_lost(number, "no beach", 0.0)
        assert list_states(lost) == [("crab", "beach", "failed")]
        (retry,) = [effect for effect in lost if isinstance(effect, ScheduleRetry)]
        waited.append(retry.after)
        (number,) = list_starts(peers.handle_retry_due(retry.peer, retry.number))
    assert waited[:3] == [FIRST_DELAY, FIRST_DELAY * 2, FIRST_DELAY * 4]
    assert waited[-1] == LONGEST_DELAY
    assert waited == sorted(waited)


@pytest.mark.req("mcp.restart")
def test_only_a_peer_that_stayed_connected_for_a_while_starts_over_with_short_delays() -> None:
    peers = PeerRegistry()
    number = connect_peer(peers)
    lost = peers.handle_lost(number, "gone", 1.0)
    assert list_delays(lost) == [FIRST_DELAY]
    (number,) = list_starts(peers.handle_retry_due(compute_fingerprint(build_server()), number))
    peers.handle_tools(number, ECHO, 2.0)
    lost = peers.handle_lost(number, "gone", 3.0)
    assert list_delays(lost) == [FIRST_DELAY * 2]
    (number,) = list_starts(peers.handle_retry_due(compute_fingerprint(build_server()), number))
    peers.handle_tools(number, ECHO, 4.0)
    assert list_delays(peers.handle_lost(number, "gone", 4.0 + STEADY_SECONDS)) == [FIRST_DELAY]


@pytest.mark.req("mcp.restart")
def test_without_auto_restart_a_peer_stays_failed_until_it_is_declared_again() -> None:
    peers = PeerRegistry()
    mortal = build_server(auto_restart=False)
    number = connect_peer(peers, "crab", mortal)
    assert list_delays(peers.handle_lost(number, "gone", 1.0)) == []
    assert list_states(peers.declare("crab", [mortal])) == [("crab", "beach", "connecting")]


@pytest.mark.req("mcp.oauth")
def test_a_final_failure_is_not_retried_until_requested() -> None:
    peers = PeerRegistry()
    (number,) = list_starts(peers.declare("crab", [build_server()]))
    assert list_states(peers.handle_authorization(number, "open this")) == [
        ("crab", "beach", "connecting")
    ]
    assert list_delays(peers.handle_lost(number, "it was not allowed", 0.0, is_final=True)) == []
    assert list_states(peers.retry_failed()) == [("crab", "beach", "connecting")]


@pytest.mark.req("mcp.host.death")
def test_when_the_host_dies_all_peers_fail_and_are_retried() -> None:
    peers = PeerRegistry()
    connect_peer(peers, "crab", build_server(auto_restart=False))
    connect_peer(peers, "twin", build_server(command="other"))
    lost = peers.handle_host_lost("the host died", 1.0)
    assert list_states(lost) == [("crab", "beach", "failed"), ("twin", "beach", "failed")]
    assert list_stops(lost) == []
    assert list_delays(lost) == [FIRST_DELAY, FIRST_DELAY]


def test_messages_about_an_abandoned_start_are_ignored() -> None:
    peers = PeerRegistry()
    number = connect_peer(peers)
    peers.release("crab")
    assert peers.handle_tools(number, ECHO, 1.0) == []
    assert peers.handle_lost(number, "gone", 1.0) == []
    assert peers.handle_authorization(number, "open this") == []


@pytest.mark.req("mcp.secrets")
def test_the_error_of_a_peer_does_not_contain_its_credentials() -> None:
    secretive = build_server(env={"TOKEN": "s3cret-enough", "MODE": "dev"})
    peers = PeerRegistry()
    (number,) = list_starts(peers.declare("crab", [secretive]))
    peers.handle_lost(number, "bad token s3cret-enough in dev", 0.0)
    ((_, peer),) = peers.list_states()
    assert peer.error == f"bad token {MASK} in dev"
    bearer = McpServerConfig("x", url="http://x", auth="Bearer s3cret-enough")
    assert mask_secrets("s3cret-enough", bearer) == MASK


@pytest.mark.req("mcp.peers.bounded")
def test_a_server_above_the_limit_fails_with_advice() -> None:
    peers = PeerRegistry(most=1)
    connect_peer(peers)
    refused = peers.declare("twin", [build_server(command="one too many")])
    assert list_starts(refused) == []
    assert list_states(refused) == [("twin", "beach", "failed")]
    ((_, peer),) = peers.list_serving("twin")
    assert "mcp_peers" in peer.error
    assert len(list_starts(peers.release("crab") + peers.retry_failed())) == 1


# ── Idle peers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.idle")
def test_an_idle_peer_is_stopped_keeps_its_tools_and_restarts_on_demand() -> None:
    peers = PeerRegistry()
    idle = build_server(idle_timeout=60.0)
    (number,) = list_starts(peers.declare("crab", [idle]))
    (look,) = [e for e in peers.handle_tools(number, ECHO, 0.0) if isinstance(e, ScheduleIdleCheck)]
    assert look.after == 60.0
    ((_, peer),) = peers.list_serving("crab")
    peer.begin_call()
    busy = peers.check_idle(look.peer, 61.0)
    assert list_stops(busy) == []
    peer.end_call(70.0)
    again = peers.check_idle(look.peer, 100.0)
    assert [effect.after for effect in again if isinstance(effect, ScheduleIdleCheck)] == [30.0]
    stopped = peers.check_idle(look.peer, 130.0)
    assert list_stops(stopped) == [number]
    assert list_states(stopped) == [("crab", "beach", "disconnected")]
    assert peer.is_offered
    assert peer.tools == ECHO
    assert list_states(peers.wake_idle(look.peer)) == [("crab", "beach", "connecting")]
    assert peer.is_offered
    assert list_starts(peers.wake_idle(look.peer)) == [], "it is coming already"
    peers.handle_tools(peer.number, ECHO, 140.0)
    assert (peer.status, peer.is_idle) == (PeerStatus.CONNECTED, False)


@pytest.mark.req("mcp.idle")
def test_a_peer_runs_as_long_as_one_of_its_owners_has_no_idle_timeout() -> None:
    peers = PeerRegistry()
    (number,) = list_starts(peers.declare("crab", [build_server(idle_timeout=60.0)]))
    peers.declare("twin", [build_server()])
    assert not [
        e for e in peers.handle_tools(number, ECHO, 0.0) if isinstance(e, ScheduleIdleCheck)
    ]
    watched = peers.release("twin") + peers.declare("crab", [build_server(idle_timeout=60.0)])
    assert [e.after for e in watched if isinstance(e, ScheduleIdleCheck)] == [60.0]


# ── State machine ───────────────────────────────────────────────────────────────────────────────


class PeerRegistryMachine(RuleBasedStateMachine):
    """Any agents, declarations and events, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = PeerRegistry()
        self.now = 0.0
        self.running: set[int] = set()
        self.last_states: dict[PeerOwner, PeerStateChanged] = {}
        self.retries: list[ScheduleRetry] = []
        self.idle_checks: list[ScheduleIdleCheck] = []
        self.declared: dict[str, tuple[McpServerConfig, ...]] = {}

    def apply_effects(self, effects: list[PeerEffect]) -> None:
        for effect in effects:
            match effect:
                case StartPeer(number=number):
                    assert number not in self.running
                    self.running.add(number)
                case StopPeer(number=number):
                    self.running.discard(number)
                case PeerStateChanged():
                    self.last_states[PeerOwner(effect.agent, effect.name)] = effect
                case ScheduleRetry():
                    self.retries.append(effect)
                case ScheduleIdleCheck():
                    self.idle_checks.append(effect)

    @rule(
        agent=st.sampled_from(["crab", "twin", "owl"]),
        servers=st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.tuples(st.sampled_from("xyz"), st.booleans(), st.sampled_from([None, 5.0])),
        ),
    )
    def declare(self, agent: str, servers: dict[str, tuple[str, bool, float | None]]) -> None:
        declared_servers = tuple(
            McpServerConfig(name, command, auto_restart=restarts, idle_timeout=idle)
            for name, (command, restarts, idle) in servers.items()
        )
        self.declared[agent] = declared_servers
        self.apply_effects(self.peers.declare(agent, declared_servers))

    @rule(data=st.data(), fate=st.sampled_from(["offers", "lost", "final", "asking"]))
    def report_fate(self, data: st.DataObject, fate: str) -> None:
        number = data.draw(st.integers(1, max(self.running, default=1)))
        match fate:
            case "offers":
                self.apply_effects(self.peers.handle_tools(number, ECHO, self.now))
            case "asking":
                self.apply_effects(self.peers.handle_authorization(number, "open this"))
            case _:
                self.apply_effects(
                    self.peers.handle_lost(number, "gone", self.now, is_final=fate == "final")
                )

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        retries, self.retries = self.retries, []
        looks, self.idle_checks = self.idle_checks, []
        for retry in retries:
            self.apply_effects(self.peers.handle_retry_due(retry.peer, retry.number))
        for look in looks:
            self.apply_effects(self.peers.check_idle(look.peer, self.now))

    @rule()
    def host_dies(self) -> None:
        self.running.clear()
        self.apply_effects(self.peers.handle_host_lost("gone", self.now))

    @rule(command=st.sampled_from("xyz"))
    def is_called(self, command: str) -> None:
        if (peer := self.peers.get(compute_fingerprint(McpServerConfig("n", command)))) is not None:
            self.apply_effects(self.peers.wake_idle(peer.id))
            peer.begin_call()
            peer.end_call(self.now)

    @invariant()
    def what_runs_is_what_is_declared(self) -> None:
        wanted = {compute_fingerprint(one) for servers in self.declared.values() for one in servers}
        states = list(self.peers.list_states())
        assert {owner for owner, _ in states} == {
            PeerOwner(agent, one.name)
            for agent, servers in self.declared.items()
            for one in servers
        }
        assert {peer.id for _, peer in states} == wanted
        active = {
            peer.number
            for _, peer in states
            if peer.status in (PeerStatus.CONNECTING, PeerStatus.CONNECTED)
        }
        assert active <= self.running
        # Other running peers serve until their replacement connects.
        connecting = any(peer.status is PeerStatus.CONNECTING for _, peer in states)
        assert connecting or self.running == active

    @invariant()
    def subscribers_know_the_state(self) -> None:
        for owner, peer in self.peers.list_states():
            assert self.last_states[owner].status is peer.status
            assert self.last_states[owner].error == peer.error


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_the_running_peers_always_match_the_declarations(count: int) -> None:
    run_state_machine_as_test(
        PeerRegistryMachine, settings=settings(max_examples=count, stateful_step_count=40)
    )
