"""Declarations of servers in agents' files: which of them share a peer, and masking of secrets."""

import hashlib

import msgspec

from crabtalk.storage import McpServerConfig

# Shorter texts are hardly secret, and masking them would make messages unreadable.
SHORTEST_SECRET = 6
MASK = "********"


def compute_fingerprint(server: McpServerConfig) -> str:
    """Return the same value for declarations that one peer can serve.

    Credentials count; names, restart and idle settings do not.
    """
    if server.url:  # the command is ignored then
        identity: list[object] = ["http", server.url, server.auth]
    else:
        identity = ["stdio", server.command, server.args, sorted(server.env.items())]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def mask_secrets(text: str, server: McpServerConfig) -> str:
    """Mask credentials in a text from a server, which may repeat those it was given."""
    secrets = [server.auth, server.auth.partition(" ")[2], *server.env.values()]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text
