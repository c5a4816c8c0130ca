"""StreamProgress: how far a client has come in the stream of one run.

After a lost connection it names the event to continue after. Where the daemon begins the stream
anew instead, because the run is over or its first events are only in the log, it leaves out what
was passed on before: the n-th event of a kind is new when fewer than n were passed on. Texts are
counted in characters, since the log has each in one piece, and calls each by its id.
"""

from collections import Counter

from crabtalk.protocol import wire


class StreamProgress:
    __slots__ = (
        "_delivered",
        "_is_resumed",
        "_last_chunk",
        "_replayed",
        "_run_id",
        "_text_length",
        "event_count",
        "last_number",
    )

    def __init__(self) -> None:
        self.event_count = 0  # events that arrived, new ones or not
        self.last_number = 0  # of the last event that has one
        self._delivered: Counter[str] = Counter()  # on to the consumer, by kind
        self._replayed: Counter[str] = Counter()  # the same since the stream began anew
        self._is_resumed = False
        self._run_id = ""
        # Of a stream that was not cut yet, chunks are counted here: that is most of all events.
        self._text_length = 0
        self._last_chunk: wire.StreamEvent | None = None

    @property
    def has_started(self) -> bool:
        return "start" in self._delivered

    @property
    def has_content(self) -> bool:
        """Whether there was more than the start, and the question of the turn before it."""
        kinds = (kind for kind in self._delivered if not kind.startswith("ask_user"))
        return self._last_chunk is not None or any(kind != "start" for kind in kinds)

    def resume(self) -> None:
        """On another connection. What comes continues the stream, unless it begins with a start."""
        self._is_resumed = True
        if self._text_length:
            self._delivered["chunk"] += self._text_length
            self._text_length = 0
        if self._last_chunk is not None:
            self.last_number = max(self.last_number, self._last_chunk.number)
        self._replayed = self._delivered.copy()

    def _on_start(self, run_id: str) -> None:
        """The stream begins, or begins anew on the same connection: because its reader is far
        behind, or, in a fleet, because another daemon ran the key. That is a run of its own."""
        if self.has_started and run_id == self._run_id:
            self.resume()
        elif run_id != self._run_id:
            self._delivered.clear()
            self._is_resumed = False
            self._text_length = 0
        self._run_id = run_id

    def filter_event(self, name: str, event: wire.StreamEvent) -> wire.StreamEvent | None:
        """Of an event what is new; None when nothing is."""
        self.event_count += 1
        if name == "chunk" and not self._is_resumed:
            self._text_length += len(event.chunk.content)
            self._last_chunk = event
            return event
        if name == "start":
            self._on_start(event.start.run_id)
        if event.number:
            self.last_number = event.number
        if self._is_resumed:
            new = self._find_new(name, event)
            if new is None:
                return None
            event = new
        if name == "chunk":
            self._delivered[name] += len(event.chunk.content)
        elif name == "thinking":
            self._delivered[name] += len(event.thinking.content)
        elif name in ("tool_start", "tool_result", "ask_user"):
            self._delivered.update(list_event_kinds(name, event))
        else:
            self._delivered[name] += 1
        return event

    def _find_new(self, name: str, event: wire.StreamEvent) -> wire.StreamEvent | None:
        if name == "start":
            self._replayed.clear()
        if name == "chunk" or name == "thinking":
            return self._find_new_text(name, event)
        is_new = []
        for kind in list_event_kinds(name, event):
            self._replayed[kind] += 1
            is_new.append(self._replayed[kind] > self._delivered[kind])
        if all(is_new) or not any(is_new):
            return event if all(is_new) else None
        rest = wire.StreamEvent(number=event.number or None)
        rest.tool_start.CopyFrom(event.tool_start)
        del rest.tool_start.calls[:]
        calls = zip(event.tool_start.calls, is_new, strict=True)
        rest.tool_start.calls.extend(call for call, new in calls if new)
        return rest

    def _find_new_text(self, name: str, event: wire.StreamEvent) -> wire.StreamEvent | None:
        content: str = getattr(event, name).content
        self._replayed[name] += len(content)
        new = self._replayed[name] - self._delivered[name]
        if new <= 0 or new >= len(content):
            return event if new > 0 else None
        rest = wire.StreamEvent()
        rest.CopyFrom(event)
        getattr(rest, name).content = content[-new:]
        return rest


def list_event_kinds(name: str, event: wire.StreamEvent) -> list[str]:
    """What an event counts as. A call is announced early, while the model writes it, and again
    when it runs."""
    if name == "tool_start":
        name = "early" if event.tool_start.early else name
        return [f"{name} {call.id}" for call in event.tool_start.calls]
    if name == "tool_result":
        return [f"{name} {event.tool_result.call_id}"]
    if name == "ask_user":
        return [f"{name} {event.ask_user.ask_id}"]
    return [name]
