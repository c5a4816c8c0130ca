"""MemoryStorage: what it alone does. What all storages do is in test_storage."""

import pytest

from crabtalk.storage import Agent, AgentError, MemoryStorage, StorageError
from tests.storage.samples import PAIR, opening, said

CRAB = Agent("crab", "You are crab.")
ANT = Agent("ant", "You are ant.")


async def test_it_has_the_agents_it_was_given_in_order_of_their_names() -> None:
    storage = MemoryStorage(CRAB, ANT)
    assert await storage.agents() == ([ANT, CRAB], {})
    assert await storage.agent("crab") == CRAB
    assert await storage.agent("bee") is None


async def test_agents_are_saved_renamed_and_deleted() -> None:
    storage = MemoryStorage(CRAB)
    await storage.save_agent(ANT)
    await storage.rename_agent("ant", "bee")
    assert await storage.agent("ant") is None
    assert await storage.agent("bee") == Agent("bee", ANT.prompt)
    with pytest.raises(AgentError, match="'crab' is there already"):
        await storage.rename_agent("bee", "crab")
    with pytest.raises(AgentError, match="no agent is called 'ant'"):
        await storage.rename_agent("ant", "wasp")
    assert await storage.delete_agent("bee")
    assert not await storage.delete_agent("bee")
    assert await storage.agents() == ([CRAB], {})


async def test_two_storages_share_nothing() -> None:
    one, other = MemoryStorage(), MemoryStorage()
    await one.append(PAIR, [opening(), said(0)], create=True)
    await one.configure("llm", "model", "m")
    assert await other.load(PAIR) is None
    assert await other.config() == {}


async def test_what_it_has_can_be_read_after_it_was_closed() -> None:
    storage = MemoryStorage()
    await storage.append(PAIR, [opening(), said(0)], create=True)
    await storage.close()
    stored = await storage.load(PAIR)
    assert stored is not None
    assert stored.messages == (said(0),)
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.append(PAIR, [said(1)])
