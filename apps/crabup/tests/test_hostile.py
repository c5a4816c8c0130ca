"""Malicious manifests and repositories are refused, and nothing is changed."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import example, given
from hypothesis import strategies as st

from apps.crabup.tests.machine import CrabupMachine
from crabup.errors import CrabupError
from crabup.install_plan import make_plan, render_toml
from crabup.manifest import ManifestError, parse_manifest
from crabup.receipt import read_receipt

HEAD = '[package]\nname = "evil"\n'


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize(
    "text",
    [
        '[package]\nname = "../evil"\n',
        '[package]\nname = "other"\n',
        "[package]\nname = 7\n",
        "package = 7\n",
        "not toml",
        "x = " + "[" * 5000,
        HEAD + 'setup = { script = ["x"] }\n',
        HEAD + 'checksum = "md5:00"\n',
        HEAD + 'checksum = "sha256:' + "0" * 64 + '"\n',
        HEAD + 'setup = { script = "x.sh" }\n',
        HEAD + '[agents."../../config"]\nprompt = "x"\n',
        HEAD + '[agents."/etc/x"]\nprompt = "x"\n',
        HEAD + '[agents."a.b"]\nprompt = "x"\n',
        HEAD + '[agents."a\\u0000"]\nprompt = "x"\n',
        HEAD + '[agents.""]\nprompt = "x"\n',
        HEAD + "[agents.a]\n",
        HEAD + '[agents.a]\nprompt = " "\n',
        HEAD + '[agents.a]\nprompt = "x\\u0000"\n',
        HEAD + '[agents.a]\nprompt = "x"\nthinking = "yes"\n',
        HEAD + '[agents.a]\nprompt = "x"\nskills = "all"\n',
        HEAD + '[agents.a]\nprompt = "x"\nmcps = ["unknown"]\n',
        HEAD + '[agents.a]\nprompt = "x"\nmcps = [7]\n',
        HEAD + '[agents.a]\nprompt = "x"\nmcps = [{ name = "m" }]\n',
        HEAD + '[mcps.m]\ncommand = ["a"]\n[agents.a]\nprompt = "x"\n',
        HEAD + '[mcps.m]\ncommand = "a"\nenv = { A = 1 }\n[agents.a]\nprompt = "x"\n',
        HEAD + '[commands.c]\ncrate = "--index-url=x"\n',
        HEAD + '[commands.c]\ncrate = "../x"\n',
        HEAD + "[commands.c]\n",
    ],
)
def test_a_malicious_manifest_is_refused(machine: CrabupMachine, tmp_path: Path, text: str) -> None:
    registry = tmp_path / "registry"
    registry.mkdir()
    (registry / "evil.toml").write_text(text)
    outcome = machine.run_crabup(
        "pkg", "add", "evil", "--registry", registry, "-y", "--yes-run-setup"
    )
    assert outcome.code == 1, outcome
    assert "Traceback" not in outcome.err
    assert not machine.home.exists()


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "Evil", "", "a b", "x" * 65, "..", "a/b"])
def test_no_package_name_leads_out_of_the_registry(
    machine: CrabupMachine, tmp_path: Path, name: str
) -> None:
    for verb in (("add", "--registry", str(tmp_path)), ("remove",)):
        outcome = machine.run_crabup("pkg", verb[0], *verb[1:], "--", name)
        assert "cannot be the name of a package" in outcome.error


@pytest.mark.req("crabup.pkg.hostile")
def test_a_manifest_that_is_a_link_is_refused(machine: CrabupMachine, tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(HEAD)
    (tmp_path / "evil.toml").symlink_to("real.toml")
    assert "is not a file" in machine.run_crabup("pkg", "add", "evil", "--registry", tmp_path).error


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("skills/s/secret.txt", "/etc/passwd"),
        ("skills/s/secret", "/etc"),
        ("skills/s/up", "../../.."),
        ("skills/s/SKILL.md", "/etc/passwd"),
        ("agents/a.md", "/etc/passwd"),
        ("agents", "/etc"),
        ("setup.sh", "/etc/passwd"),
    ],
)
def test_a_link_in_a_repository_is_not_followed(
    machine: CrabupMachine, tmp_path: Path, path: str, target: str
) -> None:
    root = tmp_path / "package"
    skill = root / "skills" / "s"
    skill.mkdir(parents=True)
    if not path.endswith("SKILL.md"):
        (skill / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\nx\n")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)
    text = HEAD + 'setup = { script = "setup.sh" }\n' if path == "setup.sh" else HEAD
    text += "[agents.a]\n" if path.startswith("agents") else ""
    (root / "evil.toml").write_text(text)
    outcome = machine.run_crabup("pkg", "add", "evil", "--path", root, "-y", "--yes-run-setup")
    assert "leads out of the repository or is a link" in outcome.error
    assert not machine.home.exists()


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize("script", ["../../x.sh", "/etc/profile", "a/../../x"])
def test_a_script_is_inside_its_repository(
    machine: CrabupMachine, tmp_path: Path, script: str
) -> None:
    root = tmp_path / "package"
    root.mkdir()
    (tmp_path / "x.sh").write_text("echo out > ../ran\n")
    (root / "evil.toml").write_text(HEAD + f'setup = {{ script = "{script}" }}\n')
    outcome = machine.run_crabup("pkg", "add", "evil", "--path", root, "-y", "--yes-run-setup")
    assert "leads out of the repository" in outcome.error


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize(
    "repository",
    [
        "ext::sh -c touch% /tmp/x",
        "--upload-pack=touch x",
        "http://example.org/x.git",
        "/etc",
        "file:///etc",
        "../..",
        "git://example.org/x",
    ],
)
def test_a_remote_registry_can_only_name_remote_repositories(
    machine: CrabupMachine, tmp_path: Path, repository: str
) -> None:
    """`git` is a stub that clones the registry; any other call fails the test."""
    manifest = tmp_path / "evil.toml"
    manifest.write_text(tomlkit.dumps({"package": {"name": "evil", "repository": repository}}))
    machine.add_stub("git", f'for last; do :; done; mkdir "$last"; cp "{manifest}" "$last"')
    outcome = machine.run_crabup(
        "pkg", "add", "evil", "--registry", "https://example.org/r.git", "-y"
    )
    assert outcome.code == 1
    assert "no repository" in outcome.error
    assert len(machine.list_calls) == 1


@pytest.mark.req("crabup.pkg.hostile")
def test_a_special_file_in_a_repository_does_not_block(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    root = tmp_path / "package"
    (root / "skills" / "s").mkdir(parents=True)
    (root / "skills" / "s" / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\nx\n")
    os.mkfifo(root / "skills" / "s" / "pipe")
    (root / "evil.toml").write_text(HEAD)
    assert "is not a file" in machine.run_crabup("pkg", "add", "evil", "--path", root, "-y").error


@pytest.mark.req("crabup.pkg.hostile")
@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../x": "0"}},
        {"files": {"/etc/passwd": "0"}},
        {"files": {"config.toml": "0"}},
        {"directories": ["agents/../.."]},
        {"repository": "../.."},
        {"repository": ".."},
        {"package": "other"},
        {"commands": [7]},
        {"files": 7},
        {"more": 1},
    ],
)
def test_a_receipt_that_names_files_outside_is_refused(
    machine: CrabupMachine, change: dict[str, Any]
) -> None:
    path = machine.home / "packages" / "evil.receipt.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"package": "evil", **change}))
    with pytest.raises(CrabupError, match="is damaged"):
        read_receipt(machine.home, "evil")
    assert "is damaged" in machine.run_crabup("pkg", "remove", "evil").error
    assert machine.run_crabup("pkg", "list").notice.startswith("there are no packages")


@pytest.mark.req("crabup.terminal")
def test_text_of_a_package_cannot_control_the_terminal(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    text = (
        HEAD + 'description = "\\u001b[2J\\u202eevil"\n[mcps.m]\ncommand = "a\\u001b]0;x\\u0007"\n'
    )
    (tmp_path / "evil.toml").write_text(text + '[agents.a]\nprompt = "x"\n')
    notice = machine.run_crabup("pkg", "add", "evil", "--registry", tmp_path, "-y").notice
    assert "\\x1b[2J\\u202eevil" in notice
    assert not {"\x1b", "\x07", "\u202e"} & set(notice)


values = st.recursive(
    st.one_of(st.text(max_size=5), st.booleans(), st.integers(-9, 9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
keys = st.sampled_from(["description", "prompt", "skills", "mcps", "command", "args", "env", "url"])
tables = st.dictionaries(st.text(max_size=6), st.dictionaries(keys, values, max_size=4), max_size=3)


@pytest.mark.req("crabup.pkg.hostile")
@given(agents=tables, mcps=tables, commands=tables)
def test_any_manifest_is_parsed_or_refused_with_a_sentence(
    agents: dict[str, Any], mcps: dict[str, Any], commands: dict[str, Any]
) -> None:
    document = {"package": {"name": "x"}, "agents": agents, "mcps": mcps, "commands": commands}
    try:
        data = tomlkit.dumps(document).encode()
        manifest = parse_manifest(data, "x")
    except (ManifestError, UnicodeEncodeError):
        return
    try:
        plan = make_plan(manifest, None, "")
    except CrabupError:
        return
    for addition in plan.files:
        assert ".." not in addition.path.split("/")
        assert addition.path.startswith(("agents/", "packages/"))


@given(prompt=st.text().filter(lambda text: "\0" not in text))
@example("one\r\ntwo\rthree\x7f\x1b\n\"\"\"'''\\\n")
def test_any_prompt_is_written_as_it_is(prompt: str) -> None:
    assert tomllib.loads(render_toml({"prompt": prompt})) == {"prompt": prompt}
