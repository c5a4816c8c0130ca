"""The configuration as a document: a person's file, of which we change one key at a time."""

from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

from .errors import StorageError


class ConfigDocument:
    """Every call blocks, and raises OSError and StorageError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Any]:
        return self._read_document()[1]

    def _read_document(self) -> tuple[str, dict[str, Any]]:
        """The text, and what it says."""
        import tomllib  # late: most starts have no file to read

        try:
            # Not as text: line ends would come back as ours rather than as the user's.
            text = self._path.read_bytes().decode()
            return text, tomllib.loads(text)
        except FileNotFoundError:
            return "", {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StorageError(
                f"{self._path} is not valid TOML: {error}; mend it or move it away"
            ) from None

    def set_value(self, section: str, key: str, value: Any) -> None:
        """Changes that and nothing else."""
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        text, _ = self._read_document()
        try:
            document: Any = tomlkit.parse(text)
            document.setdefault(section, tomlkit.table())[key] = value
            data = tomlkit.dumps(document).encode()
        except (TOMLKitError, ValueError, TypeError) as error:
            raise StorageError(f"{self._path} cannot be edited: {error}; mend it first") from None
        replace_file(self._path, data, 0o600)
