"""The codec: encoding and decoding one chunk event by size, compared with copying its bytes.

"Copy" is the least any codec does: put the payload after a length, and take it out again.
"""

import timeit

from crabtalk.protocol import FrameDecoder, encode_reply, wire

from .tables import BenchTable

SIZES = {"0 B": 0, "1 KB": 1 << 10, "100 KB": 100 << 10, "1 MB": 1 << 20}
# Bytes that a socket delivers at a time.
PIECE_BYTES = 256 * 1024


def time_best(statement: str, number: int, names: dict[str, object]) -> float:
    """Return microseconds per execution: the best of several runs, which is the least disturbed."""
    return min(timeit.repeat(statement, globals=names, number=number, repeat=7)) / number * 1e6


def decode_pieces(pieces: list[bytes]) -> wire.ServerMessage | None:
    decoder = FrameDecoder()
    message = None
    for piece in pieces:
        for frame in decoder.feed(piece):
            message = wire.ServerMessage.FromString(frame)  # type: ignore[arg-type]
    return message


def run_benchmark() -> list[BenchTable]:
    table = BenchTable(
        "Codec, µs a message", ["content", "copy in", "encode", "copy out", "decode", "MB/s decode"]
    )
    for label, size in SIZES.items():
        event = wire.StreamEvent(chunk=wire.StreamChunk(content="x" * size))
        frame = encode_reply("stream", event)
        pieces = [frame[at : at + PIECE_BYTES] for at in range(0, len(frame), PIECE_BYTES)]
        payload = frame[4:]
        names: dict[str, object] = {
            "encode_reply": encode_reply,
            "decode": decode_pieces,
            "event": event,
            "frame": frame,
            "pieces": pieces,
            "payload": payload,
        }
        number = max(20, 20_000_000 // (size + 1000))
        copied_in = time_best("len(payload).to_bytes(4, 'big') + payload", number, names)
        encoded = time_best("encode_reply('stream', event)", number, names)
        copied_out = time_best("frame[4:]", number, names)
        decoded = time_best("decode(pieces)", number, names)
        times = (f"{time:.2f}" for time in (copied_in, encoded, copied_out, decoded))
        table.add_row(label, *times, f"{len(frame) / decoded:,.0f}" if size else "")
    return [table]
