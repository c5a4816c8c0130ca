"""crabup pull, rm, update, list: the commands installers get, and pip in a real environment."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CrabupMachine
from crabup import installers
from crabup.errors import CrabupError

UV_LIST = """\
if [ "$2" = list ]; then
  echo "crabtalk v0.1.0"
  echo "- crabtalkd"
  echo "crabtalk-search v0.2.0 (extra)"
  echo "- crabtalk-search"
  echo "black v25.1.0"
  echo "- black"
fi
"""
PIPX_LIST = "[ $1 = list ] && printf 'crabtalk-cron 0.3.0\\n'; exit 0"


def make_wheel(directory: Path, version: str, name: str = "crabtalk_dice", needs: str = "") -> Path:
    """A distribution with one program, as in an index."""
    path = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"def main():\n    print('dice {version}')\n")
        file.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            + (f"Requires-Dist: {needs}\n" if needs else ""),
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", f"[console_scripts]\ndice = {name}:main\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.req("crabup.pull")
def test_uv_is_asked_first(machine: CrabupMachine) -> None:
    machine.add_stub("uv")
    machine.add_stub("pipx")
    assert machine.run_crabup("pull", "daemon").notice == "crabtalk is installed, by uv"
    machine.run_crabup("pull", "search", "--version", "0.2.0")
    machine.run_crabup("pull", "some-gateway")
    assert machine.list_calls == [
        "uv tool install crabtalk",
        "uv tool install crabtalk-search==0.2.0",
        "uv tool install some-gateway",
    ]


@pytest.mark.req("crabup.pull.from")
def test_a_distribution_can_be_installed_from_a_path_or_a_url(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    machine.add_stub("uv")
    source = tmp_path / "my apps & $more"
    source.mkdir()
    machine.run_crabup("pull", "search", "--from", source)
    machine.run_crabup("pull", "search", "--from", "git+https://example.org/search.git")
    start = "uv tool install --reinstall-package crabtalk-search --from"
    assert machine.list_calls == [
        f"{start} {source} crabtalk-search",
        f"{start} git+https://example.org/search.git crabtalk-search",
    ]


@pytest.mark.req("crabup.pull.from")
def test_dependencies_can_be_installed_from_extra_sources(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    words = ("pull", "search", "--from", tmp_path, "--with", tmp_path, "--with", "https://x/y.whl")
    machine.add_stub("pipx")
    machine.run_crabup(*words)
    machine.add_stub("uv")
    machine.run_crabup(*words)
    start = f"uv tool install --with {tmp_path} --with https://x/y.whl"
    assert machine.list_calls == [
        f"pipx install --force --preinstall {tmp_path} --preinstall https://x/y.whl {tmp_path}",
        f"{start} --reinstall-package crabtalk-search --from {tmp_path} crabtalk-search",
    ]
    assert (
        "there is no /nowhere"
        in machine.run_crabup(*("pull", "search", "--with", "/nowhere")).error
    )


@pytest.mark.slow
@pytest.mark.req("crabup.pull.from")
@pytest.mark.req("crabup.pull.pip")
def test_pip_installs_extra_sources_and_updates_from_them(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    needed = make_wheel(tmp_path, "1.0", "crabtalk_sides")
    program = make_wheel(tmp_path, "1.0", needs="crabtalk-sides")
    alone = machine.run_crabup("pull", "crabtalk-dice", "--from", program, PIP_NO_INDEX="1")
    assert alone.code == 1
    words = ("pull", "crabtalk-dice", "--from", program, "--with", needed)
    assert machine.run_crabup(*words, PIP_NO_INDEX="1").code == 0
    assert machine.run_crabup("update", PIP_NO_INDEX="1").code == 0
    program.unlink()
    outcome = machine.run_crabup("update", PIP_NO_INDEX="1")
    assert outcome.code == 1
    assert str(program) in outcome.err


@pytest.mark.req("crabup.pull")
def test_pipx_is_asked_where_there_is_no_uv(machine: CrabupMachine) -> None:
    machine.add_stub("pipx", PIPX_LIST)
    assert machine.run_crabup("pull", "cron").notice == "crabtalk-cron is installed, by pipx"
    machine.run_crabup("rm", "cron")
    machine.run_crabup("update")
    changes = [line for line in machine.list_calls if " list" not in line]
    assert changes == [
        "pipx install --force crabtalk-cron",
        "pipx uninstall crabtalk-cron",
        "pipx upgrade crabtalk-cron",
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("crabup.pull.pip")
def test_without_either_pip_installs_into_an_environment_of_its_own(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    old, new = make_wheel(tmp_path, "1.0"), make_wheel(tmp_path, "2.0")
    machine.timeout = 120
    outcome = machine.run_crabup("pull", "crabtalk-dice", "--from", old, PIP_NO_INDEX="1")
    assert outcome.code == 0, outcome.err
    assert f"programs are in {machine.home / 'bin'}; add it to your PATH" in outcome.err
    assert outcome.out == ""
    program = machine.home / "bin" / "dice"
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"dice 1.0\n"
    machine.run_crabup("pull", "crabtalk-dice", "--from", new, PIP_NO_INDEX="1")
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"dice 2.0\n"
    rows = json.loads(machine.run_crabup("list", "--json").output)["programs"]
    assert rows[-1]["name"] == "crabtalk-dice"
    assert (rows[-1]["version"], rows[-1]["installed_by"]) == ("2.0", "pip")
    assert machine.run_crabup("rm", "crabtalk-dice").notice == "crabtalk-dice is removed"
    assert list(machine.home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.req("crabup.pull.pip")
def test_a_failed_pip_install_leaves_nothing_behind(machine: CrabupMachine, tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_text("no wheel")
    outcome = machine.run_crabup(
        "pull", "crabtalk-dice", "--from", tmp_path / "broken.whl", PIP_NO_INDEX="1"
    )
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("crabup: python ended with status 1")
    assert not (machine.home / "programs" / "crabtalk-dice").exists()
    other_wheel = make_wheel(tmp_path, "1.0", "crabtalk_cards")
    outcome = machine.run_crabup("pull", "crabtalk-dice", "--from", other_wheel, PIP_NO_INDEX="1")
    assert outcome.err.splitlines()[-1] == (
        "crabup: what was installed is not crabtalk-dice; name what it is"
    )
    assert not (machine.home / "programs" / "crabtalk-dice").exists()


@pytest.mark.req("crabup.pull.none")
def test_without_any_installer_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process, whose Python has a venv module like any other."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installers, "find_spec", lambda _: None)
    with pytest.raises(CrabupError, match=r"no way to install programs.*install uv$"):
        installers.choose_installer(tmp_path)


@pytest.mark.req("crabup.pull")
def test_an_installers_output_is_shown_and_its_failure_reported(machine: CrabupMachine) -> None:
    machine.add_stub("uv", "echo to stdout; echo to stderr >&2; exit 3")
    outcome = machine.run_crabup("pull", "daemon")
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err == "to stdout\nto stderr\ncrabup: uv ended with status 3; it says why above\n"
    )


@pytest.mark.req("crabup.rm")
def test_rm_uses_the_installer_that_has_the_program(machine: CrabupMachine) -> None:
    machine.add_stub("uv", UV_LIST)
    machine.add_stub("pipx", PIPX_LIST)
    assert machine.run_crabup("rm", "search").notice == "crabtalk-search is removed"
    assert machine.run_crabup("rm", "cron").notice == "crabtalk-cron is removed"
    assert "uv tool uninstall crabtalk-search" in machine.list_calls
    assert "pipx uninstall crabtalk-cron" in machine.list_calls
    assert machine.run_crabup("rm", "telegram").error == (
        "crabtalk-telegram is not installed; `crabup list` says what is"
    )


@pytest.mark.req("crabup.rm")
def test_a_program_that_was_installed_by_other_means_is_not_removed(machine: CrabupMachine) -> None:
    program = machine.add_program("crabtalk-search", "exit 0")
    assert machine.run_crabup("rm", "search").error == (
        f"crabtalk-search was installed by other means ({program}); remove it by the same, such as "
        "`pip uninstall crabtalk-search` in its environment"
    )
    assert program.exists()


@pytest.mark.req("crabup.rm")
def test_a_program_whose_service_runs_is_not_removed(machine: CrabupMachine) -> None:
    machine.add_stub("uv", UV_LIST)
    machine.add_component("search")
    machine.run_crabup("search", "start")
    assert machine.run_crabup("rm", "search").error.endswith("`crabup search stop` first")
    assert not any("uninstall" in line for line in machine.list_calls)


@pytest.mark.req("crabup.update")
def test_update_upgrades_all_of_our_programs_and_no_other(machine: CrabupMachine) -> None:
    machine.add_stub("uv", UV_LIST)
    machine.add_stub("pipx", PIPX_LIST)
    assert machine.run_crabup("update").notice == "everything is as new as it gets"
    assert "uv tool upgrade crabtalk crabtalk-search" in machine.list_calls
    assert "pipx upgrade crabtalk-cron" in machine.list_calls


@pytest.mark.req("crabup.update")
def test_update_says_what_is_new(machine: CrabupMachine) -> None:
    mark = machine.bin.parent / "upgraded"
    newer = UV_LIST.replace("v0.1.0", f"v$(cat '{mark}' 2>/dev/null || echo 0.1.0)")
    machine.add_stub("uv", f"[ $2 = upgrade ] && echo 0.9 > '{mark}'\n{newer}")
    assert machine.run_crabup("update").notice.splitlines() == [
        "crabtalk is now 0.9",
        "`crabup NAME restart` lets a service use it",
    ]


@pytest.mark.req("crabup.update")
def test_with_nothing_installed_update_says_how_to_begin(machine: CrabupMachine) -> None:
    assert machine.run_crabup("update").error.endswith("`crabup pull daemon` begins")


@pytest.mark.req("crabup.list")
def test_list_has_every_program_and_how_it_got_here(machine: CrabupMachine) -> None:
    machine.add_stub("uv", UV_LIST)
    programs = json.loads(machine.run_crabup("list", "--json").output)["programs"]
    rows = {row["name"]: row for row in programs}
    assert list(rows) == ["daemon", "tui", "search", "cron", "telegram", "wechat", "web"]
    assert rows["daemon"] == {
        "name": "daemon",
        "program": "crabtalkd",
        "version": "0.1.0",
        "installed_by": "uv",
        "description": "The agent daemon",
    }
    assert rows["web"]["installed_by"] is None
    head, daemon, *_ = machine.run_crabup("list").output.splitlines()
    assert head.split() == ["NAME", "PROGRAM", "VERSION", "BY", "WHAT", "IT", "IS"]
    assert daemon.split()[:4] == ["daemon", "crabtalkd", "0.1.0", "uv"]
    machine.add_program("crabtalk-cron", "exit 0")
    row = json.loads(machine.run_crabup("list", "--json").output)["programs"][3]
    assert (row["version"], row["installed_by"]) == (None, "other means")


@pytest.mark.req("crabup.pull")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("pull", "--", "--index-url=x"), 1),
        (("pull", "a b"), 1),
        (("pull", "daemon", "--from", "/no/such/place"), 1),
        (("pull", "daemon", "--from=-r"), 1),
        (("pull", "daemon", "--version", "1 --pre"), 1),
        (("pull", "daemon", "--version", "1", "--from", "."), 2),
        (("pull",), 2),
    ],
)
def test_no_argument_becomes_an_option_of_an_installer(
    machine: CrabupMachine, words: tuple[str, ...], code: int
) -> None:
    machine.add_stub("uv")
    outcome = machine.run_crabup(*words)
    assert (outcome.code, outcome.out) == (code, "")
    assert machine.list_calls == []


def test_an_installer_does_not_see_crabups_own_environment(
    machine: CrabupMachine,
) -> None:
    machine.add_stub("uv", 'echo "[$VIRTUAL_ENV$PYTHONPATH]"')
    outcome = machine.run_crabup("pull", "daemon", VIRTUAL_ENV=sys.prefix)
    assert outcome.err.startswith("[]\n")
