"""Declarations: what agents' files say about servers, and when two of them mean the same peer."""

import hashlib

import msgspec

from crabtalk.storage import McpServerConfig

# Shorter texts are no secrets, and masking them would blacken half a message.
SHORTEST_SECRET = 6
MASK = "********"


def compute_fingerprint(server: McpServerConfig) -> str:
    """Equal for declarations that one peer can serve: its name and how it is looked after do not
    count, its credentials do."""
    if server.url:  # the command is ignored then
        identity: list[object] = ["http", server.url, server.auth]
    else:
        identity = ["stdio", server.command, server.args, sorted(server.env.items())]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def mask_secrets(text: str, server: McpServerConfig) -> str:
    """What a server says about itself may repeat what it was told in confidence."""
    secrets = [server.auth, server.auth.partition(" ")[2], *server.env.values()]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text
