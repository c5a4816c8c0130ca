"""The model of the demo: an OpenAI-compatible server with scripted answers.

The answer depends only on the last user message and on the number of requests since, so that every
run of the demo is the same.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """One answer: a thought, text and calls. With `waits` it ends only after `release`."""

    say: str = ""
    think: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    waits: bool = False


Script = Mapping[str, Sequence[DemoAnswer]]  # by the beginning of the user message


class DemoModel:
    def __init__(self, play: Script) -> None:
        self.url = ""
        self._script = play
        self._released = asyncio.Event()

    def release(self) -> None:
        """End all waiting answers."""
        self._released.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        act = self.choose_answer(body["messages"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in split_deltas(act):
            await send_event(response, {"choices": [{"index": 0, "delta": delta}]})
        if act.waits:
            await self._released.wait()
        reason = "tool_calls" if act.calls else "stop"
        usage = {"prompt_tokens": 12_400, "completion_tokens": 300, "total_tokens": 12_700}
        await send_event(
            response, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        )
        await send_event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def choose_answer(self, messages: Sequence[Mapping[str, Any]]) -> DemoAnswer:
        step = 0
        for message in reversed(messages):
            if message["role"] == "assistant" and message.get("tool_calls"):
                step += 1
            if message["role"] == "user":
                for beginning, acts in self._script.items():
                    if str(message["content"]).startswith(beginning):
                        return acts[min(step, len(acts) - 1)]
        return DemoAnswer("I was not told what to say to that.")


def split_deltas(act: DemoAnswer) -> list[dict[str, Any]]:
    """Split an answer into small pieces, as models stream."""
    made: list[dict[str, Any]] = []
    for field, text in (("reasoning_content", act.think), ("content", act.say)):
        made += [{field: text[place : place + 8]} for place in range(0, len(text), 8)]
    for number, (name, arguments) in enumerate(act.calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        made.append(
            {"tool_calls": [{"index": number, "id": f"call_{number}", "function": function}]}
        )
    return made


async def send_event(response: web.StreamResponse, event: Mapping[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


@asynccontextmanager
async def run_model_server(play: Script) -> AsyncIterator[DemoModel]:
    """Run the server on loopback, in this process."""
    actor = DemoModel(play)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", actor.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        actor.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield actor
    finally:
        actor.release()
        await runner.cleanup()
