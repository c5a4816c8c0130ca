"""The local model's process: loads the runtime, serves on loopback, dies with its parent.

A program of its own, run by path and never imported by the daemon: a wrong instruction in the
runtime kills the process it is in. It knows the standard library and what it is told on stdin: one
line of JSON. It answers with one line of JSON, the address, and lives until stdin ends.
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
    # Were it to crash, the image would hold what people wrote.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line = sys.stdin.buffer.readline()
    if not line:
        return
    told = json.loads(line)
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever the runtime prints must not be taken for the answer
    threading.Thread(target=exit_at_end_of_stdin, daemon=True).start()
    try:
        server = start_server(told)
    except Exception as error:  # whatever it is, the parent says it
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os.write(answer, json.dumps({"address": server.listening_address}).encode() + b"\n")
    os.close(answer)
    threading.Event().wait()


def die_with_parent() -> None:
    """Linux kills us with the parent, even while the runtime keeps Python from running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def exit_at_end_of_stdin() -> None:
    """Nothing more is ever written there: it ends when the parent closes it, or is no more."""
    sys.stdin.buffer.read()
    os._exit(0)


def start_server(told: dict[str, Any]) -> Any:
    sys.path.insert(0, told["runtime"])
    runtime: Any = importlib.import_module("xllamacpp")
    params = runtime.CommonParams()
    params.model.path = told["weights"]
    params.n_ctx = told["context"]
    params.n_parallel = told["slots"]
    params.cpuparams.n_threads = told["threads"]
    params.cpuparams_batch.n_threads = told["threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [told["key"]]
    params.cors_origins = ""  # no web page has business here
    params.ui = False
    params.endpoint_slots = False  # would show what others asked
    params.offline = True
    params.cache_ram_mib = 64  # of old prompts; 8 GB unless told
    params.verbosity = 1  # errors, which the parent keeps the last of
    return runtime.Server(params)


if __name__ == "__main__":
    main()
