"""Corrupt documents: JSON values with errors in them, and texts and bytes that are cut, repeated or
invalid. All are generated from a seed."""

import json
import random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63 - 1,
        2**63,
        -(2**63),
        2**64,
        10**40,
        1.5,
        -0.0,
        1e308,
    ),
    *(
        "",
        " ",
        "\0",
        "x",
        "crab",
        "../../secret/key",
        "\ud800",
        "é" * 300,
        "x" * 5000,
        "null",
        "\u2028",
    ),
    *(
        [],
        {},
        [None],
        [[]],
        [[[[]]]],
        {"": ""},
        {"kind": "message"},
        [1, "a", None],
        {"a": {"b": []}},
    ),
    *("2026-01-31T12:00:00Z", "0000-00-00T99:99:99Z", "9999-12-31T23:59:59Z", "-1", "NaN", "today"),
)
ODD_BYTES = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b"\xc3", b"\x1a", b"{", b"}", b'"', b"\\"),
    *(
        b"\n\n\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"1" * 5000,
        b"\x1b[2J",
    ),
)


def corrupt_value(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """The same value with one error in it."""
    if isinstance(value, dict) and value and rng.random() < 0.85 and depth < 8:
        key = rng.choice(list(value))
        changed = dict(value)
        match rng.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(("", "kind", "id", "x" * 300, "\0"))] = rng.choice(ODD_VALUES)
            case 2:
                changed[key] = rng.choice(ODD_VALUES)
            case _:
                changed[key] = corrupt_value(rng, value[key], depth + 1)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85 and depth < 8:
        index = rng.randrange(len(value))
        return [
            *value[:index],
            corrupt_value(rng, value[index], depth + 1),
            *value[index + rng.randrange(2) :],
        ]
    return rng.choice(ODD_VALUES)


def corrupt_json(rng: random.Random, value: Any) -> bytes:
    text = json.dumps(corrupt_value(rng, value), ensure_ascii=rng.random() < 0.5)
    data = text.encode(errors="surrogatepass" if rng.random() < 0.2 else "replace")
    return corrupt_bytes(rng, data) if rng.random() < 0.2 else data


def corrupt_bytes(rng: random.Random, data: bytes) -> bytes:
    """Damage bytes at random positions."""
    for _ in range(rng.randrange(1, 4)):
        offset, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data = data[:offset]
            case 1:
                data = data[:offset] + rng.choice(ODD_BYTES) + data[offset:]
            case 2:
                data = data[:offset] + data[min(offset, other) :]
            case 3:
                data = data[: min(offset, other)] + data[max(offset, other) :]
            case 4:
                data = data[:offset] + rng.randbytes(rng.randrange(1, 30)) + data[offset + 1 :]
            case 5 if data:
                changed = bytearray(data)
                changed[offset % len(changed)] ^= 1 << rng.randrange(8)
                data = bytes(changed)
    return data


def corrupt_lines(rng: random.Random, text: str) -> bytes:
    """Move, repeat, delete or change lines of a text at random."""
    lines = text.splitlines(keepends=True) or ["\n"]
    for _ in range(rng.randrange(1, 4)):
        index = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                lines.insert(index, rng.choice(lines))
            case 1 if len(lines) > 1:
                del lines[index]
            case 2:
                lines[index] = lines[index].replace(
                    "=", rng.choice(("==", ":", "= [", "= {", "=\0"))
                )
            case 3:
                head = lines[index].partition("=")[0]
                odd = json.dumps(rng.choice(ODD_VALUES), ensure_ascii=False)
                lines[index] = f"{head}= {odd}\n"
            case 4:
                lines.insert(
                    index, rng.choice(("[x]\n", "[[x]]\n", "---\n", "# \x07\n", '"""\n', "- a\n"))
                )
            case 5:
                rng.shuffle(lines)
    data = "".join(lines).encode(errors="surrogatepass")
    return corrupt_bytes(rng, data) if rng.random() < 0.3 else data
