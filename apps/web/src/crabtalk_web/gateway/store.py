"""Store: the folder `web` in the home, and nobody's but its owner's.

What the gateway must not lose is in `journal/`, which calls it has carried out in `receipts`, who
it is in `credentials.json`, and a relay that runs beside it keeps its own things in `relay/`.
"""

from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import remove_leftovers

from .errors import GatewayError


@dataclass(frozen=True, slots=True)
class Store:
    home: Path

    @property
    def directory(self) -> Path:
        return self.home / "web"

    @property
    def credentials(self) -> Path:
        return self.directory / "credentials.json"

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def receipts(self) -> Path:
        return self.directory / "receipts"

    @property
    def relay(self) -> Path:
        return self.directory / "relay"

    @property
    def config(self) -> Path:
        return self.home / "config" / "web.toml"

    def prepare(self) -> None:
        """Raises GatewayError."""
        try:
            for directory in (self.directory, self.journal):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                directory.chmod(0o700)
            remove_leftovers(self.directory)
            remove_leftovers(self.journal)
        except OSError as error:
            raise GatewayError(
                f"cannot use {self.directory}: {error.strerror}; set CRABTALK_HOME to another place"
            ) from None
