"""The adapter: what agents do becomes the envelopes of a session. Pure, and always the same."""

from .adapter import Adapter
from .asks import Ask, describe_question, is_whole, summarize_questions
from .happenings import Heard, Question
from .sources import StreamReader, from_feed
from .speech import Spoken
from .switchboard import Switchboard

__all__ = [
    "Adapter",
    "Ask",
    "Heard",
    "Question",
    "Spoken",
    "StreamReader",
    "Switchboard",
    "describe_question",
    "from_feed",
    "is_whole",
    "summarize_questions",
]
