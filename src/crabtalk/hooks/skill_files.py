"""Skills on disk: finds and parses directories with a SKILL.md, as agentskills.io defines it.

The hook that uses them is in skill.py.
"""

import os
import re
import stat
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path

import msgspec

from .skill_front_matter import MAX_LENGTH, FrontMatterParser, FrontMatterValue, SkillError

SKILL_FILE = "SKILL.md"
MAX_FILE_BYTES = 256 * 1024  # bytes of a SKILL.md
MAX_DEPTH = 8  # levels of directories below a root
MOST_SKILLS = 2_000
MOST_DIRECTORIES = 20_000  # a root may be a whole source tree

NAME_PATTERN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# A tool with an optional pattern in parentheses: Bash(git add:*).
ALLOWED_TOOL_PATTERN = re.compile(r"[^\s,()]+(?:\([^()]*\))?")


class Skill(msgspec.Struct, frozen=True):
    """The front matter of a SKILL.md. The body is read only when the skill is used."""

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()  # empty: all
    directory: Path = Path()
    source: str = ""  # the label of the root it was found under


# ── Finding ─────────────────────────────────────────────────────────────────────────────────────

FileStamp = tuple[int, ...]
SkillOrProblem = Skill | str  # a str says what is wrong with it


class SkillFiles:
    """All skills below some roots, as of the last `scan`. Thread-safe."""

    def __init__(self, roots: Sequence[tuple[str, Path]]) -> None:
        self._roots = tuple(roots)
        self._lock = threading.Lock()
        self._cache: dict[Path, tuple[FileStamp, SkillOrProblem]] = {}
        self.skills: Mapping[str, Skill] = {}
        self.warnings: tuple[str, ...] = ()

    def scan(self) -> list[str]:
        """Search the disk; blocks. Returns the warnings that the last scan did not have.

        Unchanged files are not read again.
        """
        with self._lock:
            read: dict[Path, tuple[FileStamp, SkillOrProblem]] = {}
            skills: dict[str, Skill] = {}
            warnings: list[str] = []
            for source, directory in find_skill_directories(self._roots, warnings):
                if len(skills) >= MOST_SKILLS:
                    warnings.append(
                        f"there are more than {MOST_SKILLS} skills; the rest is skipped"
                    )
                    break
                stamp, skill = self._read_directory(source, directory)
                read[directory] = stamp, skill
                if isinstance(skill, str):
                    warnings.append(skill)
                    continue
                if (first := skills.setdefault(skill.name, skill)) is not skill:
                    warnings.append(
                        f"{str(directory)!r} is skipped: the skill {skill.name} is already in "
                        f"{str(first.directory)!r}"
                    )
                elif directory.name != skill.name:
                    warnings.append(
                        f"{str(directory)!r} should be named {skill.name}, as its skill"
                    )
            before = set(self.warnings)
            self._cache, self.skills, self.warnings = read, skills, tuple(warnings)
            return [warning for warning in warnings if warning not in before]

    def _read_directory(self, source: str, directory: Path) -> tuple[FileStamp, SkillOrProblem]:
        stamp: FileStamp = ()
        try:
            status = (directory / SKILL_FILE).stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            before, cached = self._cache.get(directory, ((), ""))
            if before == stamp and (isinstance(cached, str) or cached.source == source):
                return stamp, cached
            return stamp, read_skill(directory, source)[0]
        except SkillError as error:
            return stamp, f"{str(directory)!r} is skipped: {error}"
        except OSError as error:
            return stamp, f"{str(directory)!r} is skipped: {error.strerror}"


def find_skill_directories(
    roots: Sequence[tuple[str, Path]], warnings: list[str]
) -> Iterator[tuple[str, Path]]:
    """Yield directories with a SKILL.md, those near a root first.

    The directories inside a skill are not searched: they are part of that skill.
    """
    seen: set[tuple[int, int]] = set()  # devices and inodes, as links may form cycles
    for source, root in roots:
        waiting = deque([(root, 0)])
        while waiting:
            directory, depth = waiting.popleft()
            try:
                status = directory.stat()
                if (status.st_dev, status.st_ino) in seen or not stat.S_ISDIR(status.st_mode):
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(directory) as entries:
                    inside = sorted(entries, key=lambda entry: entry.name)
            except FileNotFoundError:
                continue
            except OSError as error:
                warnings.append(f"{str(directory)!r} cannot be searched: {error.strerror}")
                continue
            if len(seen) > MOST_DIRECTORIES:
                warnings.append(f"there are too many directories below {str(root)!r}")
                return
            if is_skill := any(entry.name == SKILL_FILE for entry in inside):
                yield source, directory
            if depth < MAX_DEPTH and (depth == 0 or not is_skill):
                waiting += [(directory / e.name, depth + 1) for e in inside if may_hold_skills(e)]


def may_hold_skills(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a link to itself
        return False


def read_skill(directory: Path, source: str = "") -> tuple[Skill, str]:
    """Return the skill in a directory, and its body. Raises SkillError and OSError."""
    # Non-blocking: SKILL.md may be a pipe that has no writer.
    number = os.open(directory / SKILL_FILE, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise SkillError(f"{SKILL_FILE} is not a file")
        data = file.read(MAX_FILE_BYTES + 1)
    return parse_skill(data, directory, source)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def parse_skill(data: bytes, directory: Path = Path(), source: str = "") -> tuple[Skill, str]:
    """Return the skill and its body. Raises SkillError."""
    if len(data) > MAX_FILE_BYTES:
        raise SkillError(
            f"{SKILL_FILE} has more than {MAX_FILE_BYTES} bytes; move some of it to other files"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SkillError(f"{SKILL_FILE} is not UTF-8; save it as such") from None
    if "\0" in text:
        raise SkillError(f"{SKILL_FILE} holds a NUL; leave it out")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").lstrip().split("\n")
    ends = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    if len(ends) < 2 or ends[0] != 0:
        raise SkillError("it must start with a line ---, name and description, and a line ---")
    head = FrontMatterParser(lines[1 : ends[1]]).parse()
    body = dropwhile(lambda line: not line.strip(), lines[ends[1] + 1 :])
    return build_skill(head, directory, source), "\n".join(body).rstrip()


def build_skill(head: dict[str, FrontMatterValue], directory: Path, source: str) -> Skill:
    name = get_text_field(head, "name", 64)
    if not NAME_PATTERN.fullmatch(name):
        raise SkillError("name must be of a-z, 0-9 and single dashes between them, such as a-skill")
    description = get_text_field(head, "description", 1024)
    if not description:
        raise SkillError("description is missing; write what the skill does and when to use it")
    metadata = head.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise SkillError("metadata must be a map of strings")
    allowed = head.get("allowed-tools") or []
    if isinstance(allowed, dict):
        raise SkillError("allowed-tools must be a list, or names between commas or spaces")
    if isinstance(allowed, str):
        if ALLOWED_TOOL_PATTERN.sub("", allowed).strip(" \t\n,"):
            raise SkillError("allowed-tools has a parenthesis too many, or one too few")
        allowed = ALLOWED_TOOL_PATTERN.findall(allowed)
    return Skill(
        name=name,
        description=description,
        license=get_text_field(head, "license", MAX_LENGTH),
        compatibility=get_text_field(head, "compatibility", 500),
        metadata=metadata,
        allowed_tools=tuple(entry.strip() for entry in allowed),
        directory=directory,
        source=source,
    )


def get_text_field(head: dict[str, FrontMatterValue], key: str, longest: int) -> str:
    value = head.get(key, "")
    if not isinstance(value, str):
        raise SkillError(f"{key} must be text")
    if len(value.strip()) > longest:
        raise SkillError(f"{key} has more than {longest} characters; shorten it")
    return value.strip()
