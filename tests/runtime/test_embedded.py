"""The engine inside another program: no daemon, no hooks, no files."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.runtime import Runtime, TextDelta
from crabtalk.storage import Agent, MemoryStorage
from tests.model_server import model_process
from tests.runtime.scripted_provider import TEST_TIMEOUT, ScriptedProvider, answer_with_text

LIST_MODULES = """
import sys
import crabtalk.runtime
print("\\n".join(sys.modules))
"""


async def run_example() -> str:
    runtime = Runtime(MemoryStorage(), ScriptedProvider(answer_with_text("Hel", "lo.")))
    runtime.register(Agent("crab", "You are crab."))
    text = ""
    async for event in runtime.stream("crab", "Hi"):
        if isinstance(event, TextDelta):
            text += event.text
    await runtime.close()
    return text


@pytest.mark.req("runtime.embedded")
async def test_a_runtime_is_storage_a_provider_and_an_agent() -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        assert await run_example() == "Hello."


def test_the_engine_needs_only_an_event_loop() -> None:
    assert asyncio.run(run_example()) == "Hello."


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that importing the engine loads."""
    command = [sys.executable, "-c", LIST_MODULES]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", ["aiohttp", "click", "tomlkit", "uvloop"])
def test_importing_the_engine_loads_nothing_heavy(loaded: set[str], module: str) -> None:
    assert module not in loaded


@pytest.mark.parametrize("room", ["daemon", "hooks", "mcp", "component", "client"])
def test_importing_the_engine_loads_no_room_above_or_beside_it(loaded: set[str], room: str) -> None:
    assert f"crabtalk.{room}" not in loaded


@pytest.mark.req("runtime.embedded")
@pytest.mark.parametrize(
    "module", ["google.protobuf", "crabtalk.protocol", "crabtalk.transport.framed_connection"]
)
def test_importing_the_engine_loads_no_protocol(loaded: set[str], module: str) -> None:
    assert module not in loaded


@pytest.mark.req("runtime.embedded")
def test_the_example_on_the_docs_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    with model_process("--no-record") as (url, _):
        code = code.replace("http://localhost:11434/v1", url).replace("qwen3", "scripted")
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert "TextDelta(text='hi')" in result.stdout
    assert "Done(" in result.stdout.splitlines()[-1]
