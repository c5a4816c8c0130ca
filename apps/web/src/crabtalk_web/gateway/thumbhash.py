"""ThumbHash: a placeholder of about 25 bytes for an image that is still loading.

It has a few cosine terms of brightness, of two colour differences and of alpha, each in four bits,
behind a header of five or six bytes. The format is Evan Wallace's.
"""

import math
from collections.abc import Sequence

# Larger images take long to process and give no better result.
MAX_SIDE = 32

Channel = list[float]


def compute_thumbhash(width: int, height: int, rgba: bytes) -> bytes:
    """Hash at most 100 by 100 pixels of four bytes each."""
    if not (0 < width <= 100 and 0 < height <= 100) or len(rgba) != 4 * width * height:
        raise ValueError(f"{width} by {height} pixels are not what is hashed here")
    luma, yellow, red, alpha = split_channels(rgba)
    has_alpha = min(alpha) < 1
    limit = 5 if has_alpha else 7  # alpha takes the space of finer brightness
    across = max(1, round_half_up(limit * width / max(width, height)))
    down = max(1, round_half_up(limit * height / max(width, height)))
    bright = CosineTerms(luma, width, height, max(3, across), max(3, down))
    p = CosineTerms(yellow, width, height, 3, 3)
    q = CosineTerms(red, width, height, 3, 3)
    a = CosineTerms(alpha, width, height, 5, 5) if has_alpha else None
    is_wide = width > height
    head = (
        round_half_up(63 * bright.mean)
        | round_half_up(31.5 + 31.5 * p.mean) << 6
        | round_half_up(31.5 + 31.5 * q.mean) << 12
        | round_half_up(31 * bright.scale) << 18
        | has_alpha << 23
    )
    tail = (
        (down if is_wide else across)
        | round_half_up(63 * p.scale) << 3
        | round_half_up(63 * q.scale) << 9
        | is_wide << 15
    )
    thumbhash = bytearray(head.to_bytes(3, "little") + tail.to_bytes(2, "little"))
    if a is not None:
        thumbhash.append(round_half_up(15 * a.mean) | round_half_up(15 * a.scale) << 4)
    nibbles = [n for terms in (bright, p, q, *([a] if a else [])) for n in terms.nibbles()]
    for low, high in zip(nibbles[::2], [*nibbles[1::2], 0], strict=False):
        thumbhash.append(low | high << 4)
    return bytes(thumbhash)


def split_channels(rgba: bytes) -> tuple[Channel, Channel, Channel, Channel]:
    """Return brightness, yellow-blue, red-green and alpha, drawn over the image's average
    colour."""
    pixels = [
        (rgba[at] / 255, rgba[at + 1] / 255, rgba[at + 2] / 255, rgba[at + 3] / 255)
        for at in range(0, len(rgba), 4)
    ]
    total_alpha = sum(pixel[3] for pixel in pixels)
    mean = [
        sum(p[c] * p[3] for p in pixels) / total_alpha if total_alpha else 0.0 for c in range(3)
    ]
    luma, yellow, red, alpha = [], [], [], []
    for pixel in pixels:
        a = pixel[3]
        r, g, b = (mean[c] * (1 - a) + a * pixel[c] for c in range(3))
        luma.append((r + g + b) / 3)
        yellow.append((r + g) / 2 - b)
        red.append(r - g)
        alpha.append(a)
    return luma, yellow, red, alpha


class CosineTerms:
    """The lowest cosine terms of a channel, scaled to the largest of them."""

    def __init__(self, channel: Sequence[float], width: int, height: int, nx: int, ny: int) -> None:
        self.scale = 0.0
        self._terms: list[float] = []
        waves = [
            [math.cos(math.pi / width * cx * (x + 0.5)) for x in range(width)] for cx in range(nx)
        ]
        for cy in range(ny):
            along = [math.cos(math.pi / height * cy * (y + 0.5)) for y in range(height)]
            for cx in range(nx):
                if cx * ny >= nx * (ny - cy):
                    break
                # Sum pixel by pixel, as other implementations do: in another order, terms near zero
                # differ.
                term, place, wave = 0.0, 0, waves[cx]
                for factor in along:
                    for cosine in wave:
                        term += channel[place] * cosine * factor
                        place += 1
                term /= width * height
                if cx or cy:
                    self._terms.append(term)
                    self.scale = max(self.scale, abs(term))
                else:
                    self.mean = term

    def nibbles(self) -> list[int]:
        if not self.scale:
            return [0] * len(self._terms)
        return [round_half_up(15 * (0.5 + 0.5 / self.scale * term)) for term in self._terms]


def round_half_up(value: float) -> int:
    """Round as JavaScript does, so that an image has the same hash everywhere."""
    return math.floor(value + 0.5)
