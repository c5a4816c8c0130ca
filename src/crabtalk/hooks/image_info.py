"""ImageInfo: the format of an image and its size in pixels, read from its first bytes."""

import struct
from collections.abc import Sequence

import msgspec

# Limits of the strictest vendor: five million bytes in base64, and 8000 pixels a side.
MAX_BYTES = 3_750_000
MAX_SIDE_PIXELS = 8000


class ImageInfo(msgspec.Struct, frozen=True):
    kind: str  # as in a media type
    width: int = 0  # 0: damaged, or of unknown size
    height: int = 0

    @property
    def media_type(self) -> str:
        return f"image/{self.kind}"

    def __str__(self) -> str:
        if not self.width:
            return f"image: {self.kind}, damaged or of unknown size"
        return f"image: {self.kind}, {self.width}x{self.height} pixels"

    def is_fit(self, size: int) -> bool:
        """Whether models with image input accept this image of `size` bytes."""
        return 0 < size <= MAX_BYTES and all(
            0 < side <= MAX_SIDE_PIXELS for side in (self.width, self.height)
        )


def detect_image(data: bytes) -> ImageInfo | None:
    """Return None if the data is no known image format."""
    for kind, matches, read_size in (
        ("png", data.startswith(b"\x89PNG\r\n\x1a\n"), read_png_size),
        ("gif", data.startswith((b"GIF87a", b"GIF89a")), read_gif_size),
        ("jpeg", data.startswith(b"\xff\xd8\xff"), read_jpeg_size),
        ("webp", data.startswith(b"RIFF") and data[8:12] == b"WEBP", read_webp_size),
    ):
        if matches:
            try:
                return ImageInfo(kind, *read_size(data))
            except (struct.error, IndexError):
                return ImageInfo(kind)
    return None


def read_png_size(data: bytes) -> Sequence[int]:
    return struct.unpack_from(">II", data, 16)


def read_gif_size(data: bytes) -> Sequence[int]:
    return struct.unpack_from("<HH", data, 6)


def read_jpeg_size(data: bytes) -> Sequence[int]:
    """Read the first frame header: markers C0 to CF, except three that are tables."""
    position = 2
    while True:
        while data[position + 1] == 0xFF:  # padding
            position += 1
        marker = data[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        (length,) = struct.unpack_from(">H", data, position + 2)
        position += 2 + length


def read_webp_size(data: bytes) -> Sequence[int]:
    match data[12:16]:
        case b"VP8X":
            width, height = data[24:27], data[27:30]
            return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
