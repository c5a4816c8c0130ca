"""A daemon whose home is on its own small file system, which can be full or read-only.

It is mounted in a mount namespace, invisible to other processes: tests reach it through /proc of
the process, and it disappears with the process. It needs a system that allows namespaces.
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

# Enough for a daemon, its agents and a few conversations.
SIZE = "512k"
# With a user namespace, which makes root unnecessary.
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
MOUNT = f'mount -t tmpfs -o size={SIZE},mode=700 tmpfs "$0" && cd "$0"'


@cache
def is_possible() -> bool:
    with suppress(OSError):
        command = (*UNSHARE, "sh", "-c", "mount -t tmpfs tmpfs /mnt")
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


class TmpfsHome:
    """The file system and the daemon on it. `home` is its path as other processes see it."""

    def __init__(self, process: asyncio.subprocess.Process, path: Path) -> None:
        self.process = process
        self.home = Path(f"/proc/{process.pid}/root{path}")
        self._path = path
        self._filler = self.home / "filler"

    def fill(self, spare: int = 0) -> None:
        """Fills the disk up to `spare` bytes."""
        with self._filler.open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"\0" * 4096)
        if spare:
            os.truncate(self._filler, max(0, self._filler.stat().st_size - spare))

    def clear(self) -> None:
        self._filler.unlink()

    async def make_read_only(self) -> None:
        """Makes the home read-only for files that are opened from now on."""
        # A mount with open files cannot be remounted read-only, so a read-only bind mount is made
        # elsewhere and moved over it.
        temporary = self._path.with_suffix(".aside")
        temporary.mkdir()
        bind = f"mount --bind {self._path} {temporary} && mount -o remount,bind,ro {temporary}"
        await self._run_inside(f"{bind} && mount --move {temporary} {self._path}")

    async def make_writable(self) -> None:
        await self._run_inside(f"umount -l {self._path}")

    async def _run_inside(self, command: str) -> None:
        pid = str(self.process.pid)
        words = ("nsenter", "-t", pid, "-U", "--preserve-credentials", "-m", "sh", "-c", command)
        process = await asyncio.create_subprocess_exec(*words, stderr=PIPE)
        _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()


@asynccontextmanager
async def run_on_tmpfs(path: Path, before: str = "true") -> AsyncIterator[TmpfsHome]:
    """Mounts a disk at `path`, runs the command `before` there, then starts the daemon on it."""
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
        _, stderr = await disk.process.communicate()
    return stderr.decode()
