"""DaemonEnv: what the engine gets from the process that hosts it.

`on_event` sees everything every run does: metrics and traces belong beside the feed there.
"""

from pathlib import Path

from crabtalk.hooks import MemoryHook
from crabtalk.runtime import Done, Env, Event, Hook, Run
from crabtalk.storage import Archive, Pair

from .bus import Bus
from .feed import Feed
from .instructions import Instructions


class DaemonEnv(Env):
    def __init__(
        self,
        hook: Hook,
        feed: Feed,
        bus: Bus,
        instructions: Instructions,
        memory: MemoryHook,
        cwd: Path,
    ) -> None:
        super().__init__(hook, cwd)
        self._feed = feed
        self._bus = bus
        self._memory = memory
        self._instructions = instructions

    def on_event(self, run: Run, event: Event) -> None:
        self.hook.on_event(run, event)
        self._feed.publish(run, event)
        if type(event) is Done:
            self._bus.heard(run, event)

    async def instructions(self, cwd: Path) -> str:
        return await self._instructions.find(cwd)

    async def archive(self, pair: Pair, archive: Archive) -> None:
        await self._memory.archive(pair, archive)
