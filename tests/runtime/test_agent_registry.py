"""The agent registry: addressing agents, building them, and loading them from storage."""

from pathlib import Path

import msgspec
import pytest

from crabtalk.runtime import UnknownAgentError
from crabtalk.storage import Agent, AgentError, FileStorage, Storage
from tests.runtime.runtime_world import CRAB, OWL, RuntimeWorld, ScriptedTools, wait_for_done
from tests.runtime.scripted_provider import Gate, ScriptedProvider, answer_with_text


class RecordingHook(ScriptedTools):
    """Records agents that come and go, and refuses to build those with the prompt "Be broken."."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    def on_build_agent(self, agent: Agent) -> Agent:
        if agent.prompt == "Be broken.":
            raise AgentError("hooks.bash must be a table")
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self.changes.append(f"+{name}")

    def on_unregister_agent(self, name: str) -> None:
        self.changes.append(f"-{name}")


async def test_only_agents_that_are_registered_can_be_addressed(world: RuntimeWorld) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."), agents=[])
    with pytest.raises(UnknownAgentError, match="no agent is called 'crab'; there are: none yet"):
        runtime.start("crab", "Hi")
    runtime.register(CRAB)
    assert dict(runtime.agents) == {"crab": CRAB}
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    runtime.unregister("crab")
    runtime.unregister("crab")
    with pytest.raises(UnknownAgentError):
        runtime.start("crab", "Hi")
    with pytest.raises(UnknownAgentError):
        await anext(runtime.stream("crab", "Hi"))


async def test_hooks_are_called_when_agents_are_registered_and_unregistered(
    world: RuntimeWorld,
) -> None:
    hook = RecordingHook()
    runtime = world.make_runtime(ScriptedProvider(), agents=[CRAB, OWL], hook=hook)
    runtime.unregister("owl")
    runtime.unregister("cat")
    runtime.register(CRAB)
    assert hook.changes == ["+crab", "+owl", "-owl", "+crab"]


async def test_a_run_keeps_the_agent_it_began_with(world: RuntimeWorld) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("One.")], "Two.", "Three.")
    runtime = world.make_runtime(model)
    first, second = runtime.start("crab", "First"), runtime.start("crab", "Second")
    await gate.wait_until_reached()
    runtime.register(msgspec.structs.replace(CRAB, prompt="You are a new crab."))
    gate.open()
    await wait_for_done(first)
    await wait_for_done(second)
    await wait_for_done(runtime.start("crab", "Third"))
    prompts = [request.messages[0].text for request in model.requests]
    assert prompts == ["You are crab.", "You are crab.", "You are a new crab."]


async def test_loading_registers_the_agents_in_storage_and_unregisters_the_others(
    storage: Storage, world: RuntimeWorld
) -> None:
    hook = RecordingHook()
    runtime = world.make_runtime(ScriptedProvider(), storage, agents=[], hook=hook)
    await storage.save_agent(CRAB)
    await storage.save_agent(OWL)
    assert await runtime.load_agents() == {}
    assert dict(runtime.agents) == {"crab": CRAB, "owl": OWL}
    wiser = msgspec.structs.replace(OWL, prompt="You are wiser.")
    await storage.save_agent(wiser)
    await storage.delete_agent("crab")
    assert await runtime.load_agents() == {}
    assert dict(runtime.agents) == {"owl": wiser}
    assert hook.changes == ["+crab", "+owl", "+owl", "-crab"]


async def test_an_agent_that_cannot_be_read_is_reported_and_the_others_are_loaded(
    world: RuntimeWorld, tmp_path: Path
) -> None:
    storage = FileStorage(tmp_path, flush=False)
    runtime = world.make_runtime(ScriptedProvider(), storage, agents=[])
    for agent in (CRAB, OWL):
        await storage.save_agent(agent)
    await runtime.load_agents()
    (tmp_path / "agents" / "crab.toml").write_text("prompt = ")
    (tmp_path / "agents" / "ant.toml").write_text("model = 'm'")
    (tmp_path / "agents" / "bee.toml").write_text("prompt = 'You are bee.'")
    broken = await runtime.load_agents()
    assert broken.keys() == {"crab", "ant"}
    assert all(broken.values())
    # The broken one stays registered as it was.
    assert sorted(runtime.agents) == ["bee", "crab", "owl"]
    assert runtime.agents["crab"] == CRAB
    await storage.close()


async def test_an_agent_that_a_hook_refuses_is_reported_and_the_others_are_loaded(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider(), storage, agents=[], hook=RecordingHook())
    for agent in (CRAB, OWL):
        await storage.save_agent(agent)
    await runtime.load_agents()
    await storage.save_agent(msgspec.structs.replace(CRAB, prompt="Be broken."))
    await storage.save_agent(Agent("ant", "Be broken."))
    await storage.save_agent(Agent("bee", "You are bee."))
    sentence = "hooks.bash must be a table"
    assert await runtime.load_agents() == {"ant": sentence, "crab": sentence}
    assert sorted(runtime.agents) == ["bee", "crab", "owl"]
    assert runtime.agents["crab"] == CRAB
