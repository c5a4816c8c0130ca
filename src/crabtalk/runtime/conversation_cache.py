"""Conversations: those in memory, at most one per pair. Idle ones leave, least used first."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from crabtalk.storage import Pair, Storage

from .clock import Clock
from .conversation import AppendCallback, Conversation
from .limits import RuntimeLimits

# Weighing looks at every conversation, which need not happen after every turn.
SIZE_CHECK_INTERVAL = 16
# So many that run are passed over on the way to one that does not. When all of a thousand run, the
# end of each must not cost a look at all others; the end of the last one finds them idle.
MAX_BUSY_SKIPPED = 16


class ConversationCache:
    """Asking for a pair makes its place here at once, without an await: two askers get the same."""

    def __init__(
        self,
        storage: Storage,
        limits: RuntimeLimits,
        clock: Clock,
        kept: AppendCallback | None = None,
        is_needed: Callable[[Pair], bool] = lambda pair: False,
    ) -> None:
        """`is_needed` keeps an idle one: what it delegated still runs, by its mode and rules."""
        self._is_needed = is_needed
        self._storage = storage
        self._on_append = kept
        self._limits = limits
        self._clock = clock
        self._table: OrderedDict[Pair, Conversation] = OrderedDict()
        self._turns_since_size_check = 0  # turns since all of them were weighed

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
        """Lets idle ones go until the bounds hold; whatever runs or waits stays."""
        spare = len(self._table) - self._limits.live_conversations
        heavy = 0
        self._turns_since_size_check += 1
        if self._turns_since_size_check >= SIZE_CHECK_INTERVAL:
            self._turns_since_size_check = 0
            heavy = sum(c.size for c in self._table.values()) - self._limits.live_bytes
        if spare <= 0 and heavy <= 0:
            return
        busy = 0
        while (spare > 0 or heavy > 0) and busy < MAX_BUSY_SKIPPED:
            pair, conversation = next(iter(self._table.items()))
            if conversation.is_idle and not self._is_needed(pair):
                del self._table[pair]
                spare -= 1
                heavy -= conversation.size
            else:  # it is in use, and looked at again after those that are not
                self._table.move_to_end(pair)
                busy += 1
