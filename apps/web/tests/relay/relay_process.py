"""A relay as a separate process, which can be killed."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 20


@dataclass
class RelayProcess:
    url: str
    process: asyncio.subprocess.Process

    async def kill(self) -> None:
        """Kill it without a chance to finish anything."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def run_relay_process(
    data: Path, *options: str, log: Path | None = None, port: int = 0
) -> AsyncIterator[RelayProcess]:
    command = [sys.executable, "-m", "crabtalk_web.relay", str(data), "--port", str(port)]
    with (log or data.with_suffix(".log")).open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, *options, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                url = (await process.stdout.readline()).decode().strip()
            assert url, "it did not start"
            yield RelayProcess(url, process)
        finally:
            if process.returncode is None:
                process.terminate()
                async with asyncio.timeout(PATIENCE):
                    await process.wait()
