"""The chain: by what a device's messages can be told from repeats of them.

A relay keeps and delivers messages, and must not be able to have one acted on twice, to leave one
out or to change their order. So a device writes into each of its messages, inside the seal, which
one it is and what came before it. Clients that know nothing of this leave the key out.
"""

import re
from typing import Any

import msgspec

KEY = "crabtalkChain"
ID = re.compile(r"[0-9a-zA-Z_-]{16,64}")
# SHA-256 in base64.
HASH = re.compile(r"[0-9a-zA-Z+/]{43}=")
LAST = 2**53 - 1


class Chain(msgspec.Struct, frozen=True, omit_defaults=True):
    """`device` names the device, `chain` one unbroken row of its messages in one session.

    `counter` begins with 1. `previous` is the SHA-256 of the sealed bytes of the message before,
    in base64; empty for the first.
    """

    device: str
    chain: str
    session: str
    counter: int
    previous: str = ""


def read_chain(body: Any) -> Chain | None:
    """The chain of an opened body; None where there is none that can be understood."""
    given = body.get(KEY) if isinstance(body, dict) else None
    try:
        chain = msgspec.convert(given, Chain)
    except msgspec.ValidationError:
        return None
    is_first = chain.counter == 1
    is_sound = (
        ID.fullmatch(chain.device) is not None
        and ID.fullmatch(chain.chain) is not None
        and 1 <= chain.counter <= LAST
        and (not chain.previous if is_first else HASH.fullmatch(chain.previous) is not None)
    )
    return chain if is_sound else None
