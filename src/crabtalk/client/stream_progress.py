"""StreamProgress: how much of one run's stream a client has received.

After a lost connection it gives the number of the event to continue after. The daemon may restart
the stream instead, because the run is over or its first events are only in the log. Then it drops
the events that were delivered before: the n-th event of a kind is new if fewer than n were
delivered. Texts are counted in characters, because the log has each text in one piece, and tool
calls by their ids.
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
        self.event_count = 0  # events received, including repeated ones
        self.last_number = 0  # of the last event that has a number
        self._delivered: Counter[str] = Counter()  # events given to the consumer, by kind
        self._replayed: Counter[str] = Counter()  # events since the stream restarted, by kind
        self._is_resumed = False
        self._run_id = ""
        # Until the first resume, chunks are counted here: they are most of all events.
        self._text_length = 0
        self._last_chunk: wire.StreamEvent | None = None

    @property
    def has_started(self) -> bool:
        return "start" in self._delivered

    @property
    def has_content(self) -> bool:
        """Whether there were events besides the start and the questions asked before it."""
        kinds = (kind for kind in self._delivered if not kind.startswith("ask_user"))
        return self._last_chunk is not None or any(kind != "start" for kind in kinds)

    def resume(self) -> None:
        """Continue on another connection. Events follow the last ones, or begin with a start."""
        self._is_resumed = True
        if self._text_length:
            self._delivered["chunk"] += self._text_length
            self._text_length = 0
        if self._last_chunk is not None:
            self.last_number = max(self.last_number, self._last_chunk.number)
        self._replayed = self._delivered.copy()

    def _on_start(self, run_id: str) -> None:
        """Handle a start, the first one or a restart on the same connection.

        A restart happens because the reader is far behind, or because in a fleet another daemon
        ran the key. The latter is a new run.
        """
        if self.has_started and run_id == self._run_id:
            self.resume()
        elif run_id != self._run_id:
            self._delivered.clear()
            self._is_resumed = False
            self._text_length = 0
        self._run_id = run_id

    def filter_event(self, name: str, event: wire.StreamEvent) -> wire.StreamEvent | None:
        """Return the new part of an event, or None if nothing in it is new."""
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
        new_part = wire.StreamEvent(number=event.number or None)
        new_part.tool_start.CopyFrom(event.tool_start)
        del new_part.tool_start.calls[:]
        calls = zip(event.tool_start.calls, is_new, strict=True)
        new_part.tool_start.calls.extend(call for call, new in calls if new)
        return new_part

    def _find_new_text(self, name: str, event: wire.StreamEvent) -> wire.StreamEvent | None:
        content: str = getattr(event, name).content
        self._replayed[name] += len(content)
        new_length = self._replayed[name] - self._delivered[name]
        if new_length <= 0 or new_length >= len(content):
            return event if new_length > 0 else None
        new_part = wire.StreamEvent()
        new_part.CopyFrom(event)
        getattr(new_part, name).content = content[-new_length:]
        return new_part


def list_event_kinds(name: str, event: wire.StreamEvent) -> list[str]:
    """The kinds an event is counted under.

    A tool call is announced early, while the model writes it, and again when it runs.
    """
    if name == "tool_start":
        name = "early" if event.tool_start.early else name
        return [f"{name} {call.id}" for call in event.tool_start.calls]
    if name == "tool_result":
        return [f"{name} {event.tool_result.call_id}"]
    if name == "ask_user":
        return [f"{name} {event.ask_user.ask_id}"]
    return [name]
