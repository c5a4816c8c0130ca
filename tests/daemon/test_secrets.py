"""Keys of model providers never reach child processes, clients, session logs or daemon logs."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client, ServerError, connect
from crabtalk.protocol import wire
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.daemon.crabtalkd_program import CRABTALKD, CRABTALKD_PROGRAM
from tests.daemon.in_process_daemon import (
    PATIENCE,
    InProcessDaemon,
    collect_events,
    collect_text,
    get_stream_end,
    run_daemon,
    run_tool_calls,
)
from tests.forked_programs import PIPE, ForkedProcess
from tests.mcp.world import TINY_SERVER
from tests.model.fake_vendor import FakeVendor, Respond, VendorAnswer, VendorRequest, run_vendor

pytestmark = pytest.mark.one_loop

# It does not look like a key, so only code that knows it can mask it.
KEY = "beach-9f8e7d6c5b4a39281706abcdef"
CRAB = 'prompt = "You are crab."\n'
# The key comes from a variable, as the documentation advises.
CONFIG = (
    '[llm]\nbase_url = "{url}/v1"\napi_key = "${{CRAB_TEST_KEY}}"\nmodel = "m"\nmax_retries = 0\n'
)


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAB_TEST_KEY", KEY)


def get_key(request: VendorRequest) -> str:
    return request.headers["authorization"].removeprefix("Bearer ")


def make_chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def shows_the_key(text: str) -> bool:
    """Whether eight consecutive characters of the key are in the text."""
    return any(KEY[start : start + 8] in text for start in range(len(KEY) - 7))


@asynccontextmanager
async def run_with_vendor(
    path: Path, respond: Respond, *, agents: dict[str, str] | None = None
) -> AsyncIterator[tuple[InProcessDaemon, FakeVendor, Client]]:
    async with (
        run_vendor(respond) as fake,
        run_daemon(
            path, config=CONFIG.format(url=fake.url), agents=agents or {"crab": CRAB}, hooks={}
        ) as daemon,
        daemon.client() as client,
    ):
        yield daemon, fake, client


# ── Children ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.environment")
async def test_commands_servers_and_their_host_do_not_inherit_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:1")
    monkeypatch.setenv("NAMED", "for commands")
    declared = (
        f'[[mcps]]\nname = "beach"\ncommand = "{sys.executable}"\nargs = ["-S", "{TINY_SERVER}"]\n'
        '[mcps.env]\nTIDE = "high"\n'
    )
    agents = {"crab": f'{CRAB}[hooks.bash]\nenv = ["NAMED"]\n{declared}'}
    names = ("CRAB_TEST_KEY", "NAMED", "HTTPS_PROXY", "TIDE", "PATH")
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        command = f"env; echo; tr '\\0' '\\n' < /proc/{daemon.daemon.mcp.host.pid}/environ"
        calls: list[tuple[str, dict[str, Any] | str]] = [("bash", {"command": command})]
        calls += [("variable", {"text": name}) for name in names]
        shell, *variables = await run_tool_calls(client, "crab", calls)
        assert [result.output for result in variables] == [
            "unset",
            "unset",
            "http://proxy.invalid:1",
            "high",
            os.environ["PATH"],
        ]
        environment = json.loads(shell.output)["stdout"]
        assert "NAMED=for commands\n" in environment
        assert "HTTPS_PROXY" not in environment.split("\n\n")[0]
        assert KEY not in environment


@pytest.mark.req("bash.env_refused")
async def test_a_call_that_sets_bash_env_is_refused(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        script = tmp_path / "script"
        script.write_text(f"touch {tmp_path}/ran\n")
        arguments = {"command": "true", "env": {"BASH_ENV": str(script)}}
        (refused,) = await run_tool_calls(client, "crab", [("bash", arguments)])
        assert refused.is_error
        assert refused.output.startswith("permission denied: env may not set 'BASH_ENV'")
        assert not (tmp_path / "ran").exists()


# ── /proc ───────────────────────────────────────────────────────────────────────────────────────


# A user without root's rights, except for finding the interpreter. Root may read everything.
PLAIN_USER_ID = 65534
AS_PLAIN_USER = (
    *("setpriv", f"--reuid={PLAIN_USER_ID}", f"--regid={PLAIN_USER_ID}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.fixture
def user_directory() -> Iterator[Path]:
    """A directory that belongs to that user."""
    user_directory = Path(tempfile.mkdtemp(prefix="crabtalk-"))
    if os.geteuid() == 0:
        os.chown(user_directory, PLAIN_USER_ID, PLAIN_USER_ID)
    yield user_directory
    shutil.rmtree(user_directory)


@pytest.fixture
def prefix() -> tuple[str, ...]:
    """The command prefix that runs a program without root's rights."""
    if os.geteuid() != 0:
        return ()
    try:
        subprocess.run([*AS_PLAIN_USER, sys.executable, "-c", ""], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("root runs this test, and cannot start a program as another user here")
    return AS_PLAIN_USER


@pytest.mark.req("trust.environ_file")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows environments in files")
async def test_other_processes_of_the_same_user_cannot_read_the_daemons_environment(
    user_directory: Path, prefix: tuple[str, ...]
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*prefix, str(CRABTALKD), "run", "--home", str(user_directory / "home"), "--tcp", "off"),
        stderr=PIPE,
        env={**os.environ, "HOME": str(user_directory)},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            assert process.stderr is not None
            while b"is ready" not in await process.stderr.readline():
                pass
            async with asyncio.timeout(2):  # the line is printed a moment before
                while KEY in (output := await read_environment(prefix, process.pid)):
                    await asyncio.sleep(0.01)
        assert "Permission denied" in output
    finally:
        process.terminate()
        await process.wait()


async def read_environment(prefix: tuple[str, ...], pid: int) -> str:
    """The output of `cat`, both streams."""
    process = await asyncio.create_subprocess_exec(
        *(*prefix, "cat", f"/proc/{pid}/environ"),
        stdout=PIPE,
        stderr=subprocess.STDOUT,
        env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
    )
    return (await process.communicate())[0].decode(errors="replace")


# ── Servers that echo the key ───────────────────────────────────────────────────────────────────


def answer_with_key(request: VendorRequest) -> VendorAnswer:
    sentence = f"Incorrect API key provided: {get_key(request)}. Find yours on the page of keys."
    return VendorAnswer.from_json({"error": {"message": sentence, "code": "invalid_api_key"}}, 401)


def answer_with_starred_key(request: VendorRequest) -> VendorAnswer:
    key = get_key(request)
    sentence = f"Incorrect API key provided: {key[:11]}{'*' * 12}{key[-4:]}. Find yours there."
    return VendorAnswer.from_json({"error": {"message": sentence}}, 401)


def answer_with_dotted_key(request: VendorRequest) -> VendorAnswer:
    key = get_key(request)
    return VendorAnswer.from_json({"error": f"the key {key[:5]}...{key[-4:]} is not known"}, 403)


def answer_with_cut_key(request: VendorRequest) -> VendorAnswer:
    return VendorAnswer([f"denied: {get_key(request)[:20]}".encode()], 400, "text/plain")


def answer_without_json(request: VendorRequest) -> VendorAnswer:
    return VendorAnswer([json.dumps(request.headers).encode()], 500, "text/plain")


def answer_with_redirect(request: VendorRequest) -> VendorAnswer:
    url = f"https://login.invalid/?token={get_key(request)}"
    return VendorAnswer([f"Moved to {url}".encode()], 302, "text/plain", {"Location": url})


def answer_in_stream(request: VendorRequest) -> VendorAnswer:
    error = {"error": {"message": f"key {get_key(request)} ran out of credit"}}
    return VendorAnswer([make_chunk("Well, "), f"data: {json.dumps(error)}\n\n".encode()])


ANSWERS = [
    answer_with_key,
    answer_with_starred_key,
    answer_with_dotted_key,
    answer_with_cut_key,
    answer_without_json,
    answer_with_redirect,
    answer_in_stream,
]


@pytest.mark.req("trust.echoed_key")
@pytest.mark.parametrize("respond", ANSWERS, ids=[answer.__name__ for answer in ANSWERS])
async def test_an_error_that_quotes_the_key_reaches_neither_client_nor_file(
    tmp_path: Path, respond: Respond
) -> None:
    async with run_with_vendor(tmp_path, respond) as (daemon, fake, client):
        end = get_stream_end(await collect_events(client.stream("crab", "hello")))
        assert [get_key(request) for request in fake.requests] == [KEY]
        assert end.error
        assert not shows_the_key(str(end))
        assert KEY[-4:] not in end.error
        page = await client.list_messages("crab")
        assert not shows_the_key(str(page))
        logs = "".join(path.read_text() for path in daemon.log_paths)
        assert not shows_the_key(logs)
        assert KEY[-4:] not in logs


@pytest.mark.req("trust.echoed_key")
async def test_an_error_of_listing_models_does_not_show_the_key(
    tmp_path: Path,
) -> None:
    async with run_with_vendor(tmp_path, answer_with_key) as (daemon, fake, client):
        daemon.write_config((daemon.home / "config.toml").read_text().replace('model = "m"\n', ""))
        await client.reload()
        try:
            error_text = str(get_stream_end(await collect_events(client.stream("crab", "hello"))))
        except ServerError as error:
            error_text = str(error)
        assert "Incorrect API key provided" in error_text
        assert not shows_the_key(error_text)
        assert fake.requests[-1].path == "/v1/models"


@pytest.mark.req("trust.echoed_key")
@pytest.mark.parametrize("cuts", [(), (3,), (8, 9), (1, 2, 20), tuple(range(1, len(KEY)))])
async def test_the_key_in_streamed_text_is_masked_however_it_is_split(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    bounds = (0, *cuts, len(KEY))

    def respond(request: VendorRequest) -> VendorAnswer:
        key = get_key(request)
        parts = [key[start:end] for start, end in pairwise(bounds)]
        words = ["You sent ", *parts, f" and {KEY[:7]}", " is", " how it begins", f"; {KEY[:9]}"]
        return VendorAnswer([*map(make_chunk, words), make_chunk("", "stop"), b"data: [DONE]\n\n"])

    async with run_with_vendor(tmp_path, respond) as (daemon, _, client):
        text = collect_text(await collect_events(client.stream("crab", "hello")))
        assert KEY not in text
        before, _, rest = text.removeprefix("You sent ").partition("********")
        assert KEY.startswith(before)
        assert len(before) < 8
        assert rest == f" and {KEY[:7]} is how it begins; {KEY[:9]}"
        assert KEY not in "".join(path.read_text() for path in daemon.log_paths)
        page = await client.list_messages("crab")
        assert page.messages[-1].content == text


class JsonLogDaemon(CrabtalkdProcess):
    """A daemon with JSON logs."""

    def fork_process(self) -> ForkedProcess:
        words = ("run", "--home", self.home, "--tcp", "off", "--log-format", "json", "--verbose")
        return CRABTALKD_PROGRAM.start(*words, stderr=PIPE)


@pytest.mark.req("trust.echoed_key")
@pytest.mark.parametrize("kind", [CrabtalkdProcess, JsonLogDaemon])
async def test_the_log_has_no_key_from_an_environment_variable(
    tmp_path: Path, kind: type[CrabtalkdProcess]
) -> None:
    home = tmp_path / "home"
    (home / "agents").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "agents" / "crab.toml").write_text(CRAB)
    async with run_vendor(answer_with_key) as fake:
        (home / "config.toml").write_text(CONFIG.format(url=fake.url))
        process = kind(home)
        try:
            await process.start()
            async with connect(home=home, timeout=PATIENCE) as client:
                assert get_stream_end(await collect_events(client.stream("crab", "hello"))).error
                # A client's input may contain the key too.
                with pytest.raises(ServerError):
                    await client.get_agent(f"x {KEY}")
                await client.publish_event(f"topic-{KEY}", "payload")
            process.send_signal(signal.SIGTERM)  # so that the whole log is written
            assert await process.wait_for_exit() == 0
        finally:
            await process.kill()
    logged = (home / "logs" / "crabtalkd.log").read_text() + process.stderr_text
    assert fake.requests
    assert "Incorrect API key provided" in logged
    assert not shows_the_key(logged)


def test_wire_messages_are_compared_as_text() -> None:
    """`str` of a message has its content, so the tests above can fail."""
    assert KEY in str(wire.StreamEnd(error=KEY))
