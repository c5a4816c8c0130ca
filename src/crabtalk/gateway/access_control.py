"""The allow-list: which people and groups are served. An empty list serves no one."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from .agent_bindings import GROUP_PREFIX
from .chat_service import Chat, Person, Update
from .errors import GatewayError
from .pairing import CODE_LENGTH, CODE_LETTERS, PairingCode, normalize_code
from .settings import GatewaySettings, allow_user, load_allowed_users

# A stranger is told once in this many seconds. The gateway remembers this many strangers.
NOTIFY_INTERVAL = 3600.0
MAX_STRANGERS = 1024

log = logging.getLogger(__name__)


class AccessControl:
    """The allow-list. It is loaded again when its file has changed."""

    def __init__(
        self,
        name: str,
        settings: GatewaySettings,
        path: Path,
        pairing: PairingCode,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._allowed = frozenset(settings.allowed_users)
        self._path = path
        self._pairing = pairing
        self._clock = clock
        self._file_version = self._read_file_version()
        self._notified_at: OrderedDict[str, float] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        return not self._allowed

    def is_allowed(self, person: Person, chat: Chat) -> bool:
        self._reload_if_changed()
        if person.id in self._allowed:
            return True
        return chat.is_group and f"{GROUP_PREFIX}{chat.id}" in self._allowed

    def handle_stranger(self, update: Update) -> str:
        """The reply to a person who is not served; empty for no reply. A pairing code lets the
        person in."""
        if update.chat.is_group:
            return (
                self._build_rejection(update, f"{GROUP_PREFIX}{update.chat.id}")
                if update.is_to_us
                else ""
            )
        code = parse_code(update.text)
        if code and self._pairing.is_open:
            if self._pairing.claim_code(code):
                return self._add_person(update.person)
            return "That is not the code, or it is not valid any more."
        return self._build_rejection(update, update.person.id)

    def _add_person(self, person: Person) -> str:
        try:
            allow_user(self._path, person.id)
        except GatewayError as error:
            log.error("%s cannot be let in: %s", person.id, error)  # noqa: TRY400
            return "The code is right, but the settings cannot be written. See the program's log."
        log.info("%s was let in by the code", person.id)
        self._reload_if_changed()
        return "Welcome. Write something, or /help."

    def _build_rejection(self, update: Update, key: str) -> str:
        now = self._clock()
        if now - self._notified_at.get(key, -NOTIFY_INTERVAL) < NOTIFY_INTERVAL:
            return ""
        self._notified_at[key] = now
        self._notified_at.move_to_end(key)
        while len(self._notified_at) > MAX_STRANGERS:
            self._notified_at.popitem(last=False)
        entry = f'"{key}"' if not key.isdecimal() else key
        return (
            "I do not know you. If this program is yours, either run "
            f"`crabtalk-{self._name} pair` and send me the code it prints, or add {entry} to "
            f"allowed_users in config/{self._name}.toml."
        )

    def _reload_if_changed(self) -> None:
        version = self._read_file_version()
        if version == self._file_version:
            return
        self._file_version = version
        try:
            self._allowed = frozenset(load_allowed_users(self._path))
        except GatewayError as error:
            log.error("the list of before stays in force: %s", error)  # noqa: TRY400

    def _read_file_version(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (status.st_mtime_ns, status.st_size, status.st_ino)


def parse_code(text: str) -> str:
    """The pairing code in a message: alone, or after /start or /pair, as a link sends it."""
    words = text.split()
    if words and words[0].partition("@")[0] in ("/start", "/pair"):
        del words[0]
    code = normalize_code("".join(words[:CODE_LENGTH]))
    return code if len(code) == CODE_LENGTH and set(code) <= set(CODE_LETTERS) else ""
