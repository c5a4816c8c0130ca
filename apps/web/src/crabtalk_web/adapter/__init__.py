"""The adapter: what agents do becomes the envelopes of a session. Pure, and always the same."""

from .adapter import Adapter
from .asks import Ask
from .happenings import Heard
from .sources import StreamReader, from_feed
from .speech import Spoken
from .switchboard import Switchboard

__all__ = ["Adapter", "Ask", "Heard", "Spoken", "StreamReader", "Switchboard", "from_feed"]
