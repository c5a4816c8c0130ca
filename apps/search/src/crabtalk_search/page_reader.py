"""Reads pages in separate processes, which may crash alone. They run the module `page`."""

import asyncio
import json
import sys

# Processes at a time; each may take a gigabyte.
MAX_PROCESSES = 4


class PageReadError(Exception):
    """The process ended without a result."""


class PageReader:
    def __init__(self) -> None:
        self._process_slots = asyncio.Semaphore(MAX_PROCESSES)

    async def read_page(
        self, data: bytes, url: str, charset: str | None, limit: int
    ) -> tuple[str, str, int]:
        """The title, the text up to `limit` characters, and its full length. Raises PageReadError.

        Cancelled, the process is killed.
        """
        arguments = [str(limit), url, *([charset] if charset else [])]
        async with self._process_slots:
            process = await asyncio.create_subprocess_exec(
                # -P: a file in the working directory must not be imported as our module.
                *(sys.executable, "-P", "-m", "crabtalk_search.page", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                out, _ = await process.communicate(data)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            raise PageReadError
        result = json.loads(out)
        return result["title"], result["content"], result["length"]
