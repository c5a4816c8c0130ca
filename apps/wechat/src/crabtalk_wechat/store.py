"""Store: where WeChat keeps files, each encrypted with a key of its own that its message has."""

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

from crabtalk.component.gateway import Away, Refused, TryLater

from .ilink import CONNECT, SOON, ILink, broken

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher

CDN_URL = "https://novac2c.cdn.weixin.qq.com/c2c"
# Of a file that comes; the library of gateways keeps no larger ones either.
MOST_DOWNLOAD = 64 * 1024 * 1024
BLOCK = 64 * 1024
MEDIA = 60.0
KEY = 16
PICTURE, VIDEO, FILE = 1, 2, 3
PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp")
VIDEOS = (".mp4", ".mov")


@dataclass(frozen=True, slots=True)
class Kept:
    """A file in the store, as messages name it."""

    where: str
    key: bytes
    size: int  # encrypted

    def media(self) -> dict[str, Any]:
        key = base64.b64encode(self.key.hex().encode()).decode()
        return {"encrypt_query_param": self.where, "aes_key": key, "encrypt_type": 1}


class Store:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=MEDIA, sock_connect=CONNECT)

    async def fetch(self, attachment: str, path: Path) -> None:
        """Writes what was sent to `path`. Raises Refused, TryLater and Away."""
        where, key = read_attachment(attachment)
        url = f"{self._url}/download?encrypted_query_param={quote(where, safe='')}"
        try:
            async with self._http.get(url, timeout=self._timeout) as reply:
                if reply.status >= 500:
                    raise Away(f"a file cannot be had: status {reply.status}")
                if reply.status != 200:
                    raise Refused(f"a file cannot be had: status {reply.status}")
                await decrypt(reply, path, key)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise broken(error, "a file") from None

    async def keep(self, ilink: ILink, person: str, kind: int, data: bytes) -> Kept:
        """Whatever goes wrong, nobody has seen anything. Raises Refused and TryLater."""
        key, name = secrets.token_bytes(KEY), secrets.token_hex(16)
        sealed = await asyncio.to_thread(encrypted, data, key)
        try:
            answer = await ilink.upload_url(
                {
                    "filekey": name,
                    "media_type": kind,
                    "to_user_id": person,
                    "rawsize": len(data),
                    "rawfilemd5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
                    "filesize": len(sealed),
                    "no_need_thumb": True,
                    "aeskey": key.hex(),
                }
            )
            where = await self._put(str(answer.get("upload_param") or ""), name, sealed)
        except Away as error:
            raise TryLater(SOON, str(error)) from None
        return Kept(where, key, len(sealed))

    async def _put(self, ticket: str, name: str, sealed: bytes) -> str:
        if not ticket:
            raise Refused("WeChat does not say where a file is to be put")
        query = f"encrypted_query_param={quote(ticket, safe='')}&filekey={name}"
        headers = {"Content-Type": "application/octet-stream"}
        try:
            async with self._http.post(
                f"{self._url}/upload?{query}", data=sealed, headers=headers, timeout=self._timeout
            ) as reply:
                status, where = reply.status, reply.headers.get("x-encrypted-param", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise broken(error, "a file") from None
        if status >= 500 or (status == 200 and not where):
            raise Away(f"a file was not kept: status {status}")
        if status != 200:
            raise Refused(f"a file was not taken: status {status}")
        return where


def kind_of(path: Path) -> int:
    suffix = path.suffix.lower()
    return PICTURE if suffix in PICTURES else VIDEO if suffix in VIDEOS else FILE


def read_attachment(attachment: str) -> tuple[str, bytes]:
    where, key = json.loads(attachment)
    return where, read_key(key)


def read_key(text: str) -> bytes:
    """A key is written in three ways: as hex, and either that or itself in base64."""
    try:
        found = text.encode() if len(text) == 2 * KEY else base64.b64decode(text, validate=True)
        key = bytes.fromhex(found.decode()) if len(found) == 2 * KEY else found
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY:
        raise Refused("a file has no key that can be read")
    return key


# ── Encryption ─────────────────────────────────────────────────────────────────────────────────


def cipher(key: bytes) -> "Cipher[Any]":
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES128
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    return Cipher(AES128(key), ECB())  # noqa: S305 - WeChat's choice


def encrypted(data: bytes, key: bytes) -> bytes:
    from cryptography.hazmat.primitives.padding import PKCS7

    padder, encryptor = PKCS7(8 * KEY).padder(), cipher(key).encryptor()
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


async def decrypt(reply: aiohttp.ClientResponse, path: Path, key: bytes) -> None:
    try:
        with path.open("xb") as file:
            await write(reply, file, key)
    except BaseException:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - cancelled, it may not wait
        raise


async def write(reply: aiohttp.ClientResponse, file: BinaryIO, key: bytes) -> None:
    from cryptography.hazmat.primitives.padding import PKCS7

    decryptor, unpadder = cipher(key).decryptor(), PKCS7(8 * KEY).unpadder()
    size = 0
    async for block in reply.content.iter_chunked(BLOCK):
        size += len(block)
        if size > MOST_DOWNLOAD:
            raise Refused("a file is larger than is taken")
        await asyncio.to_thread(file.write, unpadder.update(decryptor.update(block)))
    try:
        file.write(unpadder.update(decryptor.finalize()) + unpadder.finalize())
    except ValueError:
        raise Refused("a file cannot be decrypted") from None
