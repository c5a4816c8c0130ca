"""crabtalk agents edit: editing in a person's editor loses no text."""

import tomllib
from pathlib import Path

import pytest

from crabtalk.cli.editor import MAX_ROUNDS
from tests.cli.cli_process import run_at_terminal, run_crabtalk
from tests.cli.fake_editor import FakeEditor
from tests.cli.test_agents import OWL, WITH_OWL
from tests.daemon.in_process_daemon import run_daemon

WISE = [('Be "wise"', 'Be "brief"')]


def edit_command(home: Path, name: str = "owl") -> tuple[str | Path, ...]:
    return ("agents", "edit", name, "--home", home)


@pytest.mark.req("cli.agents.edit")
async def test_an_agent_is_changed_in_an_editor_and_keeps_comments_and_secrets(
    tmp_path: Path,
) -> None:
    editor = FakeEditor(tmp_path, [*WISE, ("max_iterations = 16", "max_iterations = 2")])
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon, daemon.client() as client:
        code, screen = await run_at_terminal(*edit_command(daemon.home), **editor.env)
        assert (code, screen) == (0, "changed owl\n")
        file = daemon.agent_file("owl").read_text()
        before = tomllib.loads(OWL)
        assert tomllib.loads(file) == {
            **before,
            "prompt": before["prompt"].replace("wise", "brief"),
            "max_iterations": 2,
        }
        assert "# Mine." in file
        assert "# no more" in file
        assert (await client.get_agent("owl")).max_iterations == 2
    (page,) = editor.pages_seen
    assert "sesame" not in page
    assert "sekrit" not in page
    assert editor.remaining_drafts == []


@pytest.mark.req("cli.agents.edit")
async def test_an_unchanged_page_changes_nothing(tmp_path: Path) -> None:
    editor = FakeEditor(tmp_path)
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        assert await run_at_terminal(*edit_command(daemon.home), **editor.env) == (
            0,
            "nothing was changed\n",
        )
        assert daemon.agent_file("owl").read_text() == OWL
    assert editor.remaining_drafts == []


@pytest.mark.req("cli.agents.edit.wrong")
async def test_errors_are_shown_at_the_top_and_the_text_stays(
    tmp_path: Path,
) -> None:
    editor = FakeEditor(
        tmp_path,
        [*WISE, ('model = "scripted"', "model = scripted")],  # not TOML
        [("model = scripted", 'modle = "scripted"')],  # not a setting
        [('modle = "scripted"', "model = 5")],  # not what the daemon takes
        [("model = 5", 'model = "scripted"')],
    )
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        assert await run_at_terminal(*edit_command(daemon.home), **editor.env) == (
            0,
            "changed owl\n",
        )
        assert 'Be "brief"' in tomllib.loads(daemon.agent_file("owl").read_text())["prompt"]
    first, *again = editor.pages_seen
    tops = [page.partition("\n")[0] for page in again]
    assert tops[0].startswith("#! that is not valid TOML: ")
    assert tops[1:] == ["#! no agent has modle; check the spelling", "#! model must be a string"]
    written = first.replace(*WISE[0]).replace('model = "scripted"', "model = scripted")
    assert again[0] == f"{tops[0]}\n{written}"
    assert all('Be "brief"' in page for page in again)
    assert editor.remaining_drafts == []


@pytest.mark.req("cli.agents.edit.wrong")
async def test_after_giving_up_the_draft_is_kept(tmp_path: Path) -> None:
    editor = FakeEditor(tmp_path, [*WISE, ('model = "scripted"', "model = ")])
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        code, screen = await run_at_terminal(*edit_command(daemon.home), **editor.env)
        assert daemon.agent_file("owl").read_text() == OWL
    assert code == 1
    head, where, rest = screen.partition("what you wrote is in ")
    assert (head, bool(where)) == ("", True)
    path, complaint = rest.splitlines()
    objection = editor.remaining_drafts[0].splitlines()[0].removeprefix("#! ")
    assert "line" in objection
    again = f"crabtalk agents edit owl --home {daemon.home} --config {path}"
    assert complaint == (
        f"crabtalk: nothing was changed: {objection}; `{again}` takes it once that is mended"
    )
    assert Path(path).stat().st_mode & 0o077 == 0 or Path(path).parent.stat().st_mode & 0o077 == 0
    assert editor.remaining_drafts == [Path(path).read_text()]
    assert 'Be "brief"' in editor.remaining_drafts[0]


@pytest.mark.req("cli.agents.edit.wrong")
async def test_an_unattended_editor_is_not_opened_endlessly(tmp_path: Path) -> None:
    editor = FakeEditor(tmp_path)
    (script := tmp_path / "more.sh").write_text(
        f'#!/bin/sh\necho \'model = \' >> "$1"\n{editor.env["EDITOR"]} "$1"\n'
    )
    script.chmod(0o755)
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        code, screen = await run_at_terminal(
            *edit_command(daemon.home), **{**editor.env, "EDITOR": str(script)}
        )
        assert daemon.agent_file("owl").read_text() == OWL
    assert code == 1
    assert screen.startswith("what you wrote is in ")
    assert "nothing was changed: that is not valid TOML: " in screen
    assert len(editor.pages_seen) == MAX_ROUNDS
    assert editor.remaining_drafts[0].count("model = \n") == MAX_ROUNDS


@pytest.mark.req("cli.agents.edit.wrong")
async def test_a_secret_that_is_not_stored_cannot_stay_masked(tmp_path: Path) -> None:
    editor = FakeEditor(
        tmp_path,
        [('name = "beach"', 'name = "shore"')],
        [('"********"', '"new"'), ('"********"', '"newer"')],
    )
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        code, _ = await run_at_terminal(*edit_command(daemon.home), **editor.env)
        assert code == 0
        (server,) = tomllib.loads(daemon.agent_file("owl").read_text())["mcps"]
        assert (server["name"], server["env"], server["auth"]) == (
            "shore",
            {"TOKEN": "new"},
            "newer",
        )
    assert editor.pages_seen[1].startswith("#! ")
    assert "masked" in editor.pages_seen[1].partition("\n")[0]


@pytest.mark.req("cli.agents.edit")
async def test_changes_by_others_meanwhile_are_not_overwritten(tmp_path: Path) -> None:
    editor = FakeEditor(tmp_path, WISE)
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        # The editor first changes the file as another client would.
        other = f"{editor.env['EDITOR']}"
        changed = OWL.replace("You are owl", "You are Owl")
        script = tmp_path / "both.sh"
        script.write_text(
            f"#!/bin/sh\ncp {tmp_path / 'owl.toml'} {daemon.agent_file('owl')}\n{other} $1\n"
        )
        (tmp_path / "owl.toml").write_text(changed)
        script.chmod(0o755)
        code, screen = await run_at_terminal(
            *edit_command(daemon.home), **{**editor.env, "EDITOR": str(script)}
        )
        assert code == 1
        assert "owl has been changed meanwhile, and is left as it is" in screen
        assert daemon.agent_file("owl").read_text() == changed
        (draft,) = editor.drafts.glob("**/*.toml")
        outcome = await run_crabtalk(*edit_command(daemon.home), "--config", draft)
        assert (outcome.code, outcome.err) == (0, "changed owl\n")
        assert 'Be "brief"' in daemon.agent_file("owl").read_text()


@pytest.mark.req("cli.agents.edit.wrong")
async def test_a_failing_or_missing_editor_changes_nothing(tmp_path: Path) -> None:
    editor = FakeEditor(tmp_path, [("exit", "3")])
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        code, screen = await run_at_terminal(*edit_command(daemon.home), **editor.env)
        assert (code, "ended with status 3, and nothing was changed" in screen) == (1, True)
        code, screen = await run_at_terminal(
            *edit_command(daemon.home), **{**editor.env, "VISUAL": "no-such-ed"}
        )
        assert (code, "no-such-ed cannot be started" in screen) == (1, True)
        code, screen = await run_at_terminal(
            *edit_command(daemon.home), **{**editor.env, "VISUAL": "'"}
        )
        assert (code, "has a quote too many" in screen) == (1, True)
        code, screen = await run_at_terminal(*edit_command(daemon.home, "cat"), **editor.env)
        assert (code, "no agent is called 'cat'" in screen) == (1, True)
        assert daemon.agent_file("owl").read_text() == OWL
    assert editor.remaining_drafts == []


@pytest.mark.req("cli.no_prompt")
@pytest.mark.req("cli.agents.edit")
async def test_without_a_terminal_a_file_replaces_the_editor(tmp_path: Path) -> None:
    editor = FakeEditor(tmp_path)
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        outcome = await run_crabtalk(*edit_command(daemon.home), EDITOR=editor.env["EDITOR"])
        assert outcome.error == "without a terminal there is no editor; say --config FILE"
        assert editor.pages_seen == []
        page = (await run_crabtalk("agents", "show", "owl", "--home", daemon.home)).output
        changed = page.replace("wise", "brief").encode()
        outcome = await run_crabtalk(*edit_command(daemon.home), "--config", "-", typed=changed)
        assert (outcome.code, outcome.err) == (0, "changed owl\n")
        file = tomllib.loads(daemon.agent_file("owl").read_text())
        assert file["mcps"] == tomllib.loads(OWL)["mcps"]
        assert "brief" in file["prompt"]
        outcome = await run_crabtalk(
            *edit_command(daemon.home), "--config", "-", typed=b"prompt = ' '"
        )
        assert outcome.error.startswith("the prompt is empty; ")
