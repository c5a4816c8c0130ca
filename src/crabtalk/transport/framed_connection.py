"""FramedConnection: frames over one asyncio transport, shared by both ends of a connection.

It batches writes and handles back-pressure. The two subclasses, the server's Connection and the
client's Channel, handle the bytes that arrive.
"""

import asyncio
from typing import cast

from crabtalk.protocol import ConnectionClosedError, FrameDecoder

# A writer passes this much to the transport at once, then lets the loop run. Some hundred small
# frames: about a millisecond of work, so that a fast stream delays other tasks by no more.
BATCH_BYTES = 16 * 1024
# The transport asks a writer to wait when this much is unsent.
HIGH_WATER_BYTES = 64 * 1024


class FramedConnection(asyncio.Protocol):
    """One connection. `is_lost` becomes true when nothing written can reach the peer any more."""

    __slots__ = (
        "_is_flush_scheduled",
        "_unsent",
        "_unsent_bytes",
        "_writable",
        "decoder",
        "is_lost",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, decoder: FrameDecoder) -> None:
        self.decoder = decoder
        self.is_lost = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_flush_scheduled = False
        # Set while the peer must read before more is written.
        self._writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self.resume_writing()

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    def write(self, frame: bytes) -> bool:
        """Queue a frame. It is sent with others when the loop runs next, or at `flush`.

        Returns True when a batch is full or the peer is slow: await `flush_and_wait` before writing
        more, or the unsent frames grow without limit.
        """
        if self.is_lost:
            return False
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        return self._unsent_bytes >= BATCH_BYTES or self._writable is not None

    def write_now(self, frame: bytes) -> bool:
        """Write a frame without waiting for others. Returns True as `write` does."""
        if self._unsent:
            self.write(frame)
            self.flush()
        elif not self.is_lost and not self.transport.is_closing():
            self.transport.write(frame)
        return self._writable is not None

    def flush(self) -> None:
        """Pass the queued frames to the transport now."""
        self._is_flush_scheduled = False
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._unsent_bytes = 0
            if not self.is_lost and not self.transport.is_closing():
                self.transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    async def flush_and_wait(self, deadline: float | None) -> None:
        """Flush, let other tasks run, and wait until the peer has read enough.

        A peer that reads nothing for `deadline` seconds is disconnected, and ConnectionClosedError
        is raised, as it is when the connection is lost meanwhile. A peer that reads slowly is given
        all the time it needs. Cancelled, it leaves the frames queued.
        """
        self.flush()
        await asyncio.sleep(0)
        while self._writable is not None:
            unread = self.write_buffer_size
            try:
                async with asyncio.timeout(deadline):
                    await asyncio.shield(self._writable)
            except TimeoutError:
                if self.write_buffer_size < unread:
                    continue
                self.transport.abort()
                raise ConnectionClosedError(f"the peer read nothing for {deadline:g} s") from None
        if self.is_lost:
            raise ConnectionClosedError("the peer closed the connection")

    @property
    def write_buffer_size(self) -> int:
        """Bytes the transport has not sent yet."""
        try:
            return self.transport.get_write_buffer_size()
        except AttributeError:  # asyncio's TLS transport forgets its socket when it is closed
            return 0

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None
