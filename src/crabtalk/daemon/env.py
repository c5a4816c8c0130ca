"""DaemonEnv: the engine's interface to the process that hosts it.

`on_event` receives every event of every run; add metrics and traces there, beside the feed.
"""

from pathlib import Path

from crabtalk.hooks import MemoryHook
from crabtalk.policy import Mode, Policy
from crabtalk.runtime import Done, Env, Event, Hook, Run
from crabtalk.storage import Agent, Archive, Pair

from .config.instruction_files import InstructionLoader
from .events.event_bus import EventBus
from .events.feed import Feed


class DaemonEnv(Env):
    def __init__(
        self,
        hook: Hook,
        feed: Feed,
        bus: EventBus,
        instructions: InstructionLoader,
        memory: MemoryHook,
        cwd: Path,
        policy: Policy,
    ) -> None:
        super().__init__(hook, cwd)
        self._policy = policy
        self._feed = feed
        self._bus = bus
        self._memory = memory
        self._instructions = instructions

    def on_event(self, run: Run, event: Event) -> None:
        self.hook.on_event(run, event)
        self._feed.publish(run, event)
        if type(event) is Done:
            self._bus.on_run_done(run, event)

    def permission_mode(self, run: Run, agent: Agent) -> str:
        mode = self._policy.find_mode(run, agent)
        return "" if mode is Mode.AUTO else mode.label

    def working_directory(self, agent: Agent, origin: str, cwd: Path) -> Path:
        return self._policy.find_working_directory(agent, origin, cwd)

    async def read_instructions(self, cwd: Path) -> str:
        return await self._instructions.load(cwd)

    async def store_archive(self, pair: Pair, archive: Archive) -> None:
        await self._memory.archive(pair, archive)
