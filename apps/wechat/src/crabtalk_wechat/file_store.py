"""The CDN where WeChat stores files. Each file is encrypted with a key that is in its message."""

import asyncio
import base64
import binascii
import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import aiohttp

from crabtalk.gateway import DeliveryUnknownError, RejectedError, RetryLaterError

from .ilink import CONNECT_TIMEOUT, RETRY_SECONDS, ILinkClient, to_service_error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher

CDN_URL = "https://novac2c.cdn.weixin.qq.com/c2c"
# Bytes of a received file; the gateway library stores no larger ones either.
MAX_DOWNLOAD = 64 * 1024 * 1024
BLOCK_SIZE = 64 * 1024
MEDIA_TIMEOUT = 60.0
KEY_LENGTH = 16
PICTURE, VIDEO, FILE = 1, 2, 3
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".mov")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file on the CDN, as messages refer to it."""

    location: str
    key: bytes
    size: int  # encrypted

    def to_media(self) -> dict[str, Any]:
        key = base64.b64encode(self.key.hex().encode()).decode()
        return {"encrypt_query_param": self.location, "aes_key": key, "encrypt_type": 1}


class WeChatFileStore:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=MEDIA_TIMEOUT, sock_connect=CONNECT_TIMEOUT)

    async def download_file(self, attachment: str, path: Path) -> None:
        """Write the file to `path`. Raises RejectedError, RetryLaterError, DeliveryUnknownError."""
        location, key = parse_attachment(attachment)
        url = f"{self._url}/download?encrypted_query_param={quote(location, safe='')}"
        try:
            async with self._http.get(url, timeout=self._timeout) as reply:
                if reply.status >= 500:
                    raise DeliveryUnknownError(f"a file cannot be had: status {reply.status}")
                if reply.status != 200:
                    raise RejectedError(f"a file cannot be had: status {reply.status}")
                await decrypt_response(reply, path, key)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise to_service_error(error, "a file") from None

    async def upload_file(
        self, ilink: ILinkClient, person: str, kind: int, data: bytes
    ) -> StoredFile:
        """Upload a file; no person sees it before it is sent. Raises RejectedError and
        RetryLaterError."""
        key, name = secrets.token_bytes(KEY_LENGTH), secrets.token_hex(16)
        encrypted = await asyncio.to_thread(encrypt_data, data, key)
        try:
            answer = await ilink.get_upload_url(
                {
                    "filekey": name,
                    "media_type": kind,
                    "to_user_id": person,
                    "rawsize": len(data),
                    "rawfilemd5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
                    "filesize": len(encrypted),
                    "no_need_thumb": True,
                    "aeskey": key.hex(),
                }
            )
            location = await self._put_data(str(answer.get("upload_param") or ""), name, encrypted)
        except DeliveryUnknownError as error:
            raise RetryLaterError(RETRY_SECONDS, str(error)) from None
        return StoredFile(location, key, len(encrypted))

    async def _put_data(self, ticket: str, name: str, encrypted: bytes) -> str:
        if not ticket:
            raise RejectedError("WeChat does not say where a file is to be put")
        query = f"encrypted_query_param={quote(ticket, safe='')}&filekey={name}"
        headers = {"Content-Type": "application/octet-stream"}
        try:
            async with self._http.post(
                f"{self._url}/upload?{query}",
                data=encrypted,
                headers=headers,
                timeout=self._timeout,
            ) as reply:
                status, location = reply.status, reply.headers.get("x-encrypted-param", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise to_service_error(error, "a file") from None
        if status >= 500 or (status == 200 and not location):
            raise DeliveryUnknownError(f"a file was not kept: status {status}")
        if status != 200:
            raise RejectedError(f"a file was not taken: status {status}")
        return location


def get_media_kind(path: Path) -> int:
    suffix = path.suffix.lower()
    return PICTURE if suffix in PICTURE_SUFFIXES else VIDEO if suffix in VIDEO_SUFFIXES else FILE


def parse_attachment(attachment: str) -> tuple[str, bytes]:
    location, key = json.loads(attachment)
    return location, parse_key(key)


def parse_key(text: str) -> bytes:
    """A key is written as hex, as base64 of its bytes, or as base64 of its hex."""
    try:
        decoded = (
            text.encode() if len(text) == 2 * KEY_LENGTH else base64.b64decode(text, validate=True)
        )
        key = bytes.fromhex(decoded.decode()) if len(decoded) == 2 * KEY_LENGTH else decoded
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_LENGTH:
        raise RejectedError("a file has no key that can be read")
    return key


# ── Encryption ─────────────────────────────────────────────────────────────────────────────────


def make_cipher(key: bytes) -> "Cipher[Any]":
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES128
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    return Cipher(AES128(key), ECB())  # noqa: S305 - WeChat's choice


def encrypt_data(data: bytes, key: bytes) -> bytes:
    from cryptography.hazmat.primitives.padding import PKCS7

    padder, encryptor = PKCS7(8 * KEY_LENGTH).padder(), make_cipher(key).encryptor()
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


async def decrypt_response(reply: aiohttp.ClientResponse, path: Path, key: bytes) -> None:
    try:
        with path.open("xb") as file:
            await write_decrypted(reply, file, key)
    except BaseException:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - cancelled, it may not wait
        raise


async def write_decrypted(reply: aiohttp.ClientResponse, file: BinaryIO, key: bytes) -> None:
    from cryptography.hazmat.primitives.padding import PKCS7

    decryptor, unpadder = make_cipher(key).decryptor(), PKCS7(8 * KEY_LENGTH).unpadder()
    size = 0
    async for block in reply.content.iter_chunked(BLOCK_SIZE):
        size += len(block)
        if size > MAX_DOWNLOAD:
            raise RejectedError("a file is larger than is taken")
        await asyncio.to_thread(file.write, unpadder.update(decryptor.update(block)))
    try:
        file.write(unpadder.update(decryptor.finalize()) + unpadder.finalize())
    except ValueError:
        raise RejectedError("a file cannot be decrypted") from None
