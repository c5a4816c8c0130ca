"""LocalProvider: SmolLM2-135M in a child process, for a machine without keys or network.

The model can only chat, so it gets no tools. The child starts on first use, listens on loopback
with a random key, and has OpenAI's API. Its program is `server_process.py`; `install.py` installs
the runtime and the weights.
"""

import asyncio
import json
import os
import platform
import secrets
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import msgspec

from crabtalk.environment import build_child_environment
from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.http_client import HttpClient, Timeouts
from crabtalk.model.messages import Chunk, Message, ModelInfo, Request, Response
from crabtalk.model.openai import OpenAiDialect
from crabtalk.model.provider import HttpProvider, RetryPolicy

from .download import INSTALL_COMMAND
from .install import RUNTIME_PACKAGE, WEIGHTS_PACKAGE, is_installed

MODEL = "smollm2-135m"
DESCRIPTION = "SmolLM2-135M, a tiny offline demo model: it chats, makes mistakes, and uses no tools"

PARALLEL_REQUESTS = 2
CONTEXT_TOKENS = 2048  # of each parallel request
# Tokens of an answer without a limit: it might not end by itself and would fill the context.
DEFAULT_ANSWER_TOKENS = 512
MAX_THREADS = 4  # a model this small gains nothing from more
# Seconds from a cold disk on a busy machine; usually it takes half a second.
LOAD_TIMEOUT = 60.0
STOP_TIMEOUT = 3.0
# A request may have to wait until two others are complete.
TIMEOUTS = Timeouts(connect=5.0, first=300.0, between=60.0)
# Bytes kept of the end of the child's stderr.
STDERR_TAIL_BYTES = 4096
# Agents' prompts have thousands of tokens. This model reads 160 a second on one core, holds 2048
# including the answer, and follows only the first few sentences.
MAX_SYSTEM = 1200  # characters, about 300 tokens
# Instructions that the runtime's x86_64 build uses without checking for them.
CPU_INSTRUCTIONS = ("avx2", "bmi2", "f16c", "fma")
ALTERNATIVE_HINT = "use an API key or a local server instead (crabtalkd setup)"
SHUT_DOWN = "the local model has been shut down"
# Replaces the server's own message, which names a setting that does not exist here.
TOO_LONG = (
    f"the conversation is too long for the local model, which reads {CONTEXT_TOKENS} tokens "
    "at once; compact it, or begin a new one"
)


class LocalProvider:
    """The model in `directory`. One child process serves all requests, also parallel ones."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "local",
        cpuinfo: Path = Path("/proc/cpuinfo"),
        load_timeout: float = LOAD_TIMEOUT,
    ) -> None:
        self._directory = directory
        self._name = name
        self._cpuinfo = cpuinfo
        self._load_timeout = load_timeout
        self._http = HttpClient()
        self._start_lock = asyncio.Lock()
        self._process: LocalModelProcess | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        child = self._process
        return child.pid if child is not None and child.is_alive else None

    async def complete(self, request: Request) -> Response:
        """Cancelling this stops the model at once; cancelling it during loading ends the child."""
        child = await self._ensure_process(request.model)
        try:
            return await self._create_provider(child).complete(limit_answer(request))
        except ApiError as error:
            raise await self._explain_error(child, error) from None

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Closing this stops the model at once; cancelling it during loading ends the child."""
        child = await self._ensure_process(request.model)
        try:
            async with aclosing(
                self._create_provider(child).stream(limit_answer(request))
            ) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ApiError as error:
            raise await self._explain_error(child, error) from None

    async def models(self) -> list[ModelInfo]:
        """Return the model if it could be started, without starting it."""
        await asyncio.to_thread(self._check_can_run)
        return [ModelInfo(MODEL, CONTEXT_TOKENS)]

    def context_limit(self, model: str) -> int | None:
        return CONTEXT_TOKENS if model == MODEL else None

    async def close(self) -> None:
        """Stop the child. Running requests and later ones fail."""
        self._closed = True
        if self._process is not None:
            self._process.terminate()  # so that a child that still loads releases the lock
        async with self._start_lock:
            await self._discard()
        await self._http.close()

    async def _ensure_process(self, model: str) -> "LocalModelProcess":
        """Return the child, started if necessary."""
        if model != MODEL:
            raise self._build_error(
                ErrorKind.NOT_FOUND, f"there is no {model!r} here, only {MODEL!r}"
            )
        async with self._start_lock:
            if self._process is not None and self._process.is_alive and not self._closed:
                return self._process
            await self._discard()
            await asyncio.to_thread(self._check_can_run)
            try:
                self._process = child = await LocalModelProcess.spawn()
                await self._load_model(child)
            except BaseException:
                await self._discard()
                raise
            return child

    async def _load_model(self, child: "LocalModelProcess") -> None:
        if self._closed:  # closed while the child was starting
            raise self._build_error(ErrorKind.CONNECTION, SHUT_DOWN)
        try:
            async with asyncio.timeout(self._load_timeout):
                loaded = await child.load(self._directory)
        except TimeoutError:
            raise self._build_error(
                ErrorKind.TIMEOUT, f"the local model did not load within {self._load_timeout:g} s"
            ) from None
        if not loaded:
            raise self._build_error(ErrorKind.SERVER, await child.describe_end("did not start"))

    async def _discard(self) -> None:
        child, self._process = self._process, None
        if child is not None:
            await child.stop()

    def _check_can_run(self) -> None:
        """Raises ApiError if the model cannot run here. Blocks."""
        if self._closed:
            raise self._build_error(ErrorKind.CONNECTION, SHUT_DOWN)
        if not is_installed(self._directory):
            raise self._build_error(
                ErrorKind.CONFIG, f"the local model is not installed; run {INSTALL_COMMAND} once"
            )
        if missing := find_missing_instructions(self._cpuinfo):
            raise self._build_error(
                ErrorKind.CONFIG,
                f"this processor lacks {' and '.join(missing)}, which the local model needs; "
                f"{ALTERNATIVE_HINT}",
            )

    def _create_provider(self, child: "LocalModelProcess") -> HttpProvider:
        dialect = LocalDialect(self._name, base=f"{child.address}/v1", api_key=child.key)
        # No retries: on loopback the request would fail again. The next one starts a new child.
        return HttpProvider(
            dialect, self._http, timeouts=TIMEOUTS, retry=RetryPolicy(max_retries=0)
        )

    async def _explain_error(self, child: "LocalModelProcess", error: ApiError) -> ApiError:
        """Replace errors by more helpful ones: for a lost connection, how the child ended; for a
        request that is too long, what to do."""
        if error.kind is ErrorKind.CONTEXT:
            return self._build_error(ErrorKind.CONTEXT, TOO_LONG)
        if error.kind is not ErrorKind.CONNECTION or not await child.is_gone():
            return error
        if self._closed:
            return self._build_error(ErrorKind.CONNECTION, SHUT_DOWN)
        return self._build_error(ErrorKind.SERVER, await child.describe_end("died"))

    def _build_error(self, kind: ErrorKind, sentence: str) -> ApiError:
        return ApiError(kind, sentence, provider=self._name)


class LocalDialect(OpenAiDialect):
    """OpenAI's dialect, without features that this model cannot use."""

    def build_body(self, request: Request) -> dict[str, Any]:
        body = super().build_body(strip_request(request))
        # Without the penalty it repeats emoji; with a higher temperature it loses the topic.
        body["repeat_penalty"] = 1.1
        body.setdefault("temperature", 0.2)
        return body

    def build_headers(self) -> dict[str, str]:
        # One connection per request: on loopback that is cheap, and the child drops idle ones.
        return {**super().build_headers(), "Connection": "close"}


def strip_request(request: Request) -> Request:
    """Keep only texts of messages: the model does not support tools, images or reasoning."""
    messages = []
    room = MAX_SYSTEM
    for message in request.messages:
        text = message.text
        if message.role == "system":
            text = truncate_at_word(text, room)
            room -= len(text)
        elif message.role == "tool":
            continue
        elif message.images and not text:
            text = "(an image, which you cannot see)"
        if text or message.role == "user":
            messages.append(Message(role=message.role, text=text))
    return msgspec.structs.replace(
        request, messages=tuple(messages), tools=(), tool_choice="auto", thinking=False
    )


def truncate_at_word(text: str, room: int) -> str:
    """Return the start of `text` up to the end of a word."""
    if len(text) <= room:
        return text
    start, space, _ = text[: max(room, 0)].rpartition(" ")
    return start if space else text[: max(room, 0)]


# ── The child ──────────────────────────────────────────────────────────────────────────────────


def limit_answer(request: Request) -> Request:
    return msgspec.structs.replace(request, max_tokens=request.max_tokens or DEFAULT_ANSWER_TOKENS)


class LocalModelProcess:
    """A running `server_process.py`. The caller of `spawn` must call `stop`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail = b""
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self.address = ""
        self.key = secrets.token_urlsafe(32)

    @classmethod
    async def spawn(cls) -> "LocalModelProcess":
        # By path and isolated (-I -S), so that modules in our folders do not shadow the standard
        # library. Its own session: Ctrl+C in a terminal is only for the daemon.
        program = Path(__file__).with_name("server_process.py")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(program)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=build_child_environment(("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")),
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def load(self, directory: Path) -> bool:
        """Load the model. Returns True when the child listens, False if it died."""
        options = {
            "runtime": str(directory / RUNTIME_PACKAGE.target),
            "weights": str(directory / WEIGHTS_PACKAGE.target),
            "context": CONTEXT_TOKENS * PARALLEL_REQUESTS,
            "slots": PARALLEL_REQUESTS,
            "threads": choose_thread_count(),
            "key": self.key,  # not an argument, since all users can list those
        }
        assert self._process.stdin is not None  # noqa: S101 - both were requested
        assert self._process.stdout is not None  # noqa: S101
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(options).encode() + b"\n")
            await self._process.stdin.drain()
        try:
            self.address = json.loads(await self._process.stdout.readline())["address"]
        except (ValueError, LookupError):
            return False
        return True

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    async def stop(self) -> None:
        """End the process. It has nothing to finish, so SIGKILL follows soon after SIGTERM."""
        self.terminate()
        if not await self.is_gone(STOP_TIMEOUT):
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._wait_for_stderr_end()

    async def is_gone(self, seconds: float = 2.0) -> bool:
        """Return whether the process ends in time. It may end a moment after its connections."""
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def describe_end(self, verb: str) -> str:
        """Describe how the process ended, with its last output."""
        if not await self.is_gone():
            return f"the local model {verb}: it closed its output"
        await self._wait_for_stderr_end()
        output = "; ".join(self._tail.decode(errors="replace").strip().splitlines()[-3:])
        return f"the local model {verb}: {describe_exit_status(self._process.returncode or 0)}" + (
            f" ({output})" if output else ""
        )

    async def _wait_for_stderr_end(self) -> None:
        """Wait for the end of stderr. asyncio.wait does not cancel the task: other callers may wait
        for it as well."""
        await asyncio.wait([self._stderr_task], timeout=STOP_TIMEOUT)

    async def _read_stderr(self) -> None:
        """Keep the end of stderr. Left unread, a full pipe would block the process."""
        assert self._process.stderr is not None  # noqa: S101
        while piece := await self._process.stderr.read(STDERR_TAIL_BYTES):
            self._tail = (self._tail + piece)[-STDERR_TAIL_BYTES:]


def describe_exit_status(status: int) -> str:
    """Describe an exit status in words."""
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGILL:
        return f"killed by {name}: this processor lacks an instruction it needs; {ALTERNATIVE_HINT}"
    return f"its process was killed by {name}"


def choose_thread_count() -> int:
    """Leave one core free: if all are busy, the model is ten times slower."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(MAX_THREADS, cores - 1))


def find_missing_instructions(cpuinfo: Path, machine: str = platform.machine()) -> list[str]:
    """Return the instructions the runtime needs and this processor lacks. Only known for Linux on
    x86_64."""
    if sys.platform != "linux" or machine not in ("x86_64", "AMD64"):
        return []
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return [name for name in CPU_INSTRUCTIONS if name not in flags.split()]
    return []
