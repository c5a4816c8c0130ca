"""An ACP agent without a model: thinks, calls a tool, and repeats its message in capitals."""

import json
import sys
from typing import Any


def send_message(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)  # noqa: T201


def send_update(session: str, what: str, **given: Any) -> None:
    notification = {"sessionId": session, "update": {"sessionUpdate": what, **given}}
    send_message(method="session/update", params=notification)


def run_turn(session: str, words: str) -> None:
    send_update(session, "agent_thought_chunk", content={"type": "text", "text": "Hm."})
    call = {"toolCallId": "call-1", "title": "Look", "kind": "read"}
    send_update(session, "tool_call", status="in_progress", **call)
    send_update(session, "tool_call_update", status="completed", **call)
    send_update(session, "agent_message_chunk", content={"type": "text", "text": words.upper()})


for line in sys.stdin:
    request = json.loads(line)
    given = request.get("params", {})
    match request.get("method"):
        case "initialize":
            result: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {}}
        case "session/new":
            result = {"sessionId": "acp-session"}
        case "session/prompt":
            run_turn(given["sessionId"], "".join(part.get("text", "") for part in given["prompt"]))
            result = {"stopReason": "end_turn"}
        case _:
            result = {}
    if "id" in request:
        send_message(id=request["id"], result=result)
