"""Requests that search, list and replace an agent's memory, through a real socket."""

from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import expect_error_code, run_daemon

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop


def make_entry(name: str, content: str = "c", **more: object) -> wire.MemoryEntry:
    return wire.MemoryEntry(name=name, content=content, **{"kind": "note", **more})  # type: ignore[arg-type]


async def list_names(client: Client, **options: object) -> list[str]:
    page = await client.list_memory("crab", **options)  # type: ignore[arg-type]
    return [entry.name for entry in page.entries]


@pytest.mark.req("memory.request.search")
async def test_hits_are_complete_and_have_scores(tmp_path: Path) -> None:
    entries = [
        make_entry("tide", "low at noon", aliases=["ebb"], created_at=1_700_000_000),
        make_entry("old", "ebb and flow", kind="archive"),
        make_entry("moon", "full"),
    ]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.replace_memory("crab", entries)
        hits = (await client.search_memory("crab", "ebb at noon")).hits
        assert [hit.name for hit in hits] == ["tide", "old"]
        assert hits[0].score > hits[1].score > 0
        assert (hits[0].kind, hits[0].content, list(hits[0].aliases)) == (
            "note",
            "low at noon",
            ["ebb"],
        )
        assert hits[0].created_at == "2023-11-14T22:13:20Z"
        assert len((await client.search_memory("crab", "ebb", limit=1)).hits) == 1
        assert list((await client.search_memory("crab", "")).hits) == []
        assert await expect_error_code(client.search_memory("missing", "ebb")) == 404


@pytest.mark.req("memory.request.list")
async def test_entries_are_listed_or_one_is_found_by_name_or_alias(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert await list_names(client) == []
        await client.replace_memory("crab", [make_entry("b", aliases=["x"]), make_entry("a")])
        assert await list_names(client) == ["b", "a"]
        assert await list_names(client, name="x") == ["b"]
        with pytest.raises(ServerError, match="remembers nothing called 'y'") as caught:
            await list_names(client, name="y")
        assert caught.value.code == 404
        assert await expect_error_code(client.list_memory("missing")) == 404


@pytest.mark.req("memory.request.list")
async def test_a_large_memory_comes_in_pages(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        large = [make_entry(f"n{number}", "x" * 1_000_000) for number in range(10)]
        await client.replace_memory("crab", large)
        names: list[str] = []
        after: int | None = None
        pages = 0
        while pages == 0 or after is not None:
            page = await client.list_memory("crab", after=after)
            names += [entry.name for entry in page.entries]
            after = page.next_after if page.HasField("next_after") else None
            assert page.total == 10
            pages += 1
        assert names == [f"n{number}" for number in range(10)]
        assert pages > 1


@pytest.mark.req("memory.request.replace")
async def test_a_replacement_is_applied_completely_or_not_at_all(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.replace_memory("crab", [make_entry("a"), make_entry("t", kind="topic")])
        for wrong in (
            [make_entry("b"), make_entry("b")],
            [make_entry("b"), make_entry("c", aliases=["b"])],
            [make_entry("b", aliases=["b"])],
            [make_entry("b"), make_entry("")],
            [make_entry("b", kind="poem")],
            [make_entry("b", "x" * (1024 * 1024 + 1))],
        ):
            assert await expect_error_code(client.replace_memory("crab", wrong)) == 400
            assert await list_names(client) == ["a", "t"]
        await client.replace_memory("crab", [])
        assert await list_names(client) == []
        assert await expect_error_code(client.replace_memory("missing", [])) == 404
