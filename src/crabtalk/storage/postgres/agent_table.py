"""AgentTable: agents in PostgreSQL, each as the text of its file, so that it can be exported."""

import tomllib
from typing import Any

from crabtalk.storage.agent import Agent, AgentError, check_agent_name, parse_agent
from crabtalk.storage.agent_files import edit_agent_text

from .database import PostgresDatabase

NOTIFY_CHANGE = """
UPDATE revisions SET number = number + 1 WHERE what = 'agents'
RETURNING pg_notify($1, 'revision agents ' || number)
"""


class AgentTable:
    """Each change notifies all daemons."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel

    async def load_all(self) -> tuple[list[Agent], dict[str, str]]:
        agents: list[Agent] = []
        broken: dict[str, str] = {}
        for row in await self._database.fetch('SELECT * FROM agents ORDER BY name COLLATE "C"'):
            try:
                agents.append(parse_agent_row(row["name"], row["body"]))
            except AgentError as error:
                broken[row["name"]] = str(error)
        return agents, broken

    async def load(self, name: str) -> Agent | None:
        check_agent_name(name)
        row = await self._database.fetch_row("SELECT body FROM agents WHERE name = $1", name)
        return parse_agent_row(name, row["body"]) if row is not None else None

    async def save(self, agent: Agent) -> None:
        """Keeps comments and unknown keys of the text. Raises AgentError without a change."""
        check_agent_name(agent.name)
        async with self._database.transaction() as connection:
            body = await connection.fetchval(
                "SELECT body FROM agents WHERE name = $1 FOR UPDATE", agent.name
            )
            text = edit_agent_text(body or "", parse_toml(agent.name, body or ""), agent)
            await self._put(connection, agent.name, text)

    async def put(self, name: str, body: str) -> None:
        """Store the text unchanged, replacing any text before it."""
        check_agent_name(name)
        async with self._database.transaction() as connection:
            await self._put(connection, name, body)

    async def _put(self, connection: Any, name: str, body: str) -> None:
        await connection.execute(
            "INSERT INTO agents VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = $2",
            name,
            body,
        )
        await connection.execute(NOTIFY_CHANGE, self._channel)

    async def load_bodies(self) -> dict[str, str]:
        rows = await self._database.fetch('SELECT * FROM agents ORDER BY name COLLATE "C"')
        return {row["name"]: row["body"] for row in rows}

    async def delete(self, name: str) -> bool:
        check_agent_name(name)
        async with self._database.transaction() as connection:
            status = await connection.execute("DELETE FROM agents WHERE name = $1", name)
            await connection.execute(NOTIFY_CHANGE, self._channel)
        return bool(status != "DELETE 0")

    async def rename(self, old: str, new: str) -> None:
        check_agent_name(old)
        check_agent_name(new)
        async with self._database.transaction() as connection:
            if await connection.fetchval("SELECT true FROM agents WHERE name = $1", new):
                raise AgentError(f"there is an agent {new!r} already; choose another name")
            status = await connection.execute(
                "UPDATE agents SET name = $2 WHERE name = $1", old, new
            )
            if status == "UPDATE 0":
                raise AgentError(f"there is no agent {old!r} to rename; check the name")
            await connection.execute(NOTIFY_CHANGE, self._channel)


def parse_agent_row(name: str, body: str) -> Agent:
    try:
        return parse_agent(name, parse_toml(name, body))
    except AgentError as error:
        raise AgentError(f"the agent {name} in the database: {error}") from None


def parse_toml(name: str, body: str) -> dict[str, Any]:
    try:
        return tomllib.loads(body)
    except (ValueError, RecursionError) as error:
        raise AgentError(f"its text is not valid TOML: {error}; save {name} anew") from None
