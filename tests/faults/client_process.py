"""A client as a process: python -m tests.faults.client_process HOME SENDER SAID [detach]

Prints `reading` with the first chunk of its turn, and how the turn ended, or what became of the
connection.
"""

import asyncio
import sys
from pathlib import Path

from crabtalk.client import ConnectionClosedError, connect
from crabtalk.protocol import wire


async def stream_turn(home: str, sender: str, said: str, detach: bool) -> str:
    is_reading = False
    async with connect(home=Path(home), reconnect_timeout=0) as client:
        async for event in client.stream("crab", said, sender=sender, detach=detach):
            if isinstance(event, wire.StreamChunk) and not is_reading:
                is_reading = True
                sys.stdout.write("reading\n")
                sys.stdout.flush()
            if isinstance(event, wire.StreamEnd):
                return f"ended {event.error}".strip()
    return "no end"


def main() -> None:
    home, sender, said, *rest = sys.argv[1:]
    try:
        told = asyncio.run(stream_turn(home, sender, said, bool(rest)))
    except ConnectionClosedError:
        told = "lost its connection"
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main()
