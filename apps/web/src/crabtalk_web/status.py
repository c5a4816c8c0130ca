"""The status of the gateway, read from the files in `web` alone."""

import os
from typing import Any

from crabtalk.service import ComponentPaths

from .gateway.conversation_journal import ConversationJournal
from .gateway.credentials import RelayCredentials
from .gateway.web_folder import WebFolder


def read_status(folder: WebFolder, credentials: RelayCredentials | None) -> dict[str, Any]:
    return {
        "relay": credentials.relay if credentials is not None else "",
        "machine": credentials.machine_id if credentials is not None else "",
        "running": is_running(folder),
        "conversations": read_conversations(folder),
    }


def read_conversations(folder: WebFolder) -> list[dict[str, Any]]:
    conversations = []
    for path in sorted(folder.journal_folder.glob("*.jsonl")):
        state = ConversationJournal.read_state(path)
        conversations.append(
            {
                "agent": state.agent,
                "sender": state.sender,
                "session": state.session,
                "unsent": len(state.unsent_envelopes),
                "waiting": len(state.inbound),
                "refused": state.replay_guard.refused if state.replay_guard is not None else 0,
                "unprotected": sorted(state.replay_guard.clients)
                if state.replay_guard is not None
                else [],
            }
        )
    return conversations


def is_running(folder: WebFolder) -> bool:
    """Return whether a process holds the gateway's lock."""
    import fcntl

    try:
        lock = os.open(ComponentPaths(folder.home, "web").lock_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
