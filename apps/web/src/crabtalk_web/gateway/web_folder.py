"""The folder `web` in the home, readable only by its owner.

`journal/` has the state that must survive, `receipts` the handled calls, `credentials.json` the
machine's identity, and `relay/` the data of a relay that runs beside the gateway.
"""

from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import remove_stale_temporary_files

from .errors import WebGatewayError


@dataclass(frozen=True, slots=True)
class WebFolder:
    home: Path

    @property
    def directory(self) -> Path:
        return self.home / "web"

    @property
    def credentials_file(self) -> Path:
        return self.directory / "credentials.json"

    @property
    def journal_folder(self) -> Path:
        return self.directory / "journal"

    @property
    def receipts_file(self) -> Path:
        return self.directory / "receipts"

    @property
    def relay_folder(self) -> Path:
        return self.directory / "relay"

    @property
    def config_file(self) -> Path:
        return self.home / "config" / "web.toml"

    def prepare(self) -> None:
        """Raises WebGatewayError."""
        try:
            for directory in (self.directory, self.journal_folder):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                directory.chmod(0o700)
            remove_stale_temporary_files(self.directory)
            remove_stale_temporary_files(self.journal_folder)
        except OSError as error:
            raise WebGatewayError(
                f"cannot use {self.directory}: {error.strerror}; set CRABTALK_HOME to another place"
            ) from None
