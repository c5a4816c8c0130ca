"""Moves MCP servers from a table in config.toml into the agents' files.

Agents used to name servers of a shared table (RFC 0193, Migration). Each agent gets a copy of the
servers it names; the table stays in config.toml as a comment, so that nothing is lost.
"""

import logging
from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

log = logging.getLogger(__name__)

SECTION = "mcps"
MOVED_COMMENT = "# Moved into the files of the agents that use them, by crabtalkd:"


def move_mcp_servers(home: Path) -> list[str]:
    """Move the servers, if there are any. Returns a sentence for each agent that failed. Blocks:
    call it in a thread."""
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
    """Whether a file has the old format. Unreadable files are reported elsewhere."""
    listed = read_toml(path).get(SECTION)
    return isinstance(listed, list) and any(isinstance(entry, str) for entry in listed)


def read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return {}


def move_into_agent(path: Path, servers: dict[str, Any]) -> str:
    """Rewrite an agent's file. Returns the reason if that is not possible."""
    import tomlkit

    document = tomlkit.parse(path.read_bytes().decode())
    listed = document[SECTION].unwrap()
    names = [entry if isinstance(entry, str) else entry.get("name", "") for entry in listed]
    missing = [
        name
        for name, entry in zip(names, listed, strict=True)
        if isinstance(entry, str) and not isinstance(servers.get(name), dict)
    ]
    if missing:
        return (
            f"{path} names the MCP servers {', '.join(missing)}, which config.toml does not have; "
            "write them as [[mcps]] there"
        )
    tables = tomlkit.aot()
    for name, entry in zip(names, listed, strict=True):
        table = tomlkit.table()
        table.update({"name": name, **(servers[name] if isinstance(entry, str) else entry)})
        tables.append(table)
    del document[SECTION]
    text = tomlkit.dumps(document)
    servers_document = tomlkit.document()
    servers_document[SECTION] = tables
    replace_file(path, f"{text.rstrip()}\n\n{tomlkit.dumps(servers_document)}".encode(), 0o600)
    log.info("%s now has its MCP servers itself: %s", path, ", ".join(names))
    return ""


def comment_out_servers(config: Path) -> None:
    import tomlkit

    document = tomlkit.parse(config.read_bytes().decode())
    servers_document = tomlkit.document()
    servers_document[SECTION] = document.pop(SECTION)
    comment = "\n".join(
        f"# {line}".rstrip() for line in tomlkit.dumps(servers_document).strip().splitlines()
    )
    text = tomlkit.dumps(document).rstrip()
    replace_file(config, f"{text}\n\n{MOVED_COMMENT}\n{comment}\n".lstrip().encode(), 0o600)
    log.info("the MCP servers in %s were moved into the files of agents", config)
