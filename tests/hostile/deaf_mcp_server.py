"""An MCP server over stdio that offers a tool, and from then on does not hear.

    python deaf.py closed | full

`closed` is how it leaves its standard input: nobody reads there, and whoever writes is told so.
`full` leaves it open, and what is written there waits for ever.
"""

import json
import os
import signal
import sys
from typing import Any

TOOLS = [{"name": "shout", "description": "Shouts.", "inputSchema": {"type": "object"}}]


def build_answer(method: str) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "result": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "deaf", "version": "1"},
                }
            }
        case "tools/list":
            return {"result": {"tools": TOOLS}}
    return {"error": {"code": -32601, "message": f"no {method} here"}}


def main() -> None:
    words = os.fdopen(0, "rb", 0, closefd=False)
    while True:
        message = json.loads(words.readline())
        if "id" not in message:
            continue
        method = message["method"]
        if method == "tools/list" and sys.argv[1] == "closed":
            os.close(0)
        said = {"jsonrpc": "2.0", "id": message["id"], **build_answer(method)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        if method == "tools/list":
            signal.pause()


if __name__ == "__main__":
    main()
