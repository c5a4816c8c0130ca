"""crabup pkg: packages are added from a registry, and removed without a trace."""

import json
import os
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CrabupMachine, CrabupOutcome
from crabup.repositories import compute_checksum

MANIFEST = """\
[package]
name = "notes"
description = "Notes, kept in order"
repository = "{repository}"
keywords = ["notes"]

[mcps.files]
command = "files-mcp"
args = ["--root", "a b"]
env = {{ TOKEN = "x" }}

[mcps.web]
url = "https://example.org/mcp"

[agents.scribe]
description = "Writes"
skills = ["tidy"]
mcps = ["files"]

[agents.clerk]
prompt = '''
Files things.
"Quotes" and \\\\ backslashes.
'''
thinking = true
model = "small"
mcps = [{{ name = "own", command = "own-mcp" }}]
"""
SKILL = "---\nname: tidy\ndescription: tidies\n---\nTidy up.\n"


def run_git(*words: str | Path, at: Path) -> None:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *name, *words], cwd=at, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package's repository: prompts, skills, and files that are not installed."""
    path = tmp_path / "repository"
    for name, text in {
        "agents/scribe.md": "---\nname: scribe\n---\n\nYou write.\n",
        "skills/tidy/SKILL.md": SKILL,
        "skills/tidy/scripts/run.sh": "#!/bin/sh\n",
        "README.md": "Notes",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    (path / "skills/tidy/scripts/run.sh").chmod(0o755)
    run_git("init", "-q", "-b", "main", at=path)
    run_git("add", ".", at=path)
    run_git("commit", "-qm", "one", at=path)
    return path


@pytest.fixture
def registry(tmp_path: Path, repository: Path) -> Path:
    path = tmp_path / "registry"
    path.mkdir()
    (path / "notes.toml").write_text(MANIFEST.format(repository=f"file://{repository}"))
    return path


def add_package(
    machine: CrabupMachine, *words: str | Path, name: str = "notes", **options: str
) -> CrabupOutcome:
    return machine.run_crabup("pkg", "add", name, *words, **options)


def read_tree(home: Path) -> dict[str, tuple[int, bytes]]:
    """All files in a directory: modes and contents."""
    tree = {}
    for path in sorted(home.rglob("*")):
        data = b"" if path.is_dir() else path.read_bytes()
        tree[str(path.relative_to(home))] = stat.S_IMODE(path.lstat().st_mode), data
    return tree


@pytest.fixture
def used_machine(machine: CrabupMachine) -> CrabupMachine:
    """A machine whose home is in use."""
    for name, text in {
        "config.toml": "# mine\n",
        "agents/crab.toml": '# by hand\nprompt = "You are crab."\n',
        "skills/own/SKILL.md": SKILL.replace("tidy", "own"),
    }.items():
        (machine.home / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.home / name).write_text(text)
    return machine


@pytest.mark.req("crabup.pkg.add")
def test_the_content_of_a_package_is_installed_where_the_daemon_finds_it(
    machine: CrabupMachine, registry: Path
) -> None:
    notice = add_package(machine, "--registry", registry, "-y").notice
    home = machine.home
    assert tomllib.loads((home / "agents" / "scribe.toml").read_text()) == {
        "description": "Writes",
        "prompt": "You write.\n",
        "skills": ["tidy"],
        "mcps": [
            {
                "name": "files",
                "command": "files-mcp",
                "args": ["--root", "a b"],
                "env": {"TOKEN": "x"},
            }
        ],
    }
    assert tomllib.loads((home / "agents" / "clerk.toml").read_text()) == {
        "prompt": 'Files things.\n"Quotes" and \\\\ backslashes.\n',
        "thinking": True,
        "model": "small",
        "mcps": [{"name": "own", "command": "own-mcp"}],
    }
    skill = home / "skills" / "notes" / "tidy"
    assert (skill / "SKILL.md").read_text() == SKILL
    assert os.access(skill / "scripts" / "run.sh", os.X_OK)
    assert not list(home.rglob("README.md"))
    assert (home / "packages" / "notes.toml").read_bytes() == (registry / "notes.toml").read_bytes()
    for path in (home / "agents").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for expected in (
        "agent scribe",
        "skill tidy",
        "TOKEN=x files-mcp --root 'a b'",
        "own: own-mcp",
        "without a checksum",
    ):
        assert expected in notice


@pytest.mark.req("crabup.pkg.mcps")
def test_unclaimed_servers_go_to_agents_without_a_list_of_servers(
    machine: CrabupMachine, registry: Path
) -> None:
    path = registry / "notes.toml"
    path.write_text(path.read_text().replace('mcps = ["files"]\n', ""))
    assert add_package(machine, "--registry", registry, "-y").code == 0
    scribe = tomllib.loads((machine.home / "agents" / "scribe.toml").read_text())
    clerk = tomllib.loads((machine.home / "agents" / "clerk.toml").read_text())
    assert [server["name"] for server in scribe["mcps"]] == ["files", "web"]
    assert [server["name"] for server in clerk["mcps"]] == ["own"]


@pytest.mark.req("crabup.pkg.daemon")
def test_the_daemon_reads_the_agents_and_skills(machine: CrabupMachine, registry: Path) -> None:
    """With the daemon's own parsers of these files."""
    from crabtalk.hooks.skill_files import SkillFiles
    from crabtalk.storage.agent_files import AgentFiles

    add_package(machine, "--registry", registry, "-y")
    agents, broken = AgentFiles(machine.home / "agents").list()
    assert broken == {}
    assert [agent.name for agent in agents] == ["clerk", "scribe"]
    assert agents[1].mcps[0].env == {"TOKEN": "x"}
    skills = SkillFiles([("local", machine.home / "skills")])
    assert skills.scan() == []
    assert list(skills.skills) == ["tidy"]


@pytest.mark.req("crabup.pkg.remove")
@pytest.mark.parametrize("kind", ["directory", "git"])
def test_adding_and_removing_a_package_leaves_the_home_unchanged(
    used_machine: CrabupMachine, registry: Path, kind: str
) -> None:
    if kind == "git":
        run_git("init", "-q", at=registry)
        run_git("add", ".", at=registry)
        run_git("commit", "-qm", "one", at=registry)
    location = f"file://{registry}" if kind == "git" else str(registry)
    before = read_tree(used_machine.home)
    assert add_package(used_machine, "--registry", location, "-y").code == 0
    assert read_tree(used_machine.home) != before
    assert used_machine.run_crabup("pkg", "remove", "notes").notice == "notes is removed"
    assert read_tree(used_machine.home) == before


@pytest.mark.req("crabup.pkg.remove")
def test_an_empty_home_is_empty_again_after_a_removal(
    machine: CrabupMachine, registry: Path
) -> None:
    add_package(machine, "--registry", registry, "-y")
    machine.run_crabup("pkg", "remove", "notes")
    assert read_tree(machine.home) == {}


@pytest.mark.req("crabup.pkg.remove")
def test_edited_files_stay_and_are_named(machine: CrabupMachine, registry: Path) -> None:
    add_package(machine, "--registry", registry, "-y")
    edited_file = machine.home / "agents" / "scribe.toml"
    edited_file.write_text(edited_file.read_text() + "# better\n")
    (machine.home / "skills" / "notes" / "tidy" / "extra.md").write_text("mine")
    (machine.home / "agents" / "clerk.toml").unlink()
    lines = machine.run_crabup("pkg", "remove", "notes").notice.splitlines()
    assert lines == [f"{edited_file} was edited since, and stays", "notes is removed"]
    assert sorted(name for name, (_, data) in read_tree(machine.home).items() if data) == [
        "agents/scribe.toml",
        "skills/notes/tidy/extra.md",
    ]


@pytest.mark.req("crabup.pkg.mcps")
def test_a_package_of_servers_gives_them_to_an_agent_and_takes_them_back(
    used_machine: CrabupMachine, tmp_path: Path
) -> None:
    path = tmp_path / "hub.toml"
    path.write_text('[package]\nname = "hub"\n[mcps.hub]\ncommand = "hub-mcp"\n')
    before = read_tree(used_machine.home)
    where = ("--registry", tmp_path)
    assert "say --agent NAME" in add_package(used_machine, *where, "-y", name="hub").error
    assert (
        "no agent owl"
        in add_package(used_machine, *where, "-y", "--agent", "owl", name="hub").error
    )
    assert read_tree(used_machine.home) == before
    assert add_package(used_machine, *where, "-y", "--agent", "crab", name="hub").code == 0
    text = (used_machine.home / "agents" / "crab.toml").read_text()
    assert text.startswith('# by hand\nprompt = "You are crab."\n')
    assert tomllib.loads(text)["mcps"] == [{"name": "hub", "command": "hub-mcp"}]
    used_machine.run_crabup("pkg", "remove", "hub")
    assert read_tree(used_machine.home) == before


@pytest.mark.req("crabup.pkg.mcps")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('prompt = "x"\nmcps = [{ name = "a", command = "b" }]', "in a list"),
        ('prompt = "x"\n[[mcps]]\nname = "hub"\ncommand = "mine"', "of that name already"),
        ("prompt = ", "not valid TOML"),
    ],
)
def test_servers_are_not_forced_into_a_file_they_do_not_fit(
    used_machine: CrabupMachine, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "hub.toml").write_text('[package]\nname = "hub"\n[mcps.hub]\ncommand = "x"\n')
    (used_machine.home / "agents" / "crab.toml").write_text(text)
    before = read_tree(used_machine.home)
    where = ("--registry", tmp_path, "--agent", "crab", "-y")
    assert reason in add_package(used_machine, *where, name="hub").error
    assert read_tree(used_machine.home) == before


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize("agent", ["../config", "/etc/x", "a/b", ".."])
def test_servers_can_only_be_given_to_an_agent(
    used_machine: CrabupMachine, tmp_path: Path, agent: str
) -> None:
    (tmp_path / "hub.toml").write_text('[package]\nname = "hub"\n[mcps.hub]\ncommand = "x"\n')
    before = read_tree(used_machine.home)
    where = ("--registry", tmp_path, "--agent", agent, "-y")
    assert "no agent is called" in add_package(used_machine, *where, name="hub").error
    assert read_tree(used_machine.home) == before


@pytest.mark.req("crabup.pkg.mcps")
def test_an_agent_whose_file_is_a_link_keeps_it(
    used_machine: CrabupMachine, tmp_path: Path
) -> None:
    (tmp_path / "hub.toml").write_text('[package]\nname = "hub"\n[mcps.hub]\ncommand = "x"\n')
    path = used_machine.home / "agents" / "crab.toml"
    path.rename(tmp_path / "kept-elsewhere.toml")
    path.symlink_to(tmp_path / "kept-elsewhere.toml")
    before = path.read_bytes()
    assert (
        add_package(used_machine, "--registry", tmp_path, "--agent", "crab", "-y", name="hub").code
        == 0
    )
    assert path.is_symlink()
    assert path.read_bytes() != before
    used_machine.run_crabup("pkg", "remove", "hub")
    assert path.is_symlink()
    assert path.read_bytes() == before


@pytest.mark.req("crabup.pkg.mcps")
def test_servers_that_were_edited_since_stay(used_machine: CrabupMachine, tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text('[package]\nname = "hub"\n[mcps.hub]\ncommand = "x"\n')
    add_package(used_machine, "--registry", tmp_path, "--agent", "crab", "-y", name="hub")
    path = used_machine.home / "agents" / "crab.toml"
    path.write_text(path.read_text().replace('"x"', '"y"'))
    notice = used_machine.run_crabup("pkg", "remove", "hub").notice
    assert f"{path} was edited since, and stays" in notice
    assert 'command = "y"' in path.read_text()


@pytest.mark.req("crabup.pkg.path")
def test_a_package_is_added_from_its_own_directory(
    machine: CrabupMachine, repository: Path
) -> None:
    manifest = MANIFEST.format(repository="https://example.org/notes.git")
    (repository / "notes.toml").write_text(manifest)
    assert add_package(machine, "--path", repository, "-y").code == 0
    assert (machine.home / "agents" / "scribe.toml").exists()


@pytest.mark.req("crabup.pkg.branch")
def test_a_branch_is_that_of_the_package_not_of_the_registry(
    machine: CrabupMachine, registry: Path, repository: Path
) -> None:
    run_git("checkout", "-qb", "next", at=repository)
    (repository / "agents" / "scribe.md").write_text("You write better.\n")
    run_git("commit", "-qam", "two", at=repository)
    run_git("checkout", "-q", "main", at=repository)
    add_package(machine, "--registry", registry, "-y")
    assert "You write.\n" in (machine.home / "agents" / "scribe.toml").read_text()
    machine.run_crabup("pkg", "remove", "notes")
    add_package(machine, "--registry", registry, "--branch", "next", "-y")
    assert "You write better.\n" in (machine.home / "agents" / "scribe.toml").read_text()
    outcome = add_package(machine, "--registry", registry, "--branch", "none", "-y", name="notes")
    assert outcome.code == 1


@pytest.mark.req("crabup.pkg.registry")
def test_the_registry_comes_from_an_option_the_environment_or_a_file(
    machine: CrabupMachine, registry: Path
) -> None:
    assert "say where packages are" in add_package(machine, "-y").error
    assert add_package(machine, "-y", CRABUP_REGISTRY=str(registry)).code == 0
    machine.run_crabup("pkg", "remove", "notes")
    config = machine.home / "config" / "crabup.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'registry = "{registry}"\n')
    assert add_package(machine, "-y").code == 0


@pytest.mark.req("crabup.pkg.registry")
def test_missing_packages_and_registries_are_reported(
    machine: CrabupMachine, registry: Path
) -> None:
    assert (
        "there is no package nope"
        in add_package(machine, "--registry", registry, name="nope").error
    )
    assert "no directory" in add_package(machine, "--registry", "/no/such/place").error
    assert (
        "cannot get file:///no/such" in add_package(machine, "--registry", "file:///no/such").error
    )
    assert machine.run_crabup("pkg", "remove", "nope").error.endswith("has the names")


@pytest.mark.req("crabup.pkg.git")
def test_git_clones_one_commit_without_hooks_or_unusual_transports(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    machine.add_stub("git", 'echo "protocols $GIT_ALLOW_PROTOCOL" >&2; exit 1')
    outcome = add_package(machine, "--registry", "https://example.org/registry.git")
    assert outcome.error.endswith("protocols https:ssh; check the address")
    (git_call,) = machine.list_calls
    for option in ("--depth=1", "core.hooksPath=/dev/null", "--no-recurse-submodules"):
        assert option in git_call
    assert " -- https://example.org/registry.git " in git_call


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("crabup.pkg.ask")
def test_without_a_terminal_the_yes_option_is_required(
    machine: CrabupMachine, registry: Path
) -> None:
    outcome = add_package(machine, "--registry", registry, typed="y\n")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].endswith("without a terminal to ask on, say --yes")
    assert read_tree(machine.home) == {}


@pytest.mark.req("crabup.pkg.ask")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x03", 130)])
def test_on_a_terminal_it_asks_and_follows_the_answer(
    machine: CrabupMachine, registry: Path, answer: str, code: int
) -> None:
    words = ("pkg", "add", "notes", "--registry", registry)
    status, screen = machine.run_at_terminal(*words, typed=answer, when="Add notes? [y/N]")
    assert status == code, screen
    assert "agent scribe" in screen.partition("[y/N]")[0]
    assert (machine.home / "agents").exists() == (code == 0)


SCRIPT = '#!/bin/bash\necho "ran in $PWD for $CRABTALK_PACKAGE" > "$CRABTALK_HOME/ran"\n'


@pytest.fixture
def registry_with_setup(registry: Path, repository: Path) -> Path:
    """The registry, whose package now has a setup script."""
    (repository / "setup.sh").write_text(SCRIPT)
    run_git("add", ".", at=repository)
    run_git("commit", "-qm", "setup", at=repository)
    text = (registry / "notes.toml").read_text()
    (registry / "notes.toml").write_text(
        text.replace("\n\n[mcps.files]", '\nsetup = { script = "setup.sh" }\n\n[mcps.files]')
    )
    return registry


@pytest.mark.req("crabup.pkg.setup")
@pytest.mark.parametrize("words", [(), ("-y",)])
def test_a_script_never_runs_without_consent(
    machine: CrabupMachine, registry_with_setup: Path, words: tuple[str, ...]
) -> None:
    outcome = add_package(machine, "--registry", registry_with_setup, *words, typed="y\n")
    assert outcome.code == 1
    assert "--yes-run-setup" in outcome.err
    assert SCRIPT.splitlines()[1] in outcome.err
    assert read_tree(machine.home) == {}


@pytest.mark.req("crabup.pkg.setup")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_a_script_is_shown_before_the_question(
    machine: CrabupMachine, registry_with_setup: Path, answer: str, code: int
) -> None:
    words = ("pkg", "add", "notes", "--registry", registry_with_setup, "-y")
    question = "Add notes, and run that? [y/N]"
    status, screen = machine.run_at_terminal(*words, typed=answer, when=question)
    assert status == code, screen
    assert SCRIPT.splitlines()[1] in screen.partition(question)[0]
    assert (machine.home / "ran").exists() == (code == 0)


@pytest.mark.req("crabup.pkg.setup")
def test_a_script_runs_in_a_copy_of_the_repository_that_goes_with_the_package(
    machine: CrabupMachine, registry_with_setup: Path
) -> None:
    options = ("--registry", registry_with_setup, "-y", "--yes-run-setup")
    assert add_package(machine, *options).code == 0
    (copy,) = (machine.home / ".cache" / "repos").iterdir()
    assert (machine.home / "ran").read_text() == f"ran in {copy} for notes\n"
    (machine.home / "ran").unlink()
    machine.run_crabup("pkg", "remove", "notes")
    assert read_tree(machine.home) == {}


@pytest.mark.req("crabup.pkg.shared")
def test_a_repository_that_another_package_uses_stays(
    machine: CrabupMachine, registry_with_setup: Path
) -> None:
    text = (registry_with_setup / "notes.toml").read_text().replace('"notes"', '"more"', 1)
    other_text = text.replace("agents.scribe", "agents.other").replace(
        "agents.clerk", "agents.last"
    )
    (registry_with_setup / "more.toml").write_text(
        other_text.replace('skills = ["tidy"]', 'prompt = "You are other."')
    )
    options = ("--registry", registry_with_setup, "-y", "--yes-run-setup")
    assert add_package(machine, *options).code == 0
    assert add_package(machine, *options, name="more").code == 0
    repositories = machine.home / ".cache" / "repos"
    machine.run_crabup("pkg", "remove", "notes")
    assert len(list(repositories.iterdir())) == 1
    machine.run_crabup("pkg", "remove", "more")
    assert not repositories.exists() or not list(repositories.iterdir())


@pytest.mark.req("crabup.pkg.whole")
def test_a_script_that_fails_leaves_nothing_of_the_package(
    machine: CrabupMachine, registry_with_setup: Path
) -> None:
    path = registry_with_setup / "notes.toml"
    path.write_text(path.read_text().replace('"setup.sh"', '"echo no >&2; exit 5"'))
    outcome = add_package(machine, "--registry", registry_with_setup, "-y", "--yes-run-setup")
    assert "ended with status 5" in outcome.err.splitlines()[-1]
    assert read_tree(machine.home) == {}


# ── Commands, checksums, lists ──────────────────────────────────────────────────────────────────


@pytest.mark.req("crabup.pkg.commands")
def test_commands_are_pulled_and_removed_unless_they_were_here(
    machine: CrabupMachine, registry: Path
) -> None:
    have = machine.bin.parent / "have"
    have.write_text("here-already v1\n")
    machine.add_stub(
        "uv",
        f'case "$2" in list) cat "{have}";; install) echo "$3 v1" >> "{have}";; esac',
    )
    with (registry / "notes.toml").open("a") as file:
        file.write(
            '[commands.a]\ncrate = "note-tool"\n[commands.b]\ndistribution = "here-already"\n'
        )
    assert add_package(machine, "--registry", registry, "-y").code == 0
    assert "uv tool install note-tool" in machine.list_calls
    assert "uv tool install here-already" not in machine.list_calls
    machine.run_crabup("pkg", "remove", "notes")
    assert "uv tool uninstall note-tool" in machine.list_calls
    assert "uv tool uninstall here-already" not in machine.list_calls


@pytest.mark.req("crabup.pkg.whole")
def test_a_command_that_cannot_be_pulled_leaves_nothing_of_the_package(
    machine: CrabupMachine, registry: Path
) -> None:
    machine.add_stub("uv", '[ "$2" = install ] && exit 1; exit 0')
    with (registry / "notes.toml").open("a") as file:
        file.write('[commands.a]\ncrate = "note-tool"\n')
    assert add_package(machine, "--registry", registry, "-y").code == 1
    assert read_tree(machine.home) == {}


@pytest.mark.req("crabup.pkg.checksum")
def test_a_checksum_is_checked_against_the_fetched_files(
    machine: CrabupMachine, registry: Path, repository: Path
) -> None:
    path = registry / "notes.toml"
    text = path.read_text()
    path.write_text(
        text.replace("keywords", f'checksum = "{compute_checksum(repository, "")}"\nkeywords')
    )
    assert "checked" in add_package(machine, "--registry", registry, "-y").notice
    machine.run_crabup("pkg", "remove", "notes")
    (repository / "skills" / "tidy" / "scripts" / "run.sh").write_text("#!/bin/sh\nevil\n")
    run_git("commit", "-qam", "two", at=repository)
    error = add_package(machine, "--registry", registry, "-y").error
    assert "is not what its manifest speaks of" in error
    assert compute_checksum(repository, "") in error
    assert read_tree(machine.home) == {}


@pytest.mark.req("crabup.pkg.checksum")
def test_a_manifest_may_lie_in_the_repository_whose_checksum_it_holds(
    machine: CrabupMachine, repository: Path
) -> None:
    text = MANIFEST.format(repository="")
    (repository / "notes.toml").write_text(
        text.replace(
            "keywords", f'checksum = "{compute_checksum(repository, "notes.toml")}"\nkeywords'
        )
    )
    assert add_package(machine, "--path", repository, "-y").code == 0


@pytest.mark.req("crabup.pkg.checksum")
def test_a_checksum_sees_names_contents_modes_and_links(repository: Path) -> None:
    checksums = {compute_checksum(repository, "")}
    script = repository / "skills" / "tidy" / "scripts" / "run.sh"
    script.chmod(0o644)
    checksums.add(compute_checksum(repository, ""))
    script.rename(script.with_name("go.sh"))
    checksums.add(compute_checksum(repository, ""))
    script.symlink_to("go.sh")
    checksums.add(compute_checksum(repository, ""))
    script.unlink()
    script.symlink_to("/etc/passwd")
    checksums.add(compute_checksum(repository, ""))
    assert len(checksums) == 5
    run_git("gc", "-q", at=repository)
    assert compute_checksum(repository, "") in checksums


@pytest.mark.req("crabup.pkg.list")
def test_list_shows_the_content_of_each_package(machine: CrabupMachine, registry: Path) -> None:
    assert machine.run_crabup("pkg", "list").notice.startswith("there are no packages")
    add_package(machine, "--registry", registry, "-y")
    (row,) = json.loads(machine.run_crabup("pkg", "list", "--json").output)["packages"]
    assert row == {
        "name": "notes",
        "description": "Notes, kept in order",
        "agents": ["scribe", "clerk"],
        "skills": ["tidy"],
        "mcps_for": [],
        "commands": [],
    }
    assert machine.run_crabup("pkg", "list").output == (
        "notes  agent scribe, agent clerk, skill tidy  Notes, kept in order\n"
    )


@pytest.mark.req("crabup.pkg.add")
def test_existing_files_are_not_overwritten(used_machine: CrabupMachine, registry: Path) -> None:
    add_package(used_machine, "--registry", registry, "-y")
    assert "here already" in add_package(used_machine, "--registry", registry, "-y").error
    used_machine.run_crabup("pkg", "remove", "notes")
    (used_machine.home / "agents" / "clerk.toml").symlink_to("/nowhere")
    before = sorted((used_machine.home / "agents").iterdir())
    assert (
        "clerk.toml is there already"
        in add_package(used_machine, "--registry", registry, "-y").error
    )
    assert sorted((used_machine.home / "agents").iterdir()) == before


@pytest.mark.req("crabup.pkg.whole")
def test_the_remains_of_a_killed_add_can_be_removed(
    used_machine: CrabupMachine, registry_with_setup: Path
) -> None:
    """The script kills crabup when the receipt is written and the files are not."""
    path = registry_with_setup / "notes.toml"
    path.write_text(path.read_text().replace('"setup.sh"', '"kill -9 $PPID; exit 0"'))
    before = read_tree(used_machine.home)
    assert (
        add_package(used_machine, "--registry", registry_with_setup, "-y", "--yes-run-setup").code
        == -9
    )
    assert (
        "here already" in add_package(used_machine, "--registry", registry_with_setup, "-y").error
    )
    assert used_machine.run_crabup("pkg", "remove", "notes").notice == "notes is removed"
    assert read_tree(used_machine.home) == before
