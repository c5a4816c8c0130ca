"""Checks the order of one session's envelopes as they come."""

from .envelope import Envelope, EnvelopeError
from .envelope_events import (
    SubagentStart,
    SubagentStop,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
)


class OrderError(EnvelopeError):
    """An envelope is in a place where it may not be."""


class EnvelopeOrder:
    """Times and turns never go back, one turn is open at a time, and everything that begins in a
    turn ends in it.

    Remembers every id and turn: for tests and tools, not for a session that lasts for years.
    """

    def __init__(self) -> None:
        self.turn = ""
        self.time: int | float = -1
        # `calls` maps a call to the agent that made it; `agents` are those at work.
        self.calls: dict[str, str] = {}
        self.agents: set[str] = set()
        self._callers: dict[str, str] = {}  # by the agent that a call delegates to
        self._ids: set[str] = set()
        self._turns: set[str] = set()
        self._called: set[str] = set()

    def check_next(self, envelope: Envelope) -> None:
        """Raises OrderError; the envelope then changes nothing."""
        require_order(envelope.time > self.time, "its time is not later than the last")
        require_order(envelope.id not in self._ids, "its id was there before")
        if envelope.role == "agent" and not envelope.is_bare_usage:
            self._check_agent(envelope)
        self._ids.add(envelope.id)
        self.time = envelope.time

    def _check_agent(self, envelope: Envelope) -> None:
        if isinstance(envelope.ev, TurnStart):
            require_order(not self.turn, "a turn is open already")
            require_order(envelope.turn not in self._turns, "its turn is over")
            self.turn = envelope.turn
            self._turns.add(self.turn)
            self._called.clear()
            self._callers.clear()
            return
        require_order(envelope.turn == self.turn, "it is not of the open turn")
        if not isinstance(envelope.ev, SubagentStart):
            is_known = not envelope.subagent or envelope.subagent in self.agents
            require_order(is_known, "its agent is not at work")
        match envelope.ev:
            case SubagentStart():
                require_order(envelope.subagent not in self.agents, "its agent is at work already")
                self.agents.add(envelope.subagent)
            case SubagentStop():
                require_order(
                    envelope.subagent not in self.calls.values(), "its agent has a call open"
                )
                inner = {
                    agent for agent in self.agents if self._callers.get(agent) == envelope.subagent
                }
                require_order(not inner, "an agent that its agent delegated to is at work")
                self.agents.discard(envelope.subagent)
            case ToolCallStart(call=call, args=args):
                require_order(call not in self._called, "its call was there before")
                if isinstance(args.get("sessionSubagent"), str):
                    self._callers[args["sessionSubagent"]] = envelope.subagent
                self.calls[call] = envelope.subagent
                self._called.add(call)
            case ToolCallEnd(call=call):
                require_order(self.calls.get(call) == envelope.subagent, "its call is not open")
                del self.calls[call]
            case TurnEnd():
                require_order(not self.calls and not self.agents, "calls or agents are open")
                self.turn = ""


def require_order(holds: bool, complaint: str) -> None:
    if not holds:
        raise OrderError(complaint)
