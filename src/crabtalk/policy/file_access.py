"""FileAccess: which paths the file tools of a run may use.

A path must lie inside every set of folders that applies: the roots of the agent and of each calling
agent, and for a stranger its own folder. The daemon's home is closed to all senders, except for the
folders meant for agents, and so are the /proc entries of running processes.
"""

import os
import re
from pathlib import Path

import msgspec

# Folders of the home that agents may use: files people send (read and write), skills (read only).
FILES_FOLDER = "files"
SKILLS_FOLDER = "skills"
PROCESS_PATH = re.compile(r"/proc/(?:\d+|self|thread-self)(?:/|$)")


class FileAccess(msgspec.Struct, frozen=True):
    """A path must lie in one folder of each set in `folders`. Without any set, all paths outside
    the home are open."""

    folders: tuple[tuple[Path, ...], ...] = ()
    home: Path | None = None
    open_in_home: tuple[Path, ...] = ()  # to read and to change
    readable_in_home: tuple[Path, ...] = ()  # to read only
    writable: tuple[Path, ...] = ()  # files may be changed here; empty: wherever they may be read

    @property
    def is_confined(self) -> bool:
        """Whether paths must lie in certain folders. Hard links are refused then: they may be
        another name of a file outside."""
        return bool(self.folders)

    def find_refusal(self, real: Path, shown: str, *, to_change: bool = False) -> str | None:
        """Return why a resolved path may not be used, or None. Folders are resolved on each call,
        since a folder that is a link may have a new target."""
        for folders in self.folders:
            if not any(is_inside(real, folder) for folder in folders):
                allowed = ", ".join(map(str, folders))
                return f"permission denied: {shown} is outside of {allowed}; stay inside"
        if (
            to_change
            and self.writable
            and not any(is_inside(real, folder) for folder in self.writable)
        ):
            allowed = ", ".join(map(str, self.writable))
            return (
                f"permission denied: files may be changed in {allowed} only, and {shown} is "
                "outside of it; stay inside"
            )
        if PROCESS_PATH.match(str(real)):
            return (
                f"permission denied: {shown} is about a running process, which file tools do not "
                "read; use another file"
            )
        if self.home is not None and is_inside(real, self.home):
            opened = self.open_in_home if to_change else self.open_in_home + self.readable_in_home
            if not any(is_inside(real, folder) for folder in opened):
                return (
                    f"permission denied: {shown} is in the daemon's home, which is closed to file "
                    f"tools; agents may use its folder {FILES_FOLDER}/ and read {SKILLS_FOLDER}/"
                )
        return None


def is_inside(real: Path, folder: Path) -> bool:
    return real.is_relative_to(os.path.realpath(folder))
