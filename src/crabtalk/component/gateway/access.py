"""Access: who is served. Nobody, until somebody is on the allow-list."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from .bindings import GROUP
from .errors import GatewayError
from .pairing import LENGTH, LETTERS, Pairing, normal
from .service import Chat, Person, Update
from .settings import Settings, allow, load_allowed

# A stranger is told once in so many seconds, and so many are remembered.
TELL_EVERY = 3600.0
MOST_STRANGERS = 1024

log = logging.getLogger(__name__)


class Access:
    """The list is read again when its file has changed."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        path: Path,
        pairing: Pairing,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._allowed = frozenset(settings.allowed_users)
        self._path = path
        self._pairing = pairing
        self._clock = clock
        self._stamp = self._stamped()
        self._told: OrderedDict[str, float] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        return not self._allowed

    def serves(self, person: Person, chat: Chat) -> bool:
        self._refresh()
        if person.id in self._allowed:
            return True
        return chat.is_group and f"{GROUP}{chat.id}" in self._allowed

    def stranger(self, update: Update) -> str:
        """What to tell somebody who is not served; empty for nothing. A code lets them in."""
        if update.chat.is_group:
            return self._once(update, f"{GROUP}{update.chat.id}") if update.is_to_us else ""
        code = code_in(update.text)
        if code and self._pairing.is_open:
            if self._pairing.claim(code):
                return self._let_in(update.person)
            return "That is not the code, or it is not valid any more."
        return self._once(update, update.person.id)

    def _let_in(self, person: Person) -> str:
        try:
            allow(self._path, person.id)
        except GatewayError as error:
            log.error("%s cannot be let in: %s", person.id, error)  # noqa: TRY400
            return "The code is right, but the settings cannot be written. See the program's log."
        log.info("%s was let in by the code", person.id)
        self._refresh()
        return "Welcome. Write something, or /help."

    def _once(self, update: Update, key: str) -> str:
        now = self._clock()
        if now - self._told.get(key, -TELL_EVERY) < TELL_EVERY:
            return ""
        self._told[key] = now
        self._told.move_to_end(key)
        while len(self._told) > MOST_STRANGERS:
            self._told.popitem(last=False)
        entry = f'"{key}"' if not key.isdecimal() else key
        return (
            "I do not know you. If this program is yours, either run "
            f"`crabtalk-{self._name} pair` and send me the code it prints, or add {entry} to "
            f"allowed_users in config/{self._name}.toml."
        )

    def _refresh(self) -> None:
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._allowed = frozenset(load_allowed(self._path))
        except GatewayError as error:
            log.error("the list of before stays in force: %s", error)  # noqa: TRY400

    def _stamped(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)


def code_in(text: str) -> str:
    """What looks like a code: alone, or behind a command as a link brings it."""
    words = text.split()
    if words and words[0].partition("@")[0] in ("/start", "/pair"):
        del words[0]
    code = normal("".join(words[:LENGTH]))
    return code if len(code) == LENGTH and set(code) <= set(LETTERS) else ""
