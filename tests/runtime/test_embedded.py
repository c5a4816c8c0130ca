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
    said = ""
    async for event in runtime.stream("crab", "Hi"):
        if isinstance(event, TextDelta):
            said += event.text
    await runtime.close()
    return said


@pytest.mark.req("runtime.embedded")
async def test_a_runtime_is_storage_a_provider_and_an_agent() -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        assert await run_example() == "Hello."


def test_it_needs_nothing_of_its_program_but_a_loop() -> None:
    assert asyncio.run(run_example()) == "Hello."


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Every module that importing the engine brings in."""
    command = [sys.executable, "-c", LIST_MODULES]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", ["aiohttp", "click", "tomlkit", "uvloop"])
def test_importing_it_loads_nothing_heavy(loaded: set[str], module: str) -> None:
    assert module not in loaded


@pytest.mark.parametrize("room", ["daemon", "hooks", "mcp", "component", "client"])
def test_importing_it_loads_no_room_above_it_or_beside_it(loaded: set[str], room: str) -> None:
    assert f"crabtalk.{room}" not in loaded


@pytest.mark.req("runtime.embedded")
@pytest.mark.parametrize(
    "module", ["google.protobuf", "crabtalk.protocol", "crabtalk.transport.framed_connection"]
)
def test_importing_it_loads_no_protocol(loaded: set[str], module: str) -> None:
    assert module not in loaded


@pytest.mark.req("runtime.embedded")
def test_what_the_page_shows_runs_as_it_stands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    with model_process("--no-record") as (url, _):
        code = code.replace("http://localhost:11434/v1", url).replace("qwen3", "scripted")
        command = [sys.executable, "-c", code]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert "TextDelta(text='hi')" in said.stdout
    assert "Done(" in said.stdout.splitlines()[-1]
