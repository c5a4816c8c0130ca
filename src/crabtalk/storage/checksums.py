"""Checksums of log lines. The writer adds two members to the end of each record: `"prev"`, the sum
of the line before it, and `"sum"`, its own sum over all bytes before that member.

Lines of older versions have neither and are read as they are. The first sealed line after such a
line has the hash of that whole line as its `"prev"`. Checksums find accidents, not attacks: a
program that can write the file can compute them too. Nothing here opens a file.
"""

import re
from hashlib import blake2b

PREV = b',"prev":"'
SUM = b',"sum":"'
END = b'"}'
DIGITS = 16
SUM_MEMBER = len(SUM) + DIGITS + len(END)
PREV_MEMBER = len(PREV) + DIGITS + 1  # on the first line it is empty and therefore shorter
FIRST_MEMBER = len(PREV) + 1
# Where the digits are, counted from the end of a line.
SUM_END = -len(END)
SUM_AT = SUM_END - DIGITS
PREV_END = -SUM_MEMBER - 1
PREV_AT = PREV_END - DIGITS
# A seal whose "sum" key was changed, or that has something after it. Only the end of a line is
# searched.
BROKEN_SEAL = re.compile(
    rb',"prev":"(?:[0-9a-f]{16})?",".{3}":"[0-9a-f]{16}"}\s*\Z|,"sum":"[0-9a-f]{16}"}\s+\Z',
    re.DOTALL,
)
LONGEST_SEAL = PREV_MEMBER + SUM_MEMBER + 16


def hash_line(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGITS // 2).hexdigest().encode()


def seal_lines(data: bytes, prev: bytes) -> tuple[bytes, bytes]:
    """Adds the two members to complete lines; returns them and the sum of the last one. `prev` is
    the sum of the line before.

    A line that is no JSON object stays as it is; the next line refers to its hash.
    """
    sealed: list[bytes] = []
    for line in data.split(b"\n"):
        if not line:
            continue
        if not line.endswith(b"}"):
            prev = read_link(line)
            sealed.append(line + b"\n")
        else:
            body = b'%b,"prev":"%b"' % (line[:-1], prev)
            prev = hash_line(body)
            sealed.append(b'%b,"sum":"%b"}\n' % (body, prev))
    return b"".join(sealed), prev


def remove_seal(line: bytes) -> bytes:
    """The line as it was before sealing."""
    if not is_sealed(line):
        return line
    body = line[:-SUM_MEMBER]
    prev = read_prev(line)
    if prev is None:
        return line
    return body[: -(PREV_MEMBER if prev else FIRST_MEMBER)] + b"}"


def check_sum(line: bytes) -> None:
    """Raises ValueError for a line that was changed after it was written. A line without a seal
    passes."""
    if is_sealed(line):
        if hash_line(line[:-SUM_MEMBER]) != line[SUM_AT:SUM_END]:
            raise ValueError("the checksum does not match")
    elif BROKEN_SEAL.search(line[-LONGEST_SEAL:]) is not None:
        raise ValueError("the checksum is damaged")


def is_sealed(line: bytes) -> bool:
    """Whether the line ends like a sealed line; the sum is not checked."""
    return line[-SUM_MEMBER:SUM_AT] == SUM and line[SUM_END:] == END


def read_prev(line: bytes) -> bytes | None:
    """The `"prev"` of a line, empty for the first one; None for a line without a seal."""
    if not is_sealed(line):
        return None
    if line[-PREV_MEMBER - SUM_MEMBER : PREV_AT] == PREV:
        return line[PREV_AT:PREV_END]
    return b"" if line[-FIRST_MEMBER - SUM_MEMBER : PREV_END] == PREV else None


def read_link(line: bytes) -> bytes:
    """The `"prev"` that the next line must have."""
    return line[SUM_AT:SUM_END] if is_sealed(line) else hash_line(line)


def is_link(line: bytes, following: bytes) -> bool:
    """Whether `following` was written right after `line`. A line without a seal may follow any
    line."""
    # Nearly all lines have both sums at fixed offsets, so this is checked first.
    if following[PREV_AT:PREV_END] == line[SUM_AT:SUM_END] and is_sealed(following):
        return True
    prev = read_prev(following)
    return prev is None or prev == read_link(line)
