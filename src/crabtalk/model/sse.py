"""SseDecoder: parses server-sent events from bytes that may be split anywhere."""

from .errors import ApiError, ErrorKind

# Bytes of one event. Events of models are much shorter.
MAX_EVENT = 16 * 1024 * 1024
# Lines of one event: in memory a line takes several times its size on the wire.
MAX_LINES = 100_000


class SseDecoder:
    """Returns pairs of event name and data, parsed as the HTML standard defines event streams.

    Lines end in LF, CR LF or CR. Comments and unknown fields are ignored. Data lines of one event
    are joined by LF. An event without data is ignored.
    """

    __slots__ = ("_data", "_event", "_is_between", "_rest", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._rest = b""  # the beginning of an incomplete line
        self._data: list[bytes] = []
        self._event = ""
        self._skip_lf = False  # the last piece ended in CR; a LF that follows is part of it
        self._started = False
        self._is_between = False  # no part of the next event has arrived yet

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the events that `data` completes."""
        if (
            self._is_between
            and data[:6] == b"data: "
            and data[-2:] == b"\n\n"
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
        ):  # fast path, at a third of the cost: most pieces are one complete event of one line
            return [("", data[6:-2])]
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT:
            raise ApiError(ErrorKind.PROTOCOL, "the stream has an event without end")
        if lines and not self._started:
            self._started = True
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        events: list[tuple[str, bytes]] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line:
                if self._data:
                    events.append((self._event, b"\n".join(self._data)))
                    self._data = []
                self._event = ""
            elif line.startswith(b"event:"):
                self._event = line[6:].strip().decode(errors="replace")
            elif line == b"data":
                self._data.append(b"")
        if len(self._data) > MAX_LINES:
            raise ApiError(ErrorKind.PROTOCOL, "the stream has an event without end")
        self._is_between = self._started and not (
            self._rest or self._data or self._event or self._skip_lf
        )
        return events

    def end(self) -> list[tuple[str, bytes]]:
        """Return the last event at the end of the stream. Some servers omit the last blank line."""
        return self.feed(b"\n\n")
