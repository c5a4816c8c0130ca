"""Config: an empty file works; errors in a file say what to write."""

import signal
from pathlib import Path

import pytest

from crabtalk.client import ServerError, connect
from crabtalk.daemon.config.config_file import ConfigError
from crabtalk.daemon.config.settings import Config, StorageSettings, load_config
from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.runtime import RuntimeLimits as RuntimeLimits
from crabtalk.storage import StorageError
from crabtalk.storage.postgres.database import PostgresDatabase
from crabtalk.transport import TcpAddress, TransportLimits
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.postgres import PostgresServer, execute_sql, with_parameters


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.mark.req("config.empty_works")
@pytest.mark.parametrize("content", [None, "", "# nothing\n", "[daemon]\n[limits]\n"])
@pytest.mark.req("trust.tcp.loopback")
def test_an_empty_config_has_the_defaults(path: Path, content: str | None) -> None:
    if content is not None:
        path.write_text(content)
    assert load_config(path) == Config()
    assert Config().tcp == TcpAddress("127.0.0.1", 6688)


def test_settings_in_the_file_are_used(path: Path) -> None:
    path.write_text(
        '[daemon]\ntcp = "[::1]:7000"\ntls_cert = "c.pem"\ntls_key = "/k.pem"\n'
        "[limits]\nconnections = 5\nstall_timeout = 1.5\nruns = 7\nfeeds = 2\n"
        '[storage]\nurl = "file:"\ndurability = "os"\n'
    )
    assert load_config(path) == Config(
        tcp=TcpAddress("::1", 7000),
        any_port=False,
        tls_cert=path.parent / "c.pem",
        tls_key=Path("/k.pem"),
        limits=TransportLimits(connections=5, stall_timeout=1.5),
        runtime_limits=RuntimeLimits(runs=7),
        feed_limits=FeedLimits(feeds=2),
        flush=False,
    )


def test_tcp_can_be_off_and_the_command_line_wins(path: Path) -> None:
    path.write_text('[daemon]\ntcp = "off"\n')
    assert load_config(path).tcp is None
    assert load_config(path, tcp="127.0.0.1:1").tcp == TcpAddress("127.0.0.1", 1)
    assert load_config(path, tcp="OFF").tcp is None


def test_sections_of_other_packages_are_ignored(path: Path) -> None:
    path.write_text('[llm]\nmodel = "m"\n[daemon]\nmodel = "m"\n[[providers]]\nname = "x"\n')
    assert load_config(path) == Config()


def test_unknown_keys_are_listed(path: Path) -> None:
    path.write_text("[bogus]\n[daemon]\ntpc = 1\n[storage]\nulr = 1\n[limits]\nconections = 3\n")
    unknown = ("[bogus]", "tpc in [daemon]", "ulr in [storage]", "conections in [limits]")
    assert load_config(path) == Config(unknown_keys=unknown)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("daemon = 1", r"daemon in .* must be a section: write \[daemon\]"),
        ("[daemon", "is not valid TOML"),
        ("[daemon]\ntcp = true", "tcp: .*HOST:PORT.*or off"),
        ('[daemon]\nowners = "anna"', "must be a list of senders"),
        ("[daemon]\nowners = [1]", "must be a list of senders"),
        ('[daemon]\ntcp = "nowhere"', "HOST:PORT"),
        ("[daemon]\ntls_cert = 1", "tls_cert in .* must be a path"),
        ('[daemon]\ntls_cert = "c"', "TLS needs tls_key too"),
        ("[limits]\nruns = 0", r"\[limits\] in .*runs must be a whole number above zero"),
        ("[limits]\nfeeds = true", "feeds must be a whole number above zero"),
        ('[storage]\nurl = "mysql:"', r"url in \[storage\] of .* must be \"file:\", or \"postgres"),
        ('[storage]\nurl = "postgresql:crab"', r"url in \[storage\] of .* must be"),
        ("[storage]\nurl = 5432", r"url in \[storage\] of .* must be"),
        ('[storage]\nurl = "postgresql://[::1/crab"', "is no address; .* as %XX"),
        ('[storage]\nurl = "postgresql://u:${PW}@h/d"', "names a variable.* set PGPASSWORD"),
        ("[storage]\nlease = 0.1", r"lease in \[storage\] of .* must be from 0.5 to 3600"),
        ("[storage]\nlease = nan", r"lease in \[storage\] of .* must be from 0.5 to 3600"),
        ('[storage]\nlease = "10"', r"lease in \[storage\] of .* must be from 0.5 to 3600"),
        ("[storage]\npool = 1", r"pool in \[storage\] of .* must be from 2 to 1000"),
        ("[storage]\npool = 2.5", r"pool in \[storage\] of .* must be a whole number"),
        ("[storage]\npool = true", r"pool in \[storage\] of .* must be from 2 to 1000"),
        ("[storage]\nstatement_timeout = 0", "statement_timeout in .* must be from 0.1 to 600"),
        ('[storage]\ndurability = "maybe"', 'must be "fsync" or "os"'),
        ("[limits]\nconnections = 0", r"\[limits\] in .*connections must be a number above zero"),
        ('[limits]\nconnections = "many"', "connections must be a number"),
    ],
)
def test_invalid_settings_are_named_with_what_to_write(
    path: Path, content: str, sentence: str
) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        load_config(path)


def test_a_file_that_is_not_text_is_an_error(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)


@pytest.mark.req("trust.tcp.tls")
@pytest.mark.parametrize("address", ["0.0.0.0:6688", "192.0.2.1:1", "[::]:6688", "host.example:1"])
def test_an_address_others_can_reach_needs_tls(path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="needs TLS"):
        load_config(path, tcp=address)
    path.write_text('[daemon]\ntls_cert = "c"\ntls_key = "k"\n')
    assert str(load_config(path, tcp=address).tcp) == address


# ── A database ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("config.storage.url")
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_database_can_be_configured_as_storage(path: Path, scheme: str) -> None:
    url = f"{scheme}://crab@one:5432,two:5433/shore?search_path=fleet"
    path.write_text(f'[storage]\nurl = "{url}"\nlease = 5\npool = 20\nstatement_timeout = 2.5\n')
    config = load_config(path)
    assert config == Config(storage=StorageSettings(url, 5.0, 20, 2.5))
    assert config.storage.is_shared
    assert not Config().storage.is_shared


@pytest.mark.req("config.storage.secret")
def test_the_password_of_a_url_is_not_in_the_repr(path: Path) -> None:
    url = "postgresql://crab:s3cr3t%2Fp%40ss@h/d?password=0th3r%2B&sslpassword=th1rd"
    path.write_text(f'[storage]\nurl = "{url}"\n')
    config = load_config(path)
    assert config.storage.secrets == ["s3cr3t%2Fp%40ss", "s3cr3t/p@ss", "0th3r+", "th1rd"]
    assert "s3cr3t" not in repr(config)
    assert StorageSettings("postgresql://crab@h/d").secrets == []
    assert StorageSettings().secrets == []


@pytest.mark.req("config.storage.secret")
@pytest.mark.parametrize(
    "url",
    [
        *("postgresq://crab:s3cr3t@h/d", "postgresql:crab:s3cr3t@h"),
        *(f"postgresql://crab:{password}@h/d" for password in ("s3cr3t/", "s3cr3t#", "?s3cr3t")),
        "postgresql://crab:s3cr3t@[h/d",
    ],
)
def test_errors_about_a_url_do_not_quote_it(path: Path, url: str) -> None:
    path.write_text(f'[storage]\nurl = "{url}"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "s3cr3t" not in str(caught.value)


async def read_user(url: str) -> str:
    """The user name that the database sees."""
    database = PostgresDatabase(url)
    try:
        row = await database.fetch_row("SELECT current_user::text AS name")
        assert row is not None
        return str(row["name"])
    finally:
        await database.close()


@pytest.mark.req("config.storage.password")
@pytest.mark.one_loop
async def test_the_password_may_come_from_the_environment_or_a_file(
    tmp_path: Path, private_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_sql(private_postgres.url, "CREATE ROLE owl LOGIN PASSWORD 's3cr3t/h00t'")
    url = private_postgres.url.replace("crabtalk@", "owl@")
    for name in ("PGPASSWORD", "PGPASSFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError) as caught:
        await read_user(url)
    assert "password" in str(caught.value)
    passwords = tmp_path / "passwords"
    passwords.write_text("*:*:*:owl:s3cr3t/h00t\n")
    passwords.chmod(0o600)
    assert await read_user(with_parameters(url, passfile=str(passwords))) == "owl"
    assert await read_user(url.replace("owl@", "owl:s3cr3t%2Fh00t@")) == "owl"
    monkeypatch.setenv("PGPASSWORD", "s3cr3t/h00t")
    assert await read_user(url) == "owl"


@pytest.mark.req("config.storage.secret")
@pytest.mark.one_loop
async def test_a_refused_database_login_is_reported_without_the_password(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    execute_sql(private_postgres.url, "CREATE ROLE owl LOGIN PASSWORD 'hoot'")
    url = private_postgres.url.replace("crabtalk@", "owl:s3cr3t%2Fh00t@")
    home = tmp_path / "home"
    home.mkdir(0o700)
    (home / "config.toml").write_text(f'[storage]\nurl = "{url}"\n')
    process = CrabtalkdProcess(home)
    try:
        await process.start()
        async with connect(home=home) as client:
            with pytest.raises(ServerError) as caught:
                await client.send("crab", "hello")
            problems = list((await client.get_stats()).problems)
        process.send_signal(signal.SIGTERM)
        await process.wait_for_exit()
    finally:
        await process.kill()
    logged = (home / "logs" / "crabtalkd.log").read_text()
    assert any("owl" in text for text in (caught.value.message, *problems, logged))
    for text in (caught.value.message, *problems, logged, process.stderr_text):
        assert "s3cr3t" not in text
