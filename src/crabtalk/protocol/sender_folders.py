"""The folder of a sender, `<home>/files/<name>`.

Gateways store the files a person sends there, and the daemon lets that person's runs read and write
it. Both must compute the same path, so the rule is in this package, which both import. This module
never accesses the disk.
"""

import re
from pathlib import Path

FILES_FOLDER = "files"
# Characters in the readable part of a name.
READABLE_LENGTH = 32
# The folder is a permission boundary and people choose parts of sender names, so the hash must be
# long enough to make a collision infeasible.
HASH_BYTES = 16
DEFAULT_SENDER = "user"


def get_sender_folder(home: Path, sender: str) -> Path:
    """Return the folder that belongs to `sender` alone. An empty sender means `user`."""
    return home / FILES_FOLDER / make_folder_name(sender)


def make_folder_name(sender: str) -> str:
    """Make a name from a readable beginning and a hash of the sender: `tg-12345-9f86d081884c7d65…`.

    The name has only lower-case ASCII letters, digits and dashes and starts with a letter or digit,
    so it can be no hidden file, no command-line option and no path.
    """
    import hashlib  # late: it loads OpenSSL, which most clients never need

    exact = sender or DEFAULT_SENDER
    digest = hashlib.blake2b(
        exact.encode(errors="surrogatepass"), digest_size=HASH_BYTES
    ).hexdigest()
    readable = re.sub(r"[^0-9a-z]+", "-", exact[:READABLE_LENGTH].lower()).strip("-")
    return f"{readable}-{digest}" if readable else digest
