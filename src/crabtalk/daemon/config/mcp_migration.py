"""Moving MCP servers to where they belong: from a table in config.toml into the agents' files.

Agents used to name servers of a common table (RFC 0193, Migration). Each gets a copy of what it
names; the table stays in config.toml as a comment, so that nothing is lost.
"""

import logging
from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

log = logging.getLogger(__name__)

SECTION = "mcps"
MOVED_COMMENT = "# Moved into the files of the agents that use them, by crabtalkd:"


def move_mcp_servers(home: Path) -> list[str]:
    """Does it, where there is something to move. A sentence for each agent that it cannot be done
    for. Blocks: call it in a thread."""
    agents = [path for path in sorted((home / "agents").glob("*.toml")) if has_server_names(path)]
    if not agents:
        return []
    config = home / "config.toml"
    table = read_toml(config).get(SECTION)
    servers = table if isinstance(table, dict) else {}
    problems = [problem for path in agents if (problem := move_into_agent(path, servers))]
    if servers and not problems:
        comment_out_servers(config)
    return problems


def has_server_names(path: Path) -> bool:
    """Whether a file is of the old kind; one that cannot be read is somebody else's problem."""
    listed = read_toml(path).get(SECTION)
    return isinstance(listed, list) and any(isinstance(entry, str) for entry in listed)


def read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return {}


def move_into_agent(path: Path, servers: dict[str, Any]) -> str:
    """Writes an agent's file anew, or says why not."""
    import tomlkit

    document = tomlkit.parse(path.read_bytes().decode())
    listed = document[SECTION].unwrap()
    wanted = [entry if isinstance(entry, str) else entry.get("name", "") for entry in listed]
    missing = [
        name
        for name, entry in zip(wanted, listed, strict=True)
        if isinstance(entry, str) and not isinstance(servers.get(name), dict)
    ]
    if missing:
        return (
            f"{path} names the MCP servers {', '.join(missing)}, which config.toml does not have; "
            "write them as [[mcps]] there"
        )
    tables = tomlkit.aot()
    for name, entry in zip(wanted, listed, strict=True):
        table = tomlkit.table()
        table.update({"name": name, **(servers[name] if isinstance(entry, str) else entry)})
        tables.append(table)
    del document[SECTION]
    text = tomlkit.dumps(document)
    made = tomlkit.document()
    made[SECTION] = tables
    replace_file(path, f"{text.rstrip()}\n\n{tomlkit.dumps(made)}".encode(), 0o600)
    log.info("%s now has its MCP servers itself: %s", path, ", ".join(wanted))
    return ""


def comment_out_servers(config: Path) -> None:
    import tomlkit

    document = tomlkit.parse(config.read_bytes().decode())
    made = tomlkit.document()
    made[SECTION] = document.pop(SECTION)
    old = "\n".join(f"# {line}".rstrip() for line in tomlkit.dumps(made).strip().splitlines())
    text = tomlkit.dumps(document).rstrip()
    replace_file(config, f"{text}\n\n{MOVED_COMMENT}\n{old}\n".lstrip().encode(), 0o600)
    log.info("the MCP servers in %s were moved into the files of agents", config)
