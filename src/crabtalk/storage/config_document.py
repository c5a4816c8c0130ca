"""The configuration as a document: a file that people edit, changed here one key at a time."""

from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

from .errors import StorageError


class ConfigDocument:
    """Every method blocks, and raises OSError and StorageError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Any]:
        return self._read_document()[1]

    def _read_document(self) -> tuple[str, dict[str, Any]]:
        """The text and its parsed content."""
        import tomllib  # imported late: most starts have no file to read

        try:
            # Read as bytes, because text mode would change the user's line endings.
            text = self._path.read_bytes().decode()
            return text, tomllib.loads(text)
        except FileNotFoundError:
            return "", {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StorageError(
                f"{self._path} is not valid TOML: {error}; mend it or move it away"
            ) from None

    def set_value(self, section: str, key: str, value: Any) -> None:
        """Changes one key and nothing else in the file."""
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
