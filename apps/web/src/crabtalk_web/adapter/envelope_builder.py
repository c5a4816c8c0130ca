"""Builds the envelopes of one turn, with ids and times in the order they are written."""

from msgspec import UNSET

from crabtalk_web.stream import (
    AnyEnvelopeEvent,
    Envelope,
    EnvelopeUsage,
    IncreasingClock,
    Role,
    ServiceEvent,
    TextEvent,
    ToolCallStart,
    TurnEnd,
    derive_id,
)


class EnvelopeBuilder:
    """The same events in the same order get the same ids. `unclaimed` are the envelopes that were
    not taken yet."""

    def __init__(
        self, session: str, turn: str, times: IncreasingClock, *, ordinal: int = 0
    ) -> None:
        self.session = session
        self.turn = turn
        self.ordinal = ordinal
        self.main_subagent = ""  # the agent whose turn it is, if it is a guest
        self.unclaimed: list[Envelope] = []
        # Token usage of the last model call, until an envelope is written that can carry it.
        self.usage: EnvelopeUsage | None = None
        self._times = times

    def write(
        self, event: AnyEnvelopeEvent, at: int, subagent: str = "", *, role: Role = "agent"
    ) -> None:
        is_main = isinstance(event, TextEvent | ToolCallStart) and subagent == self.main_subagent
        carries = role == "agent" and (is_main or isinstance(event, TurnEnd))
        usage, self.usage = (self.usage, None) if carries else (None, self.usage)
        turn = self.turn if role == "agent" else ""
        self._write(event, at, role, turn, subagent, usage)

    def write_usage(self, at: int) -> None:
        """Write the usage outside of any turn, where older readers look for it."""
        usage, self.usage = self.usage, None
        if usage is not None:
            self._write(ServiceEvent(text=""), at, "agent", "", "", usage)

    def _write(
        self,
        event: AnyEnvelopeEvent,
        at: int,
        role: Role,
        turn: str,
        subagent: str,
        usage: EnvelopeUsage | None,
    ) -> None:
        self.unclaimed.append(
            Envelope(
                id=derive_id(self.session, self.turn, self.ordinal),
                time=self._times.next(at),
                role=role,
                turn=turn,
                subagent=subagent,
                usage=usage or UNSET,
                ev=event,
            )
        )
        self.ordinal += 1
