"""Reader: has pages read by processes that may fail alone. What those do is in `page`."""

import asyncio
import json
import sys

# At a time; each may take a gigabyte.
MAX_PROCESSES = 4


class PageReadError(Exception):
    """The process did not live to tell what is in the page."""


class PageReader:
    def __init__(self) -> None:
        self._process_slots = asyncio.Semaphore(MAX_PROCESSES)

    async def read_page(
        self, data: bytes, url: str, charset: str | None, most: int
    ) -> tuple[str, str, int]:
        """Title, text up to `most` characters, and how many it has. Raises ReadError.

        Cancelled, the process is killed.
        """
        words = [str(most), url, *([charset] if charset else [])]
        async with self._process_slots:
            process = await asyncio.create_subprocess_exec(
                # -P: a file in the working directory is not to pass for a module of ours.
                *(sys.executable, "-P", "-m", "crabtalk_search.page", *words),
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
        read = json.loads(out)
        return read["title"], read["content"], read["length"]
