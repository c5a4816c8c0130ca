"""A small MCP server over stdio, without the SDK: it starts fast, and misbehaves on request.

    python tiny.py [--banner] [--noise] [--silent] [--die] [--line] [--until FILE] [--record FILE]
                   [--tools NAME,NAME]

`--record` is where it writes what it is told, a JSON object a line. `--tools` are offered instead
of its own, and each answers with its name.
"""

import argparse
import base64
import json
import os
import struct
import sys
import time
import zlib
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def build_png(width: int = 2, height: int = 2) -> bytes:
    """Build a PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * width) * height
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


class TinyServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._extra: list[str] = []

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            self.record(message)
            if "id" in message and "method" in message:
                self.answer(message["id"], message["method"], message.get("params") or {})

    def record(self, message: dict[str, Any]) -> None:
        if self._options.record:
            with open(self._options.record, "a") as file:  # noqa: PTH123
                file.write(json.dumps(message) + "\n")

    def answer(self, number: Any, method: str, params: dict[str, Any]) -> None:
        match method:
            case "initialize":
                self.write_message(
                    id=number,
                    result={
                        "protocolVersion": params["protocolVersion"],
                        "capabilities": {"tools": {"listChanged": True}},
                        "serverInfo": {"name": "tiny", "version": "1"},
                    },
                )
            case "tools/list":
                self.write_message(id=number, result={"tools": self.tools()})
            case "tools/call":
                self.call(number, params)
            case _:
                self.write_message(
                    id=number, error={"code": -32601, "message": f"no {method} here"}
                )

    def tools(self) -> list[dict[str, Any]]:
        if self._options.tools:
            names = self._options.tools.split(",")
        else:
            names = [name[3:] for name in dir(self) if name.startswith("do_")]
        return [
            {
                "name": name,
                "description": f"Does {name}.",
                "inputSchema": SCHEMA,
                "annotations": {"readOnlyHint": name == "echo"},
            }
            for name in [*names, *self._extra]
        ]

    def call(self, number: Any, params: dict[str, Any]) -> None:
        name, arguments = params["name"], params.get("arguments") or {}
        if name in self._options.tools.split(","):
            self.answer_text(number, name)
            return
        token = (params.get("_meta") or {}).get("progressToken")
        getattr(self, f"do_{name}")(number, arguments, token)

    # ── Tools ───────────────────────────────────────────────────────────────────────────────

    def do_echo(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self.answer_text(number, arguments.get("text", ""))

    def do_pid(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self.answer_text(number, str(os.getpid()))

    def do_variable(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self.answer_text(number, os.environ.get(arguments["text"], "unset"))

    def do_fail(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self.write_message(
            id=number, result={"content": [build_text("no shells left")], "isError": True}
        )

    def do_refuse(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self.write_message(id=number, error={"code": -32602, "message": "that is no beach"})

    def do_crash(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        sys.stderr.write(f"out of sand, with {os.environ.get('SECRET', 'nothing')}\n")
        sys.stderr.flush()
        os._exit(3)

    def do_wait(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        """Never answers."""

    def do_progress(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        """Take 0.25 s for each step and report progress."""
        steps = int(arguments.get("text", "3"))
        for step in range(steps):
            time.sleep(0.25)
            params = {"progressToken": token, "progress": step + 1, "total": steps}
            self.write_message(method="notifications/progress", params=params)
        self.answer_text(number, f"{steps} steps")

    def do_walk(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        """Report progress with a fixed text."""
        steps = int(arguments["text"])
        for step in range(steps):
            params = {"progressToken": token, "progress": step, "total": steps}
            self.write_message(
                method="notifications/progress", params={**params, "message": "walking"}
            )
        self.answer_text(number, f"walked {steps} steps")

    def do_report(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        """Send exactly the given progress messages."""
        for report in json.loads(arguments["text"]):
            self.write_message(
                method="notifications/progress", params={"progressToken": token, **report}
            )
        self.answer_text(number, "reported")

    def do_flood(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        """Report progress as fast as possible for the given seconds."""
        started, step = time.monotonic(), 0
        while time.monotonic() - started < float(arguments["text"]):
            step += 1
            params = {"progressToken": token, "progress": step, "message": f"step {step}"}
            self.write_message(method="notifications/progress", params=params)
        self.answer_text(number, str(step))

    def do_more(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self._extra.append("extra")
        self.write_message(method="notifications/tools/list_changed")
        self.answer_text(number, "more")

    def do_picture(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        width = int(arguments.get("text") or 2)
        data = base64.b64encode(build_png(width, 1)).decode()
        image = {"type": "image", "data": data, "mimeType": "image/png"}
        self.write_message(id=number, result={"content": [build_text("look:"), image]})

    def do_kinds(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        content = [
            {"type": "audio", "data": base64.b64encode(b"hum").decode(), "mimeType": "audio/wav"},
            {"type": "resource_link", "name": "map", "uri": "beach://map"},
            {"type": "resource", "resource": {"uri": "beach://log", "text": "low tide"}},
            {
                "type": "resource",
                "resource": {
                    "uri": "beach://shell",
                    "mimeType": "model/shell",
                    "blob": base64.b64encode(b"spiral").decode(),
                },
            },
            {"type": "image", "data": "%%%", "mimeType": "image/png"},
        ]
        self.write_message(
            id=number, result={"content": content, "structuredContent": {"tide": "low"}}
        )

    def do_long(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        self.answer_text(number, "x" * int(arguments["text"]))

    def do_child(self, number: Any, arguments: dict[str, Any], token: Any) -> None:
        """Start a child that ignores SIGTERM and would outlive the server."""
        import subprocess  # late: slow to import

        script = "trap '' TERM; while :; do sleep 1000; done"
        child = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL)
        self.answer_text(number, str(child.pid))

    # ── Output ──────────────────────────────────────────────────────────────────────────────

    def answer_text(self, number: Any, text: str) -> None:
        self.write_message(id=number, result={"content": [build_text(text)]})

    def write_message(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def build_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--banner", "--noise", "--silent", "--die", "--line", "--stubborn"):
        parser.add_argument(flag, action="store_true")
    for option in ("--until", "--record", "--tools", "--any"):
        parser.add_argument(option, default="")
    options = parser.parse_args()
    if options.die:
        sys.stderr.write("first words\nno beach here\n")
        sys.exit(7)
    while options.until and not os.path.exists(options.until):  # noqa: PTH110
        time.sleep(0.01)
    if options.banner:
        sys.stdout.write("Welcome to the beach!\n{]\n\n")
    if options.noise:
        while True:
            sys.stdout.write("waves\n")
    if options.line:
        while True:
            sys.stdout.write("waves" * 1000)
    if options.silent:
        while sys.stdin.readline():
            pass
    TinyServer(options).serve()
    if options.stubborn:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)


if __name__ == "__main__":
    main()
