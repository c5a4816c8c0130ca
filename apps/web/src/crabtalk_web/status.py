"""Standing: how things are in the folder `web`, told from its files alone."""

import os
from typing import Any

from crabtalk.service import ComponentPaths

from .gateway.conversation_journal import ConversationJournal
from .gateway.credentials import RelayCredentials
from .gateway.web_folder import WebFolder


def read_status(store: WebFolder, credentials: RelayCredentials | None) -> dict[str, Any]:
    return {
        "relay": credentials.relay if credentials is not None else "",
        "machine": credentials.machine_id if credentials is not None else "",
        "running": is_running(store),
        "conversations": read_conversations(store),
    }


def read_conversations(store: WebFolder) -> list[dict[str, Any]]:
    found = []
    for path in sorted(store.journal_folder.glob("*.jsonl")):
        book = ConversationJournal.read_state(path)
        found.append(
            {
                "agent": book.agent,
                "sender": book.sender,
                "session": book.session,
                "unsent": len(book.unsent_envelopes),
                "waiting": len(book.inbound),
                "refused": book.replay_guard.refused if book.replay_guard is not None else 0,
                "unprotected": sorted(book.replay_guard.clients)
                if book.replay_guard is not None
                else [],
            }
        )
    return found


def is_running(store: WebFolder) -> bool:
    """Whether a process holds the lock of the gateway's name."""
    import fcntl

    try:
        lock = os.open(ComponentPaths(store.home, "web").lock_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
