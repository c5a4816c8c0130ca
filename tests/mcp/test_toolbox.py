"""Toolbox: the names of servers' tools."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.mcp.messages import McpTool
from crabtalk.mcp.peers import Peer, PeerStatus
from crabtalk.mcp.toolbox import Toolbox, convert_to_vendor_name
from crabtalk.storage import McpServerConfig


def build_peer(id_: str, *names: str, status: PeerStatus = PeerStatus.CONNECTED) -> Peer:
    tools = tuple(McpTool(name) for name in names)
    return Peer(id_, McpServerConfig(id_, "c"), status=status, tools=tools)


def list_offered(box: Toolbox) -> list[tuple[str, str]]:
    """Return the offered names with their servers."""
    return [(known.name, known.peer) for known in box.offered]


@pytest.mark.req("mcp.names.clash")
def test_the_first_server_keeps_a_tool_name_and_others_get_their_full_name() -> None:
    box = Toolbox(
        [("a", build_peer("1", "dig", "bury")), ("b", build_peer("2", "dig"))], taken=["bash"]
    )
    assert list_offered(box) == [("dig", "1"), ("bury", "1"), ("b__dig", "2")]


@pytest.mark.req("mcp.names.built_in")
def test_a_built_in_tool_keeps_its_name() -> None:
    box = Toolbox([("a", build_peer("1", "bash"))], taken=["bash"])
    assert list_offered(box) == [("a__bash", "1")]
    assert box.find("bash") is None
    box = Toolbox([("a", build_peer("1", "bash"))], taken=["bash", "a__bash"])
    ((name, _),) = list_offered(box)
    assert name.startswith("a__bash__")
    assert box.find("a__bash") is None


@pytest.mark.req("mcp.names.full")
def test_a_full_name_always_means_that_tool() -> None:
    box = Toolbox([("a", build_peer("1", "dig")), ("b", build_peer("2", "dig"))], taken=[])
    found = [box.find(name) for name in ("dig", "a__dig", "b__dig", "c__dig")]
    assert [known and known.peer for known in found] == ["1", "1", "2", None]


@pytest.mark.req("mcp.names.vendors")
def test_names_that_vendors_refuse_are_converted() -> None:
    odd = ["repo/dig", "repo.dig", "dig " + "d" * 80, "копать"]
    box = Toolbox([("sand & sea", build_peer("1", *odd, "dig"))], taken=["dig"])
    names = [name for name, _ in list_offered(box)]
    assert len(set(names)) == len(odd) + 1
    for name, raw in zip(names, [*odd, "dig"], strict=True):
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        known = box.find(name)
        assert known is not None
        assert known.tool.name == raw
    assert box.find("repo/dig") is not None, "models may repeat what a server's texts say"


@pytest.mark.req("mcp.names.vendors")
@given(st.text(min_size=1))
def test_any_name_can_be_converted_for_vendors(name: str) -> None:
    made = convert_to_vendor_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made)
    assert made == name or made != convert_to_vendor_name(name + ".")


@pytest.mark.req("mcp.scope")
def test_an_agent_with_a_tool_list_is_offered_only_those_tools() -> None:
    serving = [("a", build_peer("1", "dig", "bury")), ("b", build_peer("2", "dig"))]
    box = Toolbox(serving, taken=[], wanted=["b__dig", "bury"])
    assert [pair for pair in list_offered(box) if pair[0]] == [("bury", "1"), ("b__dig", "2")]


@pytest.mark.req("mcp.tools.failed")
def test_a_tool_of_a_server_that_failed_is_found_but_not_offered() -> None:
    box = Toolbox([("a", build_peer("1", "dig", status=PeerStatus.FAILED))], taken=[])
    assert list_offered(box) == []
    assert box.find("dig") is not None
    other = Toolbox(
        [("a", build_peer("1", "dig", status=PeerStatus.FAILED)), ("b", build_peer("2", "dig"))],
        taken=[],
    )
    assert list_offered(other) == [("dig", "2")]


@pytest.mark.req("mcp.approval")
def test_a_tool_has_all_names_that_a_file_may_use() -> None:
    (known,) = Toolbox([("a", build_peer("1", "dig"))], taken=[]).offered
    assert known.names == ("a__dig", "dig", "mcp:dig", "mcp:a__dig")
