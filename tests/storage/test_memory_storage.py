"""MemoryStorage: behaviour of this backend alone. Tests for all backends are in test_storage."""

import pytest

from crabtalk.storage import Agent, AgentError, MemoryStorage, StorageError
from tests.storage.sample_records import PAIR, make_message, make_opening

CRAB = Agent("crab", "You are crab.")
ANT = Agent("ant", "You are ant.")


async def test_memory_storage_lists_its_agents_by_name() -> None:
    storage = MemoryStorage(CRAB, ANT)
    assert await storage.list_agents() == ([ANT, CRAB], {})
    assert await storage.load_agent("crab") == CRAB
    assert await storage.load_agent("bee") is None


async def test_agents_are_saved_renamed_and_deleted() -> None:
    storage = MemoryStorage(CRAB)
    await storage.save_agent(ANT)
    await storage.rename_agent("ant", "bee")
    assert await storage.load_agent("ant") is None
    assert await storage.load_agent("bee") == Agent("bee", ANT.prompt)
    with pytest.raises(AgentError, match="'crab' is there already"):
        await storage.rename_agent("bee", "crab")
    with pytest.raises(AgentError, match="no agent is called 'ant'"):
        await storage.rename_agent("ant", "wasp")
    assert await storage.delete_agent("bee")
    assert not await storage.delete_agent("bee")
    assert await storage.list_agents() == ([CRAB], {})


async def test_two_storages_share_nothing() -> None:
    one, other = MemoryStorage(), MemoryStorage()
    await one.append(PAIR, [make_opening(), make_message(0)], create=True)
    await one.set_config_value("llm", "model", "m")
    assert await other.load_and_repair(PAIR) is None
    assert await other.read_config() == {}


async def test_memory_storage_can_be_read_after_it_was_closed() -> None:
    storage = MemoryStorage()
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    await storage.close()
    stored = await storage.load_and_repair(PAIR)
    assert stored is not None
    assert stored.messages == (make_message(0),)
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.append(PAIR, [make_message(1)])
