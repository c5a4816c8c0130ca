"""Plans: every file that a package adds to a home, known before the first is written."""

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CrabupError
from .manifest import ManifestError, PackageAgent, PackageManifest
from .repositories import compute_checksum, list_files, read_inside

SKILL_FILE = "SKILL.md"
MAX_PROMPT_BYTES = 1024 * 1024
MAX_SCRIPT_BYTES = 256 * 1024
MAX_FILES = 2_000
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_TOTAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the home, by its path there."""

    path: str
    data: bytes
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """What a package comes to in a home. `script` is the text of its set-up, and `script_file`
    where that is in the repository."""

    manifest: PackageManifest
    files: tuple[PlannedFile, ...]
    # MCP servers for an agent that is there already.
    agent: str = ""
    block: str = ""
    script: str = ""
    script_file: str = ""

    @property
    def agents(self) -> list[str]:
        return [agent.name for agent in self.manifest.agents]

    @property
    def skills(self) -> list[str]:
        return [
            addition.path.split("/")[-2]
            for addition in self.files
            if addition.path.startswith("skills/") and addition.path.count("/") == 3
            if addition.path.endswith(f"/{SKILL_FILE}")
        ]


def make_plan(manifest: PackageManifest, repository: Path | None, agent: str) -> InstallPlan:
    """Raises CommandError for a package that cannot be installed, or must not be."""
    if manifest.checksum:
        verify_checksum(manifest, repository)
    claimed = {server["name"] for each in manifest.agents for server in each.mcps or ()}
    loose = [server for name, server in manifest.mcps.items() if name not in claimed]
    if loose and not agent and not manifest.agents:
        raise CrabupError(
            f"{manifest.name} brings MCP servers and no agent; say --agent NAME to give them to "
            "one of yours"
        )
    files = [
        PlannedFile(
            f"agents/{each.name}.toml", render_agent_file(manifest, each, repository, loose, agent)
        )
        for each in manifest.agents
    ]
    if repository is not None:
        files += collect_skill_files(manifest.name, repository)
    files.append(PlannedFile(f"packages/{manifest.name}.toml", manifest.text))
    block = render_toml({"mcps": loose}) if loose and agent else ""
    return InstallPlan(manifest, tuple(files), agent, block, *read_script(manifest, repository))


def verify_checksum(manifest: PackageManifest, repository: Path | None) -> None:
    if repository is None:
        raise ManifestError(
            f"the manifest of {manifest.name} has a checksum and no repository; report it"
        )
    if (found := compute_checksum(repository, f"{manifest.name}.toml")) != manifest.checksum:
        raise ManifestError(
            f"{manifest.name} is not what its manifest speaks of: it should be "
            f"{manifest.checksum} and is {found}; report it"
        )


def render_agent_file(
    manifest: PackageManifest,
    agent: PackageAgent,
    repository: Path | None,
    loose: Sequence[Mapping[str, Any]],
    to: str,
) -> bytes:
    """Servers that no agent of the package names are for all that leave it open."""
    servers = (() if to else loose) if agent.mcps is None else agent.mcps
    known = {
        "description": agent.description,
        "model": agent.model,
        "prompt": agent.prompt
        if agent.prompt.strip()
        else read_prompt(manifest, agent, repository),
        "thinking": agent.thinking,
        "skills": list(agent.skills),
        "mcps": list(servers),
    }
    return render_toml({key: value for key, value in known.items() if value}).encode()


def read_prompt(manifest: PackageManifest, agent: PackageAgent, repository: Path | None) -> str:
    name = f"agents/{agent.name}.md"
    data = None if repository is None else read_inside(repository, name, MAX_PROMPT_BYTES)
    try:
        prompt = "" if data is None else remove_front_matter(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ManifestError(f"{name} of {manifest.name} is not UTF-8; report it") from None
    if not prompt.strip() or "\0" in prompt:
        raise ManifestError(
            f"the agent {agent.name} of {manifest.name} has no prompt, neither in the manifest nor "
            f"in {name} of its repository; report it"
        )
    return prompt


def remove_front_matter(text: str) -> str:
    """What other programs want to know of an agent stands above its prompt, between lines `---`."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == "---":
                return "\n".join(lines[number + 1 :]).lstrip("\n")
    return "\n".join(lines)


def collect_skill_files(package: str, repository: Path) -> list[PlannedFile]:
    """Each directory with a SKILL.md, whole, as `skills/<package>/<its name>`."""
    paths = list_files(repository)
    directories = {path.rpartition("/")[0] for path in paths if path.split("/")[-1] == SKILL_FILE}
    outermost = sorted(
        each
        for each in directories
        if not any(is_below(each, other) for other in directories if other != each)
    )
    names = [each.rpartition("/")[2] or package for each in outermost]
    if len(set(names)) < len(names):
        raise ManifestError(f"{package} has two skills in directories of one name; report it")
    found: list[PlannedFile] = []
    for name, directory in zip(names, outermost, strict=True):
        for path in paths:
            if is_below(path, directory):
                rest = path.removeprefix(directory).lstrip("/")
                found.append(plan_copy(repository, path, f"skills/{package}/{name}/{rest}"))
                if (
                    len(found) > MAX_FILES
                    or sum(len(each.data) for each in found) > MAX_TOTAL_BYTES
                ):
                    raise ManifestError(f"the skills of {package} are too large; report it")
    return found


def is_below(path: str, directory: str) -> bool:
    return not directory or path.startswith(f"{directory}/")


def plan_copy(repository: Path, path: str, to: str) -> PlannedFile:
    data = read_inside(repository, path, MAX_FILE_BYTES)
    if data is None:
        raise ManifestError(f"{path} in the repository cannot be read; report it")
    is_program = bool((repository / path).stat().st_mode & 0o100)
    return PlannedFile(to, data, 0o700 if is_program else 0o600)


def read_script(manifest: PackageManifest, repository: Path | None) -> tuple[str, str]:
    """The text of the set-up, and the file of the repository it is, if it is one."""
    script = manifest.script.strip()
    if not script:
        return "", ""
    if repository is None:
        raise ManifestError(f"{manifest.name} has a set-up and no repository; report it")
    if script.split() != [script]:
        return manifest.script, ""
    name = script.removeprefix("./")
    data = read_inside(repository, name, MAX_SCRIPT_BYTES)
    return (script, "") if data is None else (data.decode(errors="backslashreplace"), name)


def render_toml(document: Mapping[str, Any]) -> str:
    import tomlkit

    made = tomlkit.document()
    for key, value in document.items():
        if key == "mcps":
            tables = tomlkit.aot()
            for server in value:
                table = tomlkit.table()
                for name, entry in server.items():
                    table[name] = make_inline_table(entry) if isinstance(entry, Mapping) else entry
                tables.append(table)
            made[key] = tables
        elif isinstance(value, str):
            made[key] = make_toml_string(value)
        else:
            made[key] = value
    text = tomlkit.dumps(made)
    if tomllib.loads(text) != document:
        raise CrabupError("a text of the package cannot be written as TOML; report it")
    return text


def make_toml_string(text: str) -> Any:
    """Over several lines if it has them, where TOML can hold it so."""
    import tomlkit

    if "\n" in text:
        item = tomlkit.string(text, multiline=True)
        with suppress(ValueError):
            if tomllib.loads(f"x = {item.as_string()}") == {"x": text}:
                return item
    return tomlkit.string(text)


def make_inline_table(value: Mapping[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.inline_table()
    table.update(value)
    return table
