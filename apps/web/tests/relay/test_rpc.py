"""RPC: devices call gateways, and never wait for an absent one."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import RelayWorld, SocketListener, open_relay_world
from crabtalk_web.relay import RelayLimits


async def serve_method(gateway: SocketListener, method: str, answer: Any) -> list[Any]:
    """Register a method that answers with `answer`; return its requests."""
    requests: list[Any] = []

    async def on_request(request: Any) -> Any:
        requests.append(request)
        return await answer(request)

    gateway.io.on("rpc-request", on_request)
    await gateway.emit("rpc-register", {"method": method})
    await gateway.wait_for(lambda name, it: name == "rpc-registered" and it["method"] == method)
    return requests


async def echo_params(request: Any) -> Any:
    return request["params"]


async def connect_both_sides(world: RelayWorld) -> tuple[SocketListener, SocketListener, str]:
    ada = await world.create_user()
    session = await ada.create_session()
    gateway = await ada.connect(clientType="session-scoped", sessionId=session)
    return await ada.connect(), gateway, session


@pytest.mark.req("relay.rpc.call")
async def test_a_call_reaches_the_registered_socket_and_its_answer_returns(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        phone, gateway, session = await connect_both_sides(world)
        method = f"{session}:abort"
        requests = await serve_method(gateway, method, echo_params)
        answer = await phone.call("rpc-call", {"method": method, "params": "c2VhbGVk"})
        assert answer == {"ok": True, "result": "c2VhbGVk"}
        assert requests == [{"method": method, "params": "c2VhbGVk"}]


@pytest.mark.req("relay.rpc.absent")
@pytest.mark.clock
async def test_a_call_to_an_unregistered_method_fails_at_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(rpc_absent=30)) as world:
        phone = await (await world.create_user()).connect()
        start = time.monotonic()
        answer = await phone.call("rpc-call", {"method": "none:abort", "params": ""})
        assert answer == {"ok": False, "error": "RPC method not available"}
        assert time.monotonic() - start < 5


@pytest.mark.req("relay.rpc.absent")
async def test_a_call_waits_a_moment_for_a_reconnecting_target(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(rpc_absent=30)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        method = f"{session}:abort"
        gateway = await ada.connect(clientType="session-scoped", sessionId=session)
        await serve_method(gateway, method, echo_params)
        await gateway.io.disconnect()
        while world.relay.statistics()["sockets"] > 1:
            await asyncio.sleep(0)
        call = asyncio.ensure_future(phone.call("rpc-call", {"method": method, "params": "eA=="}))
        reconnected = await ada.connect(clientType="session-scoped", sessionId=session)
        assert not call.done()
        await serve_method(reconnected, method, echo_params)
        assert await call == {"ok": True, "result": "eA=="}


@pytest.mark.req("relay.rpc.absent")
async def test_a_call_waits_no_longer_than_that(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(rpc_absent=0.1)) as world:
        phone, _, session = await connect_both_sides(world)
        answer = await phone.call("rpc-call", {"method": f"{session}:none", "params": ""})
        assert answer == {"ok": False, "error": "RPC method not available"}


@pytest.mark.req("relay.rpc.gone")
async def test_a_call_fails_when_the_other_side_leaves(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        phone, gateway, session = await connect_both_sides(world)
        was_called = asyncio.Event()

        async def never(_: Any) -> None:
            was_called.set()
            await asyncio.Event().wait()

        await serve_method(gateway, f"{session}:slow", never)
        call = asyncio.ensure_future(
            phone.call("rpc-call", {"method": f"{session}:slow", "params": ""})
        )
        await was_called.wait()
        # Other events are handled meanwhile.
        assert await phone.call("ping", {}) == {}
        await gateway.io.disconnect()
        assert "left before it answered" in (await call)["error"]


@pytest.mark.req("relay.rpc.timeout")
async def test_a_call_times_out(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(rpc_timeout=0.05)) as world:
        phone, gateway, session = await connect_both_sides(world)

        async def never(_: Any) -> None:
            await asyncio.Event().wait()

        await serve_method(gateway, f"{session}:slow", never)
        answer = await phone.call("rpc-call", {"method": f"{session}:slow", "params": ""})
        assert answer["ok"] is False
        assert "no answer" in answer["error"]


@pytest.mark.req("relay.rpc.same")
async def test_a_socket_cannot_call_itself(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        phone, _, session = await connect_both_sides(world)
        await serve_method(phone, f"{session}:x", echo_params)
        answer = await phone.call("rpc-call", {"method": f"{session}:x", "params": ""})
        assert answer == {"ok": False, "error": "Cannot call RPC on the same socket"}


@pytest.mark.req("relay.rpc.newest")
async def test_the_last_registered_socket_is_called(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        phone, old, new = await ada.connect(), await ada.connect(), await ada.connect()
        first, second = [
            await serve_method(each, f"{session}:x", echo_params) for each in (old, new)
        ]
        await phone.call("rpc-call", {"method": f"{session}:x", "params": ""})
        assert (len(first), len(second)) == (0, 1)
        await new.emit("rpc-unregister", {"method": f"{session}:x"})
        await new.wait_for(lambda name, _: name == "rpc-unregistered")
        await phone.call("rpc-call", {"method": f"{session}:x", "params": ""})
        assert (len(first), len(second)) == (1, 1)


@pytest.mark.req("relay.owner")
async def test_methods_belong_to_one_account(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        _, gateway, session = await connect_both_sides(world)
        requests = await serve_method(gateway, f"{session}:x", echo_params)
        eve = await (await world.create_user()).connect()
        answer = await eve.call("rpc-call", {"method": f"{session}:x", "params": ""})
        assert answer["ok"] is False
        assert requests == []


@pytest.mark.req("relay.rpc.large")
async def test_a_too_large_answer_is_refused_and_the_socket_stays_open(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(rpc=2_000_000)) as world:
        phone, gateway, session = await connect_both_sides(world)

        async def large(request: Any) -> str:
            return "A" * int(request["params"])

        method = f"{session}:read"
        await serve_method(gateway, method, large)
        fits = await phone.call("rpc-call", {"method": method, "params": "1900000"})
        assert len(fits["result"]) == 1_900_000
        refused = await phone.call("rpc-call", {"method": method, "params": "2100000"})
        assert refused["ok"] is False
        assert "ask for less at once" in refused["error"]
        params = {"method": method, "params": "A" * 2_100_000}
        assert "at most 2000000 bytes" in (await phone.call("rpc-call", params))["error"]
        assert (await phone.call("rpc-call", {"method": method, "params": "3"}))["ok"]


@pytest.mark.req("relay.limits.methods")
async def test_the_methods_of_a_socket_are_limited(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(methods=2)) as world:
        _, gateway, session = await connect_both_sides(world)
        for name in ("a", "b", "a", "c"):
            await gateway.emit("rpc-register", {"method": f"{session}:{name}"})
        refused = await gateway.wait_for(lambda name, it: name == "rpc-error")
        assert "at most 2 methods" in refused["error"]
        registered = [it["method"] for name, it in gateway.events if name == "rpc-registered"]
        assert registered == [f"{session}:a", f"{session}:b", f"{session}:a"]


@pytest.mark.req("relay.limits.calls")
async def test_concurrent_calls_are_limited(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(socket_events=2)) as world:
        phone, gateway, session = await connect_both_sides(world)
        release = asyncio.Event()

        async def wait(_: Any) -> str:
            await release.wait()
            return "done"

        requests = await serve_method(gateway, f"{session}:x", wait)
        call = {"method": f"{session}:x", "params": ""}
        first = [asyncio.ensure_future(phone.call("rpc-call", call)) for _ in range(2)]
        while len(requests) < 2:
            await asyncio.sleep(0)
        assert "too many calls" in (await phone.call("rpc-call", call))["error"]
        release.set()
        assert [(await each)["result"] for each in first] == ["done", "done"]


@pytest.mark.req("relay.rpc.call")
@pytest.mark.parametrize("payload", [None, {}, {"method": "", "params": ""}, {"method": "x"}, 7])
async def test_an_invalid_call_is_answered(tmp_path: Path, payload: Any) -> None:
    async with open_relay_world(tmp_path) as world:
        phone = await (await world.create_user()).connect()
        answer = await phone.call("rpc-call", payload)
        assert answer["ok"] is False
        assert answer["error"].startswith("Invalid parameters")
