"""A daemon whose home is a small file system of its own: one that fills up, and can be read-only.

In a mount namespace, so that nobody else sees it: the tests reach it through the process, and it is
gone with that. Where the system allows no namespaces there is none.
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

from tests.daemon.crabtalkd_program import CRABTALKD
from tests.forked_programs import PIPE
from tests.model_server import PATIENCE

# Room for a daemon, its agents and a few conversations.
SIZE = "512k"
# A namespace of users too: that one needs no root.
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
MOUNT = f'mount -t tmpfs -o size={SIZE},mode=700 tmpfs "$0" && cd "$0"'


@cache
def is_possible() -> bool:
    with suppress(OSError):
        words = (*UNSHARE, "sh", "-c", "mount -t tmpfs tmpfs /mnt")
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


class TmpfsHome:
    """The disk and the daemon on it. `home` is where others find what is in it."""

    def __init__(self, process: asyncio.subprocess.Process, path: Path) -> None:
        self.process = process
        self.home = Path(f"/proc/{process.pid}/root{path}")
        self._path = path
        self._filler = self.home / "filler"

    def fill(self, spare: int = 0) -> None:
        """Until nothing goes on it but `spare` bytes."""
        with self._filler.open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"\0" * 4096)
        if spare:
            os.truncate(self._filler, max(0, self._filler.stat().st_size - spare))

    def clear(self) -> None:
        self._filler.unlink()

    async def make_read_only(self) -> None:
        """For whatever is opened from now on."""
        # A mount cannot become so while somebody writes by way of it, so this one becomes it where
        # nobody looks.
        aside = self._path.with_suffix(".aside")
        aside.mkdir()
        bind = f"mount --bind {self._path} {aside} && mount -o remount,bind,ro {aside}"
        await self._run_inside(f"{bind} && mount --move {aside} {self._path}")

    async def make_writable(self) -> None:
        await self._run_inside(f"umount -l {self._path}")

    async def _run_inside(self, command: str) -> None:
        pid = str(self.process.pid)
        words = ("nsenter", "-t", pid, "-U", "--preserve-credentials", "-m", "sh", "-c", command)
        done = await asyncio.create_subprocess_exec(*words, stderr=PIPE)
        _, said = await done.communicate()
        assert done.returncode == 0, said.decode()


@asynccontextmanager
async def run_on_tmpfs(path: Path, before: str = "true") -> AsyncIterator[TmpfsHome]:
    """A daemon on a disk at `path`, which is made; `before` is done there before it starts."""
    path.mkdir()
    start = f'{MOUNT} && {{ {before}; }} && exec "$1" run --home "$0" --tcp off'
    words = (*UNSHARE, "sh", "-c", start, path, CRABTALKD)
    process = await asyncio.create_subprocess_exec(*words, stderr=PIPE)
    try:
        yield TmpfsHome(process, path)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def read_first_line(disk: TmpfsHome) -> str:
    assert disk.process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        return (await disk.process.stderr.readline()).decode()


async def read_all_stderr(disk: TmpfsHome) -> str:
    async with asyncio.timeout(PATIENCE):
        _, said = await disk.process.communicate()
    return said.decode()
