"""A development server for the page: everything is real but the model.

    python -m apps.web.dev_server            # prints the address and the backup text to log in with
    python -m apps.web.dev_server --fresh    # starts with an empty account: prints a pairing link

A daemon, a relay with the page, a gateway and a device run in this process and a temporary folder
until Ctrl+C. It has a conversation with tools and a file edit, one with sub-agents, one whose turn
is open, one with a question, one with pictures, one that failed, one with 10,000 events and an
empty one. The page is read from its folder with every request.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from PIL import Image

import crabtalk_web
from apps.web.tests.browser import dialogues
from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession, open_device
from apps.web.tests.gateway.web_gateway_world import pair_with_device
from crabtalk.hooks.tool import AgentTool, ToolHook
from crabtalk.runtime import ToolDispatch
from crabtalk_web.gateway import (
    GatewayConfig,
    MachinePairing,
    RelayCredentials,
    RelayHttp,
    WebFolder,
    WebGateway,
)
from crabtalk_web.gateway.file_transfer import describe_image
from crabtalk_web.relay import RelayConfig, RelayLimits, RelayServer
from crabtalk_web.relay.registration import RegistrationMode
from crabtalk_web.sealing import DataSealer, new_key, to_backup_text, to_base64, wrap_key
from crabtalk_web.stream import derive_id
from tests.daemon.in_process_daemon import CONFIG, InProcessDaemon, run_daemon
from tests.model_server import ModelConnection

PAGE = Path(crabtalk_web.__file__).with_name("page")
PATIENCE = 30
AGENT_NAMES = ("crab", "owl", "builder", "runner", "asker", "painter", "breaker", "newcomer")
AGENTS = {name: f'prompt = "You are {name}."\n' for name in AGENT_NAMES}
LONG_AGENT = "keeper"
LONG_EVENTS = 10_000
DAY = 86_400_000


class DevSendFileTool(AgentTool):
    """Send a file to the person."""

    name: ClassVar[str] = "send_file"
    path: str

    async def run(self, call: ToolDispatch, hook: ToolHook) -> str:
        return "sent"


class DevSendFileHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (DevSendFileTool,)


@dataclass
class DevServer:
    """All the running parts. `relay` can be stopped and started again at the same address."""

    path: Path
    daemon: InProcessDaemon
    model: dialogues.DialogueModel
    relay: RelayServer
    config: GatewayConfig
    gateway: WebGateway | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.relay.url

    @property
    def work_folder(self) -> Path:
        return self.path / "work"

    async def start_gateway(self, credentials: RelayCredentials) -> WebGateway:
        WebFolder(self.daemon.home).prepare()
        credentials.save(WebFolder(self.daemon.home).credentials_file)
        self.gateway = WebGateway(
            self.daemon.home, credentials, self.config, grace=0.5, audit_every=1.0
        )
        self._task = asyncio.ensure_future(self.gateway.run())
        async with asyncio.timeout(PATIENCE):
            await self.gateway.is_following.wait()
            await self.gateway.is_connected.wait()
        return self.gateway

    async def stop_gateway(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def stop_relay(self) -> None:
        await self.relay.__aexit__(None, None, None)

    async def start_relay(self) -> None:
        config = self.relay.config
        self.relay = RelayServer(RelayConfig(**{**read_slots(config), "port": self.relay.port}))
        await self.relay.__aenter__()

    @asynccontextmanager
    async def request_pairing(self) -> AsyncIterator[MachinePairing]:
        """Request that this machine be let in, and return the link."""
        async with RelayHttp(self.url) as http:
            pairing = MachinePairing(http)
            await pairing.request_approval()
            yield pairing

    async def release_model(self) -> None:
        """Let the model continue, once it is waiting."""
        await self.model.until_waiting()
        self.model.release()


def read_slots(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


@asynccontextmanager
async def serve_dialogue_model() -> AsyncIterator[dialogues.DialogueModel]:
    model = dialogues.DialogueModel(dialogues=dict(dialogues.DIALOGUES))
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: ModelConnection(model), "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        listener.close()
        await model.close()
        await listener.wait_closed()


@asynccontextmanager
async def run_dev_server(
    path: Path,
    *,
    page: Path = PAGE,
    port: int = 0,
    agents: dict[str, str] = AGENTS,
    registration: RegistrationMode = "open",
) -> AsyncIterator[DevServer]:
    """Without a gateway, and with no device in the account yet."""
    work = path / "work"
    work.mkdir(parents=True, exist_ok=True)
    (work / "retry.py").write_text(dialogues.RETRY)
    (work / "header.png").write_bytes(draw_picture(480, 160))
    limits = RelayLimits(
        strangers_requests=100_000, accounts_an_hour=100_000, uploads_a_minute=10_000
    )
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(serve_dialogue_model())
        daemon = await stack.enter_async_context(
            run_daemon(
                path, model, config=CONFIG, agents=agents, hooks={"sending": DevSendFileHook()}
            )
        )
        daemon.daemon.pending_questions.deadline = DAY / 1000
        relay = RelayServer(
            RelayConfig(
                path / "relay",
                port=port,
                durability="os",
                static=page,
                registration=registration,
                limits=limits,
            )
        )
        await relay.__aenter__()
        server = DevServer(path, daemon, model, relay, GatewayConfig(cwd=str(work)))
        try:
            yield server
        finally:
            await server.stop_gateway()
            with suppress(Exception):
                await server.stop_relay()


# ── Conversations ─────────────────────────────────────────────────────────────────────────────────


async def have_conversations(server: DevServer, device: DeviceClient) -> None:
    """Run all scripted conversations, started by a device. Some of them stay open."""
    async with asyncio.TaskGroup() as group:
        group.create_task(
            send_and_wait(
                device, "crab", dialogues.WHERE, dialogues.LONGER, f"@owl {dialogues.OPINION}"
            )
        )
        group.create_task(send_and_wait(device, "builder", dialogues.SURVEY))
        group.create_task(send_sketch(device))
        group.create_task(have_failing_turns(server, device))
    runner, asker = await device.wait_for_session("runner"), await device.wait_for_session("asker")
    await device.send_text(runner, dialogues.LOGS)
    await device.send_text(asker, dialogues.DEPLOY)
    await device.wait_for_envelopes(runner, lambda envelopes: len(envelopes) > 12)
    await device.wait_for_envelopes(asker, lambda envelopes: len(envelopes) > 2)


async def send_and_wait(device: DeviceClient, agent: str, *texts: str) -> None:
    session = await device.wait_for_session(agent)
    for number, text in enumerate(texts, 1):
        await device.send_text(session, text)
        await device.wait_for_turns(session, number)


async def send_sketch(device: DeviceClient) -> None:
    session = await device.wait_for_session("painter")
    data = draw_picture(960, 540)
    image = describe_image(data)
    event = {
        "t": "file",
        "ref": await device.upload(session, data),
        "name": "sketch.png",
        "size": len(data),
        "mimeType": "image/png",
        "image": read_fields(image),
    }
    envelope = {**device.build_envelope(event), "time": int(time.time() * 1000)}
    await device.send_body(session, {"role": "session", "content": envelope})
    await device.send_text(session, dialogues.PICTURE)
    await device.wait_for_turns(session)


def read_fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


async def have_failing_turns(server: DevServer, device: DeviceClient) -> None:
    session = await device.wait_for_session("breaker")
    await device.send_text(session, dialogues.STOPPED)
    await device.wait_for_envelopes(session, lambda envelopes: len(envelopes) > 2)
    async with server.daemon.client() as client:
        await client.kill("breaker")
    await device.wait_for_turns(session, 1)
    await device.send_text(session, dialogues.BROKEN)
    await device.wait_for_turns(session, 2)


def draw_picture(width: int, height: int) -> bytes:
    """Draw a test picture: a rough sunset."""
    gradient = Image.linear_gradient("L").resize((width, height))
    red = gradient.point([255 - value // 4 for value in range(256)])
    blue = gradient.point([60 + value // 2 for value in range(256)])
    data = BytesIO()
    Image.merge("RGB", (red, gradient, blue)).save(data, "PNG")
    return data.getvalue()


# ── The long conversation ─────────────────────────────────────────────────────────────────────────


async def create_long_session(device: DeviceClient, events: int = LONG_EVENTS) -> DeviceSession:
    """Create a session with that many events, whose machine is offline."""
    key = new_key()
    session = DeviceSession(to_base64(key)[:8], key)
    metadata = {
        "name": LONG_AGENT,
        "host": "attic",
        "path": "/",
        "summary": {"text": "A long story"},
    }
    reply = await device.request(
        "POST",
        "/v1/sessions",
        {
            "tag": derive_id("long", session.id),
            "metadata": session.sealer.seal(metadata),
            "dataEncryptionKey": to_base64(wrap_key(device.secret.content_keys.public, key)),
        },
    )
    session.id = reply["session"]["id"]
    bodies = build_long_session(events, int(time.time() * 1000) - DAY)
    sealer = DataSealer(key)
    for first in range(0, len(bodies), 100):
        messages = [
            {"content": sealer.seal(body), "localId": f"long-{first + number}"}
            for number, body in enumerate(bodies[first : first + 100])
        ]
        await device.request("POST", f"/v3/sessions/{session.id}/messages", {"messages": messages})
    return session


def build_long_session(events: int, start: int) -> list[dict[str, Any]]:
    """Return at least `events` bodies: turns with text, reasoning, a call and an answer."""
    bodies: list[dict[str, Any]] = []
    number = 0
    while len(bodies) < events:
        number += 1
        turn, question = (
            derive_id("turn", number),
            f"Question {number}: how is part {number} built?",
        )
        turn_events: list[dict[str, Any]] = [
            {"t": "text", "text": question},
            {"t": "turn-start"},
            {"t": "text", "text": f"Part {number} is near the others.", "thinking": True},
            {
                "t": "tool-call-start",
                "call": derive_id("call", number),
                "name": "bash",
                "title": f"Run `grep -n part{number}`",
                "description": f"Run `grep -n part{number}`",
                "args": {"command": f"grep -n part{number} *.py"},
            },
            {
                "t": "tool-call-end",
                "call": derive_id("call", number),
                "result": "\n".join(f"part{number}.py:{line}: build()" for line in range(8)),
            },
            {"t": "text", "text": build_long_answer(number)},
            {"t": "turn-end", "status": "completed"},
        ]
        for event in turn_events:
            envelope = {
                "id": derive_id("event", len(bodies)),
                "time": start + len(bodies) * 1000,
                "ev": event,
            }
            who = (
                {"role": "agent", "turn": turn} if event is not turn_events[0] else {"role": "user"}
            )
            bodies.append({"role": "session", "content": {**envelope, **who}})
    return bodies


def build_long_answer(number: int) -> str:
    if number % 3 == 0:
        return (
            f"```python\ndef part{number}():\n    return build({number})\n```\nThat is all of it."
        )
    if number % 3 == 1:
        return f"Part **{number}** is built in `part{number}.py`, from:\n\n- stone\n- wood\n- paper"
    return f"In {number % 7 + 2} steps, of which the last is the longest. " * (number % 5 + 1)


# ── As a program ──────────────────────────────────────────────────────────────────────────────────


async def release_model(model: dialogues.DialogueModel) -> None:
    while True:
        model.release()
        await asyncio.sleep(0.04)


async def main(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with tempfile.TemporaryDirectory(prefix="crabtalk-stage-") as folder:
        async with (
            run_dev_server(Path(folder), port=options.port) as server,
            open_device(server.url) as device,
        ):
            release_task = asyncio.ensure_future(release_model(server.model))
            if options.fresh:
                async with server.request_pairing() as pairing:
                    print_line(f"machine  {pairing.link}")
                    await server.start_gateway(await pairing.wait_for_approval())
                print_line("it was let in")
            else:
                await server.start_gateway(await pair_with_device(device, server.url))
                await have_conversations(server, device)
                await create_long_session(device, options.events)
                print_line(f"page   {server.url}/")
                print_line(f"words  {to_backup_text(device.secret.secret)}")
            await stopped.wait()
            release_task.cancel()


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m apps.web.dev_server")
    parser.add_argument("--port", type=int, default=0, help="of the relay; any by default")
    parser.add_argument("--fresh", action="store_true", help="let a browser pair with it")
    parser.add_argument("--events", type=int, default=LONG_EVENTS, help="of the long conversation")
    uvloop.run(main(parser.parse_args()))
