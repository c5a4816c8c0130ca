"""A client as a process: python -m tests.faults.client_process HOME SENDER CONTENT [detach]

Prints `reading` at the first chunk of its turn, and at the end how the turn ended, or that the
connection was lost.
"""

import asyncio
import sys
from pathlib import Path

from crabtalk.client import ConnectionClosedError, connect
from crabtalk.protocol import wire


async def stream_turn(home: str, sender: str, content: str, detach: bool) -> str:
    is_reading = False
    async with connect(home=Path(home), reconnect_timeout=0) as client:
        async for event in client.stream("crab", content, sender=sender, detach=detach):
            if isinstance(event, wire.StreamChunk) and not is_reading:
                is_reading = True
                sys.stdout.write("reading\n")
                sys.stdout.flush()
            if isinstance(event, wire.StreamEnd):
                return f"ended {event.error}".strip()
    return "no end"


def main() -> None:
    home, sender, content, *rest = sys.argv[1:]
    try:
        outcome = asyncio.run(stream_turn(home, sender, content, bool(rest)))
    except ConnectionClosedError:
        outcome = "lost its connection"
    sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    main()
