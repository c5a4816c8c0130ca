"""The process of the local model: loads the runtime, serves on loopback, ends with its parent.

It is run by path and never imported by the daemon, because an unsupported instruction in the
runtime kills the whole process. It imports only the standard library. It reads one line of JSON
from stdin, writes one line of JSON with its address, and runs until stdin ends.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import threading
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> None:
    die_with_parent()
    # A core dump would contain people's messages.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line = sys.stdin.buffer.readline()
    if not line:
        return
    options = json.loads(line)
    answer = os.dup(1)
    os.dup2(2, 1)  # output of the runtime must not be read as the answer
    threading.Thread(target=exit_at_end_of_stdin, daemon=True).start()
    try:
        server = start_server(options)
    except Exception as error:  # any error: the parent reports it
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os.write(answer, json.dumps({"address": server.listening_address}).encode() + b"\n")
    os.close(answer)
    threading.Event().wait()


def die_with_parent() -> None:
    """Have Linux kill us with the parent, even while the runtime blocks Python."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def exit_at_end_of_stdin() -> None:
    """Exit when the parent closes stdin or ends. Nothing more is written to stdin."""
    sys.stdin.buffer.read()
    os._exit(0)


def start_server(options: dict[str, Any]) -> Any:
    sys.path.insert(0, options["runtime"])
    runtime: Any = importlib.import_module("xllamacpp")
    params = runtime.CommonParams()
    params.model.path = options["weights"]
    params.n_ctx = options["context"]
    params.n_parallel = options["slots"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [options["key"]]
    params.cors_origins = ""  # web pages must not use it
    params.ui = False
    params.endpoint_slots = False  # would show prompts of other requests
    params.offline = True
    params.cache_ram_mib = 64  # of old prompts; the default is 8 GB
    params.verbosity = 1  # errors only; the parent keeps the last lines
    return runtime.Server(params)


if __name__ == "__main__":
    main()
