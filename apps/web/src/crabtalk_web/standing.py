"""Standing: how things are in the folder `web`, told from its files alone."""

import os
from typing import Any

from crabtalk.component import Place

from .gateway.credentials import Credentials
from .gateway.journal import Journal
from .gateway.store import Store


def standing(store: Store, credentials: Credentials | None) -> dict[str, Any]:
    return {
        "relay": credentials.relay if credentials is not None else "",
        "machine": credentials.machine_id if credentials is not None else "",
        "running": is_running(store),
        "conversations": conversations(store),
    }


def conversations(store: Store) -> list[dict[str, Any]]:
    found = []
    for path in sorted(store.journal.glob("*.jsonl")):
        book = Journal.peek(path)
        found.append(
            {
                "agent": book.agent,
                "sender": book.sender,
                "session": book.session,
                "unsent": len(book.unsent),
                "waiting": len(book.waiting),
                "refused": book.memory.refused if book.memory is not None else 0,
                "unprotected": sorted(book.memory.clients) if book.memory is not None else [],
            }
        )
    return found


def is_running(store: Store) -> bool:
    """Whether a process holds the lock of the gateway's name."""
    import fcntl

    try:
        lock = os.open(Place(store.home, "web").lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
