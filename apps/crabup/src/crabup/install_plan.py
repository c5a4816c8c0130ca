"""Plans: every file that a package adds to a home, computed before the first one is written."""

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
    """A file to be written, with its path in the home."""

    path: str
    data: bytes
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """All that a package adds to a home. `script` is the text of its setup script, and
    `script_file` its path in the repository."""

    manifest: PackageManifest
    files: tuple[PlannedFile, ...]
    # MCP servers for an existing agent of the user's.
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
    """Raises CrabupError for a package that cannot or must not be installed."""
    if manifest.checksum:
        verify_checksum(manifest, repository)
    claimed_names = {
        server["name"] for packaged_agent in manifest.agents for server in packaged_agent.mcps or ()
    }
    unclaimed = [server for name, server in manifest.mcps.items() if name not in claimed_names]
    if unclaimed and not agent and not manifest.agents:
        raise CrabupError(
            f"{manifest.name} brings MCP servers and no agent; say --agent NAME to give them to "
            "one of yours"
        )
    files = [
        PlannedFile(
            f"agents/{packaged_agent.name}.toml",
            render_agent_file(manifest, packaged_agent, repository, unclaimed, agent),
        )
        for packaged_agent in manifest.agents
    ]
    if repository is not None:
        files += collect_skill_files(manifest.name, repository)
    files.append(PlannedFile(f"packages/{manifest.name}.toml", manifest.text))
    block = render_toml({"mcps": unclaimed}) if unclaimed and agent else ""
    return InstallPlan(manifest, tuple(files), agent, block, *read_script(manifest, repository))


def verify_checksum(manifest: PackageManifest, repository: Path | None) -> None:
    if repository is None:
        raise ManifestError(
            f"the manifest of {manifest.name} has a checksum and no repository; report it"
        )
    if (checksum := compute_checksum(repository, f"{manifest.name}.toml")) != manifest.checksum:
        raise ManifestError(
            f"{manifest.name} is not what its manifest speaks of: it should be "
            f"{manifest.checksum} and is {checksum}; report it"
        )


def render_agent_file(
    manifest: PackageManifest,
    agent: PackageAgent,
    repository: Path | None,
    unclaimed: Sequence[Mapping[str, Any]],
    target_agent: str,
) -> bytes:
    """Servers that no agent of the package claims go to the agents without a list of servers."""
    servers = (() if target_agent else unclaimed) if agent.mcps is None else agent.mcps
    values = {
        "description": agent.description,
        "model": agent.model,
        "prompt": agent.prompt
        if agent.prompt.strip()
        else read_prompt(manifest, agent, repository),
        "thinking": agent.thinking,
        "skills": list(agent.skills),
        "mcps": list(servers),
    }
    return render_toml({key: value for key, value in values.items() if value}).encode()


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
    """Remove the front matter between `---` lines. It holds metadata for other programs."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == "---":
                return "\n".join(lines[number + 1 :]).lstrip("\n")
    return "\n".join(lines)


def collect_skill_files(package: str, repository: Path) -> list[PlannedFile]:
    """Copy each directory with a SKILL.md, whole, to `skills/<package>/<its name>`."""
    paths = list_files(repository)
    directories = {path.rpartition("/")[0] for path in paths if path.split("/")[-1] == SKILL_FILE}
    outermost = sorted(
        candidate
        for candidate in directories
        if not any(is_below(candidate, other) for other in directories if other != candidate)
    )
    names = [candidate.rpartition("/")[2] or package for candidate in outermost]
    if len(set(names)) < len(names):
        raise ManifestError(f"{package} has two skills in directories of one name; report it")
    copies: list[PlannedFile] = []
    for name, directory in zip(names, outermost, strict=True):
        for path in paths:
            if is_below(path, directory):
                rest = path.removeprefix(directory).lstrip("/")
                copies.append(plan_copy(repository, path, f"skills/{package}/{name}/{rest}"))
                if (
                    len(copies) > MAX_FILES
                    or sum(len(candidate.data) for candidate in copies) > MAX_TOTAL_BYTES
                ):
                    raise ManifestError(f"the skills of {package} are too large; report it")
    return copies


def is_below(path: str, directory: str) -> bool:
    return not directory or path.startswith(f"{directory}/")


def plan_copy(repository: Path, path: str, target: str) -> PlannedFile:
    data = read_inside(repository, path, MAX_FILE_BYTES)
    if data is None:
        raise ManifestError(f"{path} in the repository cannot be read; report it")
    is_program = bool((repository / path).stat().st_mode & 0o100)
    return PlannedFile(target, data, 0o700 if is_program else 0o600)


def read_script(manifest: PackageManifest, repository: Path | None) -> tuple[str, str]:
    """The text of the setup script, and its file in the repository if it is one."""
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

    toml = tomlkit.document()
    for key, value in document.items():
        if key == "mcps":
            tables = tomlkit.aot()
            for server in value:
                table = tomlkit.table()
                for name, entry in server.items():
                    table[name] = make_inline_table(entry) if isinstance(entry, Mapping) else entry
                tables.append(table)
            toml[key] = tables
        elif isinstance(value, str):
            toml[key] = make_toml_string(value)
        else:
            toml[key] = value
    text = tomlkit.dumps(toml)
    if tomllib.loads(text) != document:
        raise CrabupError("a text of the package cannot be written as TOML; report it")
    return text


def make_toml_string(text: str) -> Any:
    """A multi-line string if the text has several lines and TOML can express it so."""
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
