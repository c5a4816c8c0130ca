"""A process that appends and commits without a pause, to be killed at any moment.

python -m tests.search.crash_writer HOME SEED

Prints each stored message, as a line with its conversation and word.
"""

import asyncio
import itertools
import random
import sys
from pathlib import Path

from crabtalk.model.messages import Message
from crabtalk.search import SearchScope, SessionIndex
from crabtalk.storage import (
    ConversationMeta,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
)

AT = "2026-01-01T00:00:00Z"


async def write_messages(home: Path, seed: int) -> None:
    """Words contain the seed, so that no word occurs twice in a home."""
    choose = random.Random(seed)
    storage = FileStorage(home, flush=False)
    index = SessionIndex(storage, home / "index" / "sessions")
    await index.search("anything", scope=SearchScope())
    for number in itertools.count():
        pair = Pair("crab", f"user{choose.randrange(40)}")
        word = f"word{seed}x{number}"
        # As the runtime does; it repairs what a crash left of a new log.
        stored = await storage.load_and_repair(pair)
        is_new = stored is None
        meta = (
            stored.meta
            if stored is not None
            else ConversationMeta(*pair, created_at=f"{AT}{seed}{number}")
        )
        records: list[Record] = [meta.make_snapshot()] if is_new else []
        records.append(MessageRecord(meta.message_count, AT, Message("user", f"{word} common")))
        match choose.randrange(20):
            case 0:
                records.append(MetaRecord(title=f"title{seed}x{number}"))
            case 1:
                end = meta.message_count + 1
                records.append(MarkerRecord("a", AT, "t", f"summary{seed}x{number}", end))
            case 2 if not is_new:
                await storage.delete_conversation(pair)
                index.remove_conversation(pair)
                print(f"{pair.sender} gone", flush=True)  # noqa: T201
                continue
        await storage.append(pair, records, create=is_new)
        index.add_records(pair, records)
        print(f"{pair.sender} {word}", flush=True)  # noqa: T201
        if number % 3 == 0:
            index.rescan()


def main() -> None:
    asyncio.run(write_messages(Path(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
