"""Completion of the word before the cursor."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.command_table import COMMANDS
from crabtalk.chat.completion import MAX_CANDIDATES, NameCatalogue, NameEntry, find_candidates
from crabtalk.protocol import wire

CATALOGUE = NameCatalogue(
    agents=(NameEntry("crab", "General helper"), NameEntry("scout"), NameEntry("owl-crab")),
    skills=(NameEntry("tides", "skill, home"), NameEntry("export-all")),
    models=(NameEntry("qwen3", "active"), NameEntry("claude-sonnet-5")),
    active_model="qwen3",
)


def complete_text(
    text: str, cursor: int | None = None, catalogue: NameCatalogue = CATALOGUE
) -> list[str]:
    """Return the text after accepting each candidate."""
    at = len(text) if cursor is None else cursor
    return [
        text[: at - candidate.length] + candidate.text + text[at:]
        for candidate in find_candidates(text, at, catalogue)
    ]


@pytest.mark.req("chat.complete.commands")
def test_a_slash_offers_all_commands_and_then_the_skills() -> None:
    names = [candidate.display for candidate in find_candidates("/", 1, CATALOGUE)]
    assert names == [*(f"/{name}" for name in COMMANDS), "/tides", "/export-all"]


@pytest.mark.req("chat.complete.commands")
def test_names_that_begin_as_typed_come_before_names_that_contain_it() -> None:
    assert complete_text("/ex") == ["/export ", "/export-all "]
    assert complete_text("/ti") == ["/title ", "/tides "]
    assert complete_text("/ory") == ["/history ", "/memory "]
    assert complete_text("/EX") == ["/export ", "/export-all "]
    assert complete_text("/nosuch") == []


@pytest.mark.req("chat.complete.commands")
def test_a_candidate_has_a_description() -> None:
    (title, tides) = find_candidates("/ti", 3, CATALOGUE)
    assert (title.display, title.meta) == ("/title", COMMANDS["title"].about)
    assert (tides.display, tides.meta) == ("/tides", "skill, home")


@pytest.mark.req("chat.complete.agents")
def test_a_leading_at_sign_offers_agents() -> None:
    assert complete_text("@") == ["@crab ", "@scout ", "@owl-crab "]
    assert complete_text("@cr") == ["@crab ", "@owl-crab "]
    assert complete_text("mail @cr") == []


@pytest.mark.req("chat.complete.arguments")
def test_a_command_completes_its_argument() -> None:
    assert complete_text("/agent s") == ["/agent scout "]
    assert complete_text("/guest ow") == ["/guest owl-crab "]
    assert complete_text("/model ") == ["/model qwen3 ", "/model claude-sonnet-5 "]
    assert complete_text("/help arc") == ["/help archives ", "/help search "]
    assert complete_text("/guest scout cr") == []
    assert complete_text("/search cr") == []


@pytest.mark.req("chat.complete.paths")
def test_paths_are_completed_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sea" / "deep").mkdir(parents=True)
    (tmp_path / "sea" / "shell.txt").touch()
    (tmp_path / "sea" / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    assert complete_text("look at ./s") == ["look at ./sea/"]
    assert complete_text("look at sea/") == ["look at sea/deep/", "look at sea/shell.txt"]
    assert complete_text("sea/.h") == ["sea/.hidden"]
    assert complete_text(f"{tmp_path}/se") == [f"{tmp_path}/sea/"]
    assert complete_text(f"see {tmp_path}/se") == [f"see {tmp_path}/sea/"]
    assert complete_text("/export se") == ["/export sea/"]
    assert complete_text("s") == []
    assert complete_text("no/such/dir/") == []
    names = [candidate.display for candidate in find_candidates("sea/", 4, CATALOGUE)]
    assert names == ["deep/", "shell.txt"]


@pytest.mark.req("chat.complete.paths")
def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete_text("read ~/no") == ["read ~/notes/"]
    assert complete_text("read ~nosuchuser/x") == []


@pytest.mark.req("chat.complete.paths")
def test_a_large_directory_offers_a_bounded_menu(tmp_path: Path) -> None:
    for number in range(MAX_CANDIDATES + 50):
        (tmp_path / f"f{number:04}").touch()
    assert len(complete_text(f"{tmp_path}/f")) == MAX_CANDIDATES


@pytest.mark.req("chat.complete.commands")
def test_only_what_is_before_the_cursor_counts() -> None:
    assert complete_text("/exit now", cursor=3)[0] == "/export it now"
    assert complete_text("two lines\n/ex") == []


@given(st.text(alphabet="/@. ~acrst\n\x00é", max_size=12), st.integers(0, 12))
def test_any_text_gives_valid_candidates(text: str, cursor: int) -> None:
    at = min(cursor, len(text))
    for candidate in find_candidates(text, at, CATALOGUE, paths=lambda typed: [f"{typed}x"]):
        assert 0 <= candidate.length <= at
        assert candidate.display


def test_a_path_with_a_null_byte_has_no_candidates() -> None:
    assert complete_text("a/\x00") == []


@pytest.mark.req("chat.catalogue")
def test_the_model_is_the_agents_own_or_the_active_one() -> None:
    agents = wire.AgentList(
        agents=[wire.AgentInfo(name="crab"), wire.AgentInfo(name="owl", model="m2")]
    )
    infos = [wire.ModelInfo(name="m1", active=True), wire.ModelInfo(name="m2", context_limit=9)]
    models = wire.ModelList(models=infos)
    catalogue = NameCatalogue().with_agents(agents, wire.SkillList()).with_models(models)
    assert (catalogue.get_model("crab"), catalogue.get_model("owl")) == ("m1", "m2")
    assert (catalogue.get_context_limit("crab"), catalogue.get_context_limit("owl")) == (0, 9)
    assert NameCatalogue().get_model("crab") == ""
