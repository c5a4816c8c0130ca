"""Server-sent events: bytes in, however they were split, events out."""

from collections.abc import Iterator

from .errors import ApiError, ErrorKind

# An event this long is no event of a model's.
MAX_EVENT = 16 * 1024 * 1024
# Nor is one of so many lines. Each weighs several times what it has on the wire.
MAX_LINES = 100_000


class SseDecoder:
    """Yields (event name, data). Follows the HTML standard's parsing of event streams.

    Lines end in LF, CR LF or CR; comments and unknown fields are passed over; data lines of one
    event are joined by LF; an event without data is none.
    """

    __slots__ = ("_data", "_event", "_rest", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line
        self._data: list[bytes] = []
        self._event = ""
        self._skip_lf = False  # the last piece ended in CR; a LF at once belongs to it
        self._started = False

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yields the events that `data` completes. Exhaust it before feeding again."""
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
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line:
                if self._data:
                    event = self._event, b"\n".join(self._data)
                    self._data = []
                    self._event = ""
                    yield event
                else:
                    self._event = ""
            elif line.startswith(b"event:"):
                self._event = line[6:].strip().decode(errors="replace")
            elif line == b"data":
                self._data.append(b"")
        if len(self._data) > MAX_LINES:
            raise ApiError(ErrorKind.PROTOCOL, "the stream has an event without end")

    def end(self) -> Iterator[tuple[str, bytes]]:
        """The stream is over. Servers that forget the last blank line are forgiven."""
        yield from self.feed(b"\n\n")
