"""ConversationCache: the conversations in memory, at most one per pair.

Idle ones are evicted, the least recently used first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from crabtalk.storage import Pair, Storage

from .clock import Clock
from .conversation import AppendCallback, Conversation
from .limits import RuntimeLimits

# Adding up all sizes visits every conversation, so it happens only once in so many turns.
SIZE_CHECK_INTERVAL = 16
# An eviction skips at most so many busy conversations. When a thousand run, the end of each must
# not visit all others; the end of the last one finds them idle.
MAX_BUSY_SKIPPED = 16


class ConversationCache:
    """`get` adds a missing pair without an await, so two callers get the same conversation."""

    def __init__(
        self,
        storage: Storage,
        limits: RuntimeLimits,
        clock: Clock,
        on_append: AppendCallback | None = None,
        is_needed: Callable[[Pair], bool] = lambda pair: False,
    ) -> None:
        """`is_needed` protects an idle conversation from eviction while runs that it delegated
        still use its mode and rules."""
        self._is_needed = is_needed
        self._storage = storage
        self._on_append = on_append
        self._limits = limits
        self._clock = clock
        self._table: OrderedDict[Pair, Conversation] = OrderedDict()
        self._turns_since_size_check = 0

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._table.values()))

    def get(self, pair: Pair) -> Conversation:
        conversation = self._table.get(pair)
        if conversation is None:
            conversation = Conversation(pair, self._storage, self._clock, self._on_append)
            self._table[pair] = conversation
        else:
            self._table.move_to_end(pair)
        return conversation

    def find(self, pair: Pair) -> Conversation | None:
        return self._table.get(pair)

    def evict_idle(self) -> None:
        """Removes idle conversations until the limits hold. Those with a turn stay."""
        excess_count = len(self._table) - self._limits.live_conversations
        excess_bytes = 0
        self._turns_since_size_check += 1
        if self._turns_since_size_check >= SIZE_CHECK_INTERVAL:
            self._turns_since_size_check = 0
            excess_bytes = sum(c.size for c in self._table.values()) - self._limits.live_bytes
        if excess_count <= 0 and excess_bytes <= 0:
            return
        busy = 0
        while (excess_count > 0 or excess_bytes > 0) and busy < MAX_BUSY_SKIPPED:
            pair, conversation = next(iter(self._table.items()))
            if conversation.is_idle and not self._is_needed(pair):
                del self._table[pair]
                excess_count -= 1
                excess_bytes -= conversation.size
            else:  # in use: visited again after the others
                self._table.move_to_end(pair)
                busy += 1
