"""The adapter: what agents do becomes the envelopes of a session. Pure, and always the same."""

from .adapter import EnvelopeAdapter
from .asks import OpenAsk, describe_question, is_whole, summarize_questions
from .happenings import AgentQuestion, ReceivedEvent
from .sources import TurnStreamReader, parse_feed_event
from .speech import GrowingText
from .switchboard import ConversationResolver

__all__ = [
    "AgentQuestion",
    "ConversationResolver",
    "EnvelopeAdapter",
    "GrowingText",
    "OpenAsk",
    "ReceivedEvent",
    "TurnStreamReader",
    "describe_question",
    "is_whole",
    "parse_feed_event",
    "summarize_questions",
]
