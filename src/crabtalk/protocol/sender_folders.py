"""The folder of a sender, `<home>/files/<name>`.

Gateways store there what a person sends, and the daemon lets runs of that person read and write it.
Both must compute the same path, so the rule is here, below both of them. Nothing here touches a
disk.
"""

import re
from pathlib import Path

FILES_FOLDER = "files"
# Characters of the readable part of a name.
READABLE_LENGTH = 32
# The folder is a permission boundary and people choose parts of senders, so the hash is long enough
# that nobody finds a second sender with the hash of a first.
HASH_BYTES = 16
DEFAULT_SENDER = "user"


def get_sender_folder(home: Path, sender: str) -> Path:
    """The folder that belongs to `sender` alone. An empty sender is `user`, as everywhere."""
    return home / FILES_FOLDER / make_folder_name(sender)


def make_folder_name(sender: str) -> str:
    """A readable beginning, and a hash of the exact sender: `tg-12345-9f86d081884c7d65…`.

    Always a single name of lower-case ASCII letters, digits and dashes that starts with a letter or
    a digit, so it is no hidden file, no option of a command and no path.
    """
    import hashlib  # late: it loads OpenSSL, which most clients never need

    exact = sender or DEFAULT_SENDER
    digest = hashlib.blake2b(
        exact.encode(errors="surrogatepass"), digest_size=HASH_BYTES
    ).hexdigest()
    shown = re.sub(r"[^0-9a-z]+", "-", exact[:READABLE_LENGTH].lower()).strip("-")
    return f"{shown}-{digest}" if shown else digest
