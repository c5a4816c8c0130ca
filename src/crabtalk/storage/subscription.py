"""A subscription to events, as a value."""

import msgspec


class Subscription(msgspec.Struct, frozen=True):
    """`target_agent` runs whenever `source` is published, or with `once` only the first time."""

    id: int
    source: str
    target_agent: str
    once: bool = False
    created_by: str = ""  # the sender that set it up; its runs have that sender's rights
