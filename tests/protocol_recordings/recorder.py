"""Records exchanges: `python -m tests.protocol_recordings.recorder` rewrites exchanges/*.json.

Run it on the commit whose protocol must be preserved, never to make a failing replay pass. The
files were recorded from commit e1b208b. Each step of a file has the bytes sent as hex, or the
answers as hex after `normaliser`, and the same as text for people who read a difference.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from crabtalk.protocol import encode_frame, wire

from .normaliser import normalise_payload
from .recording_daemon import RecordingDaemon, start_recording_daemon
from .scenarios import SCENARIOS, ActionStep, ScenarioStep, SendStep

EXCHANGES = Path(__file__).parent / "exchanges"


async def record_scenario(steps: list[ScenarioStep], path: Path) -> list[dict[str, Any]]:
    async with start_recording_daemon(path) as daemon:
        return [recorded for step in steps for recorded in await record_step(daemon, step)]


async def record_step(daemon: RecordingDaemon, step: ScenarioStep) -> list[dict[str, Any]]:
    if isinstance(step, ActionStep):
        await daemon.perform(step.action)
        return [{"do": step.action}]
    recorded: list[dict[str, Any]] = []
    connection = await daemon.connection(step.on)
    if isinstance(step, SendStep):
        is_raw = isinstance(step.message, bytes)
        data = step.message if isinstance(step.message, bytes) else encode_frame(step.message)
        connection.send(data)
        words = "raw bytes" if is_raw else describe_message(step.message)
        recorded.append({"on": step.on, "send": data.hex(), "words": words})
    if step.until == "nothing":
        return recorded
    frames: list[str] = []
    words_received: list[str] = []
    while True:
        payload = await connection.receive()
        if payload is None:
            if step.until != "close":
                raise RuntimeError(f"the daemon closed {step.on!r} before {step.until!r} came")
            break
        message = wire.ServerMessage.FromString(payload)
        frames.append(normalise_payload(payload).hex())
        words_received.append(
            describe_message(wire.ServerMessage.FromString(normalise_payload(payload)))
        )
        if is_last(message, step.until):
            break
    recorded.append(
        {
            "on": step.on,
            "receive": frames,
            "then_closed": step.until == "close",
            "words": words_received,
        }
    )
    return recorded


def is_last(message: wire.ServerMessage, until: str) -> bool:
    """Whether this frame is the last to read.

    "answer" is a whole answer, "one" a single frame, "done" the feed's element that ends a run,
    "close" the end of the connection, and any other value the name of a stream event.
    """
    event = message.stream.WhichOneof("event")
    match until:
        case "one":
            return True
        case "close":
            return False
        case "done":
            return message.agent_event.kind == wire.DONE and message.HasField("agent_event")
        case "answer":
            return not message.HasField("stream") or event == "end"
    return event == until


def describe_message(message: Any) -> str:
    return text_format.MessageToString(message, as_one_line=True, as_utf8=True)


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    for name in sys.argv[1:] or list(SCENARIOS):
        with tempfile.TemporaryDirectory() as directory:
            steps = asyncio.run(record_scenario(SCENARIOS[name], Path(directory)))
        document = {"scenario": name, "recorded_from": commit, "steps": steps}
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (EXCHANGES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {len(steps)} steps\n")


if __name__ == "__main__":
    main()
