"""The adapter: converts what agents do into the envelopes of a session. It is pure: the same events
always give the same envelopes."""

from .conversation_resolver import ConversationResolver
from .envelope_adapter import EnvelopeAdapter
from .event_parsing import TurnStreamReader, parse_feed_event
from .questions import OpenAsk, describe_question, is_whole, summarize_questions
from .run_events import AgentQuestion, ReceivedEvent
from .text_output import GrowingText

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
