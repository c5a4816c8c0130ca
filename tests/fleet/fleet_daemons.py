"""Several daemons in this process, on one database, each with its own home and socket.

    async with run_daemons(tmp_path, postgres_url, 3) as (one, two, three):
        async with one.client() as client: ...

All use the same model. They share state only through the database.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from crabtalk.daemon.config.settings import load_config
from crabtalk.daemon.daemon import Daemon
from crabtalk.daemon.handlers.daemon_server import DaemonServer
from crabtalk.daemon.process.storage_factory import open_storage
from crabtalk.runtime import Hook
from crabtalk.storage.postgres import PostgresStorage
from crabtalk.transport import Listener, ListenOptions, RunFiles, TransportLimits, listen_unix
from tests.daemon.in_process_daemon import AGENTS, CONFIG, PATIENCE, InProcessDaemon
from tests.model_server import ModelServer, model_server

STORAGE = '\n[storage]\nurl = "{database}"\nlease = {lease}\n'


@asynccontextmanager
async def run_daemons(
    path: Path,
    database: str,
    count: int,
    *,
    lease: float = 10.0,
    agents: Mapping[str, str] = AGENTS,
    hooks: Mapping[str, Hook] | None = None,
    model: ModelServer | None = None,
) -> AsyncIterator[list[InProcessDaemon]]:
    async with AsyncExitStack() as stack:
        if model is None:
            model = await stack.enter_async_context(model_server(summary="It was about crabs."))
        config = CONFIG.replace("{url}", model.url) + STORAGE.format(database=database, lease=lease)
        await put_agents(path, database, agents)
        yield [
            await stack.enter_async_context(
                run_one_daemon(path / f"daemon{n}", config, model, hooks)
            )
            for n in range(1, count + 1)
        ]


@asynccontextmanager
async def run_one_daemon(
    home: Path, config: str, model: ModelServer, hooks: Mapping[str, Hook] | None = None
) -> AsyncIterator[InProcessDaemon]:
    home.mkdir(0o700, exist_ok=True)
    (home / "run").mkdir(0o700, exist_ok=True)
    (home / "config.toml").write_text(config)
    settings = load_config(home / "config.toml", tcp="off")
    storage, fleet = open_storage(home, settings)
    daemon = Daemon(home, storage, settings.document, hooks=hooks or {}, fleet=fleet)
    listener = Listener(DaemonServer(daemon), TransportLimits(drain_timeout=1))
    listener.open(listen_unix(RunFiles.for_home(home).socket_path), ListenOptions("unix"))
    try:
        await daemon.open()
        yield InProcessDaemon(home, model, daemon, listener)
    finally:
        async with asyncio.timeout(PATIENCE):
            await listener.close()
            await daemon.close()


async def put_agents(path: Path, database: str, agents: Mapping[str, str]) -> None:
    storage = PostgresStorage(path, database)
    await storage.open()
    for name, text in agents.items():
        await storage.agent_table.put(name, text)
    await storage.close()
