"""What the word before the cursor may become."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.command_table import COMMANDS
from crabtalk.chat.completion import MAX_CANDIDATES, NameCatalogue, NameEntry, find_candidates
from crabtalk.protocol import wire

KNOWN = NameCatalogue(
    agents=(NameEntry("crab", "General helper"), NameEntry("scout"), NameEntry("owl-crab")),
    skills=(NameEntry("tides", "skill, home"), NameEntry("export-all")),
    models=(NameEntry("qwen3", "active"), NameEntry("claude-sonnet-5")),
    active_model="qwen3",
)


def complete_text(text: str, cursor: int | None = None, known: NameCatalogue = KNOWN) -> list[str]:
    """What the text becomes by taking each."""
    at = len(text) if cursor is None else cursor
    found = find_candidates(text, at, known)
    return [text[: at - each.length] + each.text + text[at:] for each in found]


@pytest.mark.req("chat.complete.commands")
def test_a_slash_offers_all_commands_and_then_the_skills() -> None:
    names = [each.display for each in find_candidates("/", 1, KNOWN)]
    assert names == [*(f"/{name}" for name in COMMANDS), "/tides", "/export-all"]


@pytest.mark.req("chat.complete.commands")
def test_what_begins_as_typed_comes_before_what_has_it_inside() -> None:
    assert complete_text("/ex") == ["/export ", "/export-all "]
    assert complete_text("/ti") == ["/title ", "/tides "]
    assert complete_text("/ory") == ["/history ", "/memory "]
    assert complete_text("/EX") == ["/export ", "/export-all "]
    assert complete_text("/nosuch") == []


@pytest.mark.req("chat.complete.commands")
def test_a_candidate_says_what_it_is() -> None:
    (title, tides) = find_candidates("/ti", 3, KNOWN)
    assert (title.display, title.meta) == ("/title", COMMANDS["title"].about)
    assert (tides.display, tides.meta) == ("/tides", "skill, home")


@pytest.mark.req("chat.complete.agents")
def test_an_at_sign_in_the_first_place_offers_agents() -> None:
    assert complete_text("@") == ["@crab ", "@scout ", "@owl-crab "]
    assert complete_text("@cr") == ["@crab ", "@owl-crab "]
    assert complete_text("mail @cr") == []


@pytest.mark.req("chat.complete.arguments")
def test_a_command_is_offered_what_it_takes() -> None:
    assert complete_text("/agent s") == ["/agent scout "]
    assert complete_text("/guest ow") == ["/guest owl-crab "]
    assert complete_text("/model ") == ["/model qwen3 ", "/model claude-sonnet-5 "]
    assert complete_text("/help arc") == ["/help archives ", "/help search "]
    assert complete_text("/guest scout cr") == []
    assert complete_text("/search cr") == []


@pytest.mark.req("chat.complete.paths")
def test_paths_are_offered_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [each.display for each in find_candidates("sea/", 4, KNOWN)] == ["deep/", "shell.txt"]


@pytest.mark.req("chat.complete.paths")
def test_ones_own_directory_is_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete_text("read ~/no") == ["read ~/notes/"]
    assert complete_text("read ~nosuchuser/x") == []


@pytest.mark.req("chat.complete.paths")
def test_a_directory_of_thousands_is_a_menu_and_no_more(tmp_path: Path) -> None:
    for number in range(MAX_CANDIDATES + 50):
        (tmp_path / f"f{number:04}").touch()
    assert len(complete_text(f"{tmp_path}/f")) == MAX_CANDIDATES


@pytest.mark.req("chat.complete.commands")
def test_only_what_is_before_the_cursor_counts() -> None:
    assert complete_text("/exit now", cursor=3)[0] == "/export it now"
    assert complete_text("two lines\n/ex") == []


@given(st.text(alphabet="/@. ~acrst\n\x00é", max_size=12), st.integers(0, 12))
def test_no_text_confuses_it(text: str, cursor: int) -> None:
    at = min(cursor, len(text))
    for each in find_candidates(text, at, KNOWN, paths=lambda typed: [f"{typed}x"]):
        assert 0 <= each.length <= at
        assert each.display


def test_a_path_with_a_null_byte_is_nothing() -> None:
    assert complete_text("a/\x00") == []


@pytest.mark.req("chat.catalogue")
def test_the_model_is_the_agents_own_or_the_active_one() -> None:
    agents = wire.AgentList(
        agents=[wire.AgentInfo(name="crab"), wire.AgentInfo(name="owl", model="m2")]
    )
    found = [wire.ModelInfo(name="m1", active=True), wire.ModelInfo(name="m2", context_limit=9)]
    models = wire.ModelList(models=found)
    known = NameCatalogue().with_agents(agents, wire.SkillList()).with_models(models)
    assert (known.get_model("crab"), known.get_model("owl")) == ("m1", "m2")
    assert (known.get_context_limit("crab"), known.get_context_limit("owl")) == (0, 9)
    assert NameCatalogue().get_model("crab") == ""
