"""Where a relay may listen, and what prevents its start."""

import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from apps.web.tests.relay.relay_world import open_relay_world
from crabtalk_web.relay import RelayConfig, RelayConfigError, RelayLimits, RelayServer


@pytest.mark.req("relay.loopback")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "relay.example"])
def test_it_listens_on_this_machine_only_unless_it_has_tls_and_a_name(
    tmp_path: Path, host: str
) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"host_name": "relay.example"},
        {"tls_certificate": tmp_path, "tls_key": tmp_path},
    ]
    for given in cases:
        with pytest.raises(RelayConfigError, match=r"give a TLS certificate, its key and a host"):
            RelayConfig(tmp_path, host=host, **given)
    RelayConfig(tmp_path, host=host, host_name="x", tls_certificate=tmp_path, tls_key=tmp_path)


@pytest.mark.req("relay.loopback")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_address_needs_neither(tmp_path: Path, host: str) -> None:
    assert RelayConfig(tmp_path, host=host).tls() is None


@pytest.mark.req("relay.tls")
async def test_with_a_certificate_it_speaks_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    paths: dict[str, Any] = {}
    for name, blob in (
        ("tls_certificate", certificate.cert_chain_pems[0]),
        ("tls_key", certificate.private_key_pem),
    ):
        paths[name] = tmp_path / name
        blob.write_to_path(str(paths[name]))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with open_relay_world(
        tmp_path / "data", host="0.0.0.0", host_name="localhost", **paths
    ) as world:
        assert world.url == f"https://localhost:{world.relay.port}"
        address = f"{world.url}/health"
        async with aiohttp.ClientSession() as http, http.get(address, ssl=trust) as got:
            assert await got.json() == {"status": "ok"}


@pytest.mark.req("relay.tls")
def test_a_certificate_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelayConfigError, match=r"TLS needs both"):
        RelayConfig(tmp_path, tls_certificate=tmp_path)
    config = RelayConfig(tmp_path, tls_certificate=tmp_path / "no", tls_key=tmp_path / "no")
    with pytest.raises(RelayConfigError, match=r"correct the paths"):
        config.tls()


@pytest.mark.req("relay.start")
async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RelayConfigError, match=rf"cannot listen on 127.0.0.1:{port}: .*choose"):
            async with RelayServer(RelayConfig(tmp_path, port=port)):
                pass


@pytest.mark.req("relay.start")
def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RelayConfigError, match=r'durability is "fsync" or "os"'):
        RelayConfig(tmp_path, durability="maybe")
    with pytest.raises(ValueError, match="batch must be a number above zero"):
        RelayLimits(batch=0)


@pytest.mark.req("relay.start")
async def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RelayConfigError, match=r"move away what is there"):
        async with RelayServer(RelayConfig(tmp_path / "file", port=0)):
            pass


@pytest.mark.req("relay.private")
async def test_its_files_are_private_to_its_user(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with open_relay_world(data) as world:
        await (await world.create_user()).create_session()
        assert data.stat().st_mode & 0o777 == 0o700
        files = list(data.glob("relay.db*"))
        assert len(files) == 3
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
