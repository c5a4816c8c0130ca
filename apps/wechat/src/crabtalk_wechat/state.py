"""State that survives restarts: the cursor, and the context each person's answers need.

Stored in `<home>/wechat/state.json`. An answer has to carry the context of its person's last
message, so the context is saved before the message is in the journal; the cursor only afterwards.
"""

import hashlib
import json
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

from crabtalk.gateway import GatewayError
from crabtalk.transport import remove_stale_temporary_files, replace_file

MAX_PEOPLE = 1000

log = logging.getLogger(__name__)


class WeChatState:
    """The state in memory. Changes are on disk only after `save`."""

    def __init__(self, path: Path, *, max_people: int = MAX_PEOPLE) -> None:
        self._path = path
        self._max_people = max_people
        self.cursor = ""
        self._session = ""  # the session of the cursor
        self._contexts: OrderedDict[str, str] = OrderedDict()

    def load(self, token: str) -> None:
        """A missing file counts as empty. Raises GatewayError for one that cannot be read."""
        self._session = hash_token(token)
        remove_stale_temporary_files(self._path.parent)
        try:
            document = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return
        except OSError as error:
            raise GatewayError(f"cannot read {self._path}: {error}; see to the file") from None
        except ValueError:
            document = None
        if not is_valid_state(document):  # WeChat repeats its messages, and they are recognised
            log.warning("%s is damaged, and begun anew", self._path)
            return
        if document.get("session") == self._session:
            self.cursor = document["cursor"]
        self._contexts = OrderedDict(document["contexts"])

    def begin_session(self, token: str) -> None:
        """Start a session with a new token. The cursor belongs to the old one and is dropped."""
        self._session, self.cursor = hash_token(token), ""

    def save(self) -> None:
        """Raises OSError."""
        document = {
            "cursor": self.cursor,
            "session": self._session,
            "contexts": self._contexts,
        }
        replace_file(self._path, json.dumps(document).encode(), 0o600)

    def get_context(self, person: str) -> str:
        """Empty for a person who has not written for long."""
        return self._contexts.get(person, "")

    def remember_context(self, person: str, context: str) -> bool:
        """Whether it is new. People whose last message is oldest are forgotten."""
        if self._contexts.get(person) == context:
            return False
        self._contexts[person] = context
        self._contexts.move_to_end(person)
        while len(self._contexts) > self._max_people:
            self._contexts.popitem(last=False)
        return True


def hash_token(token: str) -> str:
    """A short hash that tells tokens apart without revealing them."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def is_valid_state(document: Any) -> bool:
    if not isinstance(document, dict) or not isinstance(document.get("cursor"), str):
        return False
    contexts = document.get("contexts")
    return isinstance(contexts, dict) and all(isinstance(text, str) for text in contexts.values())
