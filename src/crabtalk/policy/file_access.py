"""FileAccess: where the file tools of a run may go.

A path has to lie inside every set of folders that applies: the roots of each agent in the run's
line, and for a stranger a folder of its own. The daemon's home is closed to everybody but for the
folders meant for agents, and so is what the system tells about running processes.
"""

import os
import re
from pathlib import Path

import msgspec

# The folders of the home that agents may use: what people send them, and skills, which they read.
FILES_FOLDER = "files"
SKILLS_FOLDER = "skills"
PROCESS_PATH = re.compile(r"/proc/(?:\d+|self|thread-self)(?:/|$)")


class FileAccess(msgspec.Struct, frozen=True):
    """`folders`: the path must be in one of each set. Without any, all but the home is open."""

    folders: tuple[tuple[Path, ...], ...] = ()
    home: Path | None = None
    open_in_home: tuple[Path, ...] = ()  # to read and to change
    readable_in_home: tuple[Path, ...] = ()  # to read only
    writable: tuple[Path, ...] = ()  # where files may be changed; empty: wherever they are read

    @property
    def is_confined(self) -> bool:
        """Whether there are folders to stay inside of. Then hard links are refused: they may be a
        second name of a file outside."""
        return bool(self.folders)

    def find_refusal(self, real: Path, shown: str, *, to_change: bool = False) -> str | None:
        """Why a resolved path may not be used; None when it may. Folders are resolved each time: a
        link that is one may lead elsewhere by now."""
        for folders in self.folders:
            if not any(is_inside(real, folder) for folder in folders):
                allowed = ", ".join(map(str, folders))
                return f"permission denied: {shown} is outside of {allowed}; stay inside"
        if to_change and self.writable and not any(is_inside(real, one) for one in self.writable):
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
