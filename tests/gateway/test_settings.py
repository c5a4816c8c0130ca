"""Settings: a file that people edit too."""

from pathlib import Path

import pytest

from crabtalk.gateway import (
    GatewayError,
    GatewaySettings,
    allow_user,
    load_settings,
    write_settings,
)

pytestmark = pytest.mark.req("gateways.settings")


def test_a_missing_file_counts_as_empty(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "pigeon.toml") == GatewaySettings()


def test_written_settings_are_read_back_and_comments_survive(tmp_path: Path) -> None:
    path = tmp_path / "config" / "pigeon.toml"
    write_settings(path, {"token": "old"})
    path.write_text("# mine\n" + path.read_text() + 'mode = "poll"  # for now\n')
    write_settings(path, {"token": "new", "base_url": "https://chat.example/", "agent": None})
    allow_user(path, "7")
    allow_user(path, "7")
    allow_user(path, "007")
    assert path.read_text().startswith("# mine\n")
    assert "# for now" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    settings = load_settings(path, {"mode": "webhook", "port": 80, "wait": 1.5})
    assert settings.token == "new"
    assert settings.allowed_users == ("7", "007")
    assert settings.base_url == "https://chat.example"
    assert settings.extra == {"mode": "poll", "port": 80, "wait": 1.5}


def test_a_token_is_in_no_repr_of_settings() -> None:
    assert "secret" not in repr(GatewaySettings(token="secret", extra={"key": "secret"}))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("token = 5", "token must be a text"),
        ("tokn = 'x'", "tokn means nothing here"),
        ("allowed_users = 7", "must be a list"),
        ("allowed_users = [true]", "which is no id"),
        ("allowed_users = ['']", "which is no id"),
        ("port = 'x'", "port must be like 80"),
        ("token = ", "cannot read"),
    ],
)
def test_a_mistake_is_reported_with_its_file(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "pigeon.toml"
    path.write_text(text)
    with pytest.raises(GatewayError, match=complaint) as caught:
        load_settings(path, {"port": 80})
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pigeon.toml").mkdir()
    with pytest.raises(GatewayError, match="cannot write"):
        write_settings(tmp_path / "pigeon.toml", {"token": "x"})
