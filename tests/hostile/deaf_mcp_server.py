"""An MCP server over stdio that offers a tool, and then stops reading its standard input.

    python deaf_mcp_server.py closed | full

With `closed` it closes standard input, so that writing to it fails. With `full` it keeps it open
without reading, so that writing to it blocks.
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
    stdin = os.fdopen(0, "rb", 0, closefd=False)
    while True:
        message = json.loads(stdin.readline())
        if "id" not in message:
            continue
        method = message["method"]
        if method == "tools/list" and sys.argv[1] == "closed":
            os.close(0)
        answer = {"jsonrpc": "2.0", "id": message["id"], **build_answer(method)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if method == "tools/list":
            signal.pause()


if __name__ == "__main__":
    main()
