"""Agent files: one TOML file per agent, which people edit as well.

Saving changes only the settings that differ; the new text is parsed and checked before it is
written.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crabtalk.model.messages import Value
from crabtalk.transport import replace_file

from .agent import (
    AGENT_KEYS,
    SERVER_KEYS,
    Agent,
    AgentError,
    McpServerConfig,
    ValueParser,
    check_agent_name,
    parse_agent,
)
from .toml_editor import TomlEditor, index_by_name
from .toml_values import is_same_value

AgentList = list[Agent]
BrokenAgents = dict[str, str]


class AgentFiles:
    """The agents in a directory. Every method blocks: call it in a thread.

    Callers ensure that no two calls change the same agent at once.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def list(self) -> tuple[AgentList, BrokenAgents]:
        """All agents sorted by name, and by name the reason for each file that is not an agent."""
        agents: AgentList = []
        broken: BrokenAgents = {}
        try:
            files = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return agents, broken
        for name in sorted(file.removesuffix(".toml") for file in files if is_agent_file(file)):
            printable = os.fsencode(name).decode(errors="replace")
            try:
                check_agent_name(name)
            except AgentError as error:
                broken[printable] = f"{self._directory}/{printable}.toml: {error}"
                continue
            try:
                agent = self.load(name)
            except AgentError as error:
                broken[printable] = str(error)
            except OSError as error:
                broken[printable] = (
                    f"cannot read {self._path(name)}: {error.strerror}; check its rights"
                )
            else:
                if agent is not None:  # deleted a moment ago
                    agents.append(agent)
        return agents, broken

    def load(self, name: str) -> Agent | None:
        path = self._path(name)
        text_and_document = read_document(path)
        if text_and_document is None:
            return None
        try:
            return parse_agent(name, text_and_document[1])
        except AgentError as error:
            raise AgentError(f"{path}: {error}") from None

    def save(self, agent: Agent) -> None:
        """Raises AgentError, and changes nothing, when the file exists but cannot be read."""
        path = self._path(agent.name)
        text, document = read_document(path) or ("", {})
        data = edit_agent_text(text, document, agent).encode()
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flush_directory(self._directory.parent)

        replace_file(path, data, 0o600)

    def delete(self, name: str) -> bool:
        """Returns False when there was no such agent."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        flush_directory(self._directory)
        return True

    def rename(self, old: str, new: str) -> None:
        source, target = self._path(old), self._path(new)
        if os.path.lexists(target):
            raise AgentError(f"there is an agent {new!r} already; choose another name")
        try:
            source.rename(target)
        except FileNotFoundError:
            raise AgentError(f"there is no agent {old!r} to rename; check the name") from None
        flush_directory(self._directory)

    def _path(self, name: str) -> Path:
        check_agent_name(name)
        return self._directory / f"{name}.toml"


def is_agent_file(file: str) -> bool:
    return file.endswith(".toml") and not file.startswith(".")


def read_document(path: Path) -> tuple[str, dict[str, Any]] | None:
    """The text of a file and its parsed content; None when it does not exist."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise AgentError(f"{path} is not a file; move it away")
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{path} is not valid TOML: {error}; mend it or move it away") from None


def flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def edit_agent_text(text: str, document: Mapping[str, Any], agent: Agent) -> str:
    """Returns `text`, whose parsed content is `document`, with the settings of `agent`."""
    editor = TomlEditor(text)
    old = {key: value for key, value in document.items() if key != "mcps"}
    servers = document.get("mcps", [])
    indexes = index_by_name(servers)
    before = [servers[indexes[s.name]] if s.name in indexes else {} for s in agent.mcps]
    tables = [
        merge_table(SERVER_KEYS, server, McpServerConfig(name=""), table)
        for server, table in zip(agent.mcps, before, strict=True)
    ]
    editor.update_table((), old, merge_table(AGENT_KEYS, agent, Agent(name="", prompt=""), old))
    editor.update_table_array("mcps", servers, tables)
    try:
        is_right = describes_agent(tomllib.loads(editor.text()), document, agent)
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise AgentError(f"the file of {agent.name!r} cannot be changed safely; edit it by hand")
    return editor.text()


def describes_agent(document: Mapping[str, Any], before: Mapping[str, Any], agent: Agent) -> bool:
    """Whether `document` has the settings of the agent and all unknown keys of `before`."""
    parsed = parse_agent(agent.name, document)
    others = [{k: v for k, v in d.items() if k not in AGENT_KEYS} for d in (before, document)]
    is_equal = parsed == agent and is_same_value(parsed.hooks, agent.hooks)
    return is_equal and repr(others[0]) == repr(others[1])


def merge_table(
    keys: Mapping[str, ValueParser], value: Value, default: Value, old: Mapping[str, Any]
) -> dict[str, Any]:
    """The new content of a table. Unknown keys stay, and so do values that mean the same as the new
    ones but are written differently."""
    table = {key: entry for key, entry in old.items() if key not in keys}
    for key in keys:
        new = getattr(value, key)
        if key == "mcps":
            continue
        if key in old and has_same_meaning(keys[key], old[key], new):
            table[key] = old[key]
        elif new not in (None, {}) and (key in old or new != getattr(default, key)):
            table[key] = tuples_to_lists(new)
    return table


def tuples_to_lists(value: Any) -> Any:
    """Tuples as TOML lists, also inside a table, as in [permissions]."""
    if isinstance(value, dict):
        return {key: tuples_to_lists(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def has_same_meaning(parse: ValueParser, written: Any, value: Any) -> bool:
    try:
        return is_same_value(parse(written, ""), value)
    except AgentError:
        return False
