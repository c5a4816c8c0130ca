"""Agent files: saved agents are read back, and what a person wrote stays."""

import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.storage.agent import Agent, AgentError, McpServerConfig
from crabtalk.storage.agent_files import AgentFiles

CRAB = """\
# Crab, who helps.

description = "General helper"   # shown to others
# tried a bigger one, too slow
model = 'small'
prompt = \"\"\"You are crab.\"\"\"
max_iterations=16
compact_threshold = 5   # from long ago
tools = [
    "bash",  # runs things
    "read",  # sees things
]

# careful with this
[hooks.bash]  # the shell
disabled = false  # for now
deny = ["rm"]

# what it remembers
[hooks.memory]
recall_limit = 5

# code
[[mcps]]
name = "github"
command = "github-mcp"
env = { TOKEN = "t" }  # expires in May
enabled = true

# chat
[[mcps]]  # slow
name = "slack"
url = "https://slack.example/mcp"  # the new address
[mcps.env]
A = "1"  # first

# That is all.
"""


@pytest.fixture
def files(tmp_path: Path) -> AgentFiles:
    return AgentFiles(tmp_path / "agents")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / "agents" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


WriteFile = Callable[[str, str | bytes], Path]


def test_a_saved_agent_is_loaded_listed_and_deleted(files: AgentFiles, tmp_path: Path) -> None:
    assert files.list() == ([], {})
    assert files.load("crab") is None
    assert not files.delete("crab")
    crab, bee = Agent("crab", "You are crab."), Agent("bee", "You are bee.", thinking=True)
    files.save(crab)
    files.save(bee)
    assert files.load("crab") == crab
    assert files.list() == ([bee, crab], {})
    assert files.delete("crab")
    assert files.list() == ([bee], {})
    assert [path.name for path in (tmp_path / "agents").iterdir()] == ["bee.toml"]


def test_files_and_their_directory_are_private(files: AgentFiles, write: WriteFile) -> None:
    files.save(Agent("crab", "p"))
    path = write("open", 'prompt = "p"')
    path.chmod(0o644)
    files.save(Agent("open", "p"))
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, *path.parent.iterdir())]
    assert modes == [0o700, 0o600, 0o600]


def test_a_directory_that_is_there_keeps_its_mode(files: AgentFiles, tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir(mode=0o750)
    files.save(Agent("crab", "p"))
    assert stat.S_IMODE((tmp_path / "agents").stat().st_mode) == 0o750


def test_a_new_file_is_readable(files: AgentFiles, tmp_path: Path) -> None:
    files.save(
        Agent(
            "crab",
            'You are "crab".\n\nC:\\ is no """home""" of yours.\n',
            description="Helps",
            tools=("bash", "read"),
            hooks={"bash": {"deny": ["rm"], "allow": {"a b": True}}, "my hook": {}},
            mcps=(
                McpServerConfig("github", "github-mcp", ("-v",), {"TOKEN": "t"}),
                McpServerConfig("far", url="https://h.example", auth="Bearer b", idle_timeout=60.0),
            ),
        )
    )
    assert (
        (tmp_path / "agents" / "crab.toml").read_text()
        == r'''description = "Helps"
prompt = """
You are "crab".

C:\\ is no \"""home\""" of yours.
"""
tools = ["bash", "read"]

[hooks.bash]
deny = ["rm"]
allow = { "a b" = true }

[hooks."my hook"]

[[mcps]]
name = "github"
command = "github-mcp"
args = ["-v"]
env = { TOKEN = "t" }

[[mcps]]
name = "far"
url = "https://h.example"
auth = "Bearer b"
idle_timeout = 60.0
'''
    )


def test_settings_at_their_default_are_not_written(files: AgentFiles, tmp_path: Path) -> None:
    files.save(Agent("crab", "Be brief."))
    assert (tmp_path / "agents" / "crab.toml").read_text() == 'prompt = "Be brief."\n'


def save_changes(files: AgentFiles, path: Path, **changes: Any) -> list[str]:
    """Saves a changed agent over the file; returns the lines removed (-) and added (+)."""
    before = path.read_bytes().decode().splitlines(keepends=True)
    agent = files.load(path.stem)
    assert agent is not None
    agent = msgspec.structs.replace(agent, **changes)
    files.save(agent)
    assert files.load(path.stem) == agent
    after = path.read_bytes().decode().splitlines(keepends=True)
    removed = [f"-{line}" for line in before if line not in after]
    return removed + [f"+{line}" for line in after if line not in before]


def test_a_save_that_changes_nothing_changes_no_byte(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB.replace("\n", "\r\n").removesuffix("\r\n"))
    before = path.read_bytes()
    assert save_changes(files, path) == []
    assert path.read_bytes() == before


@pytest.mark.req("storage.agents")
def test_a_save_changes_only_the_lines_it_must(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB)
    assert save_changes(files, path, model="big", max_iterations=20, thinking=True) == [
        "-model = 'small'\n",
        "-max_iterations=16\n",
        '+model = "big"\n',
        "+max_iterations=20\n",
        "+thinking = true\n",
    ]
    text = path.read_text()
    assert "# tried a bigger one, too slow\nmodel" in text
    assert text.index("thinking") < text.index("# careful with this\n[hooks.bash]")


def test_the_line_ends_of_a_file_are_kept(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB.replace("\n", "\r\n"))
    assert save_changes(files, path, prompt="one\ntwo", skills=("s",)) == [
        '-prompt = """You are crab."""\r\n',
        '+prompt = """\r\n',
        "+one\r\n",
        '+two"""\r\n',
        '+skills = ["s"]\r\n',
    ]


def test_a_default_that_is_written_down_stays_written_down(
    files: AgentFiles, write: WriteFile
) -> None:
    path = write("crab", CRAB)
    assert save_changes(files, path, description="", model="") == [
        '-description = "General helper"   # shown to others\n',
        "-model = 'small'\n",
        '+description = ""   # shown to others\n',
        '+model = ""\n',
    ]


def test_a_list_keeps_the_comments_of_what_stays_in_it(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB)
    assert save_changes(files, path, tools=("read", "edit")) == [
        '-    "bash",  # runs things\n',
        '+    "edit",\n',
    ]


def test_hooks_change_key_by_key(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB)
    hooks = {"bash": {"disabled": True, "deny": ["rm"], "timeout": 5}, "files": {"roots": ["/"]}}
    assert save_changes(files, path, hooks=hooks) == [
        "-disabled = false  # for now\n",
        "-# what it remembers\n",
        "-[hooks.memory]\n",
        "-recall_limit = 5\n",
        "+disabled = true  # for now\n",
        "+timeout = 5\n",
        "+[hooks.files]\n",
        '+roots = ["/"]\n',
    ]


def test_a_server_takes_its_own_comments_along_and_no_others(
    files: AgentFiles, write: WriteFile
) -> None:
    path = write("crab", CRAB)
    github, slack = files.load("crab").mcps  # type: ignore[union-attr]
    save_changes(files, path, mcps=(slack,))
    start, end = CRAB.index("# code"), CRAB.index("# chat")
    assert path.read_text() == CRAB[:start] + CRAB[end:]
    path = write("crab", CRAB)
    save_changes(files, path, mcps=(github,))
    start, end = CRAB.index("# chat"), CRAB.index("# That is all")
    assert path.read_text() == CRAB[:start] + CRAB[end:]
    path = write("crab", CRAB)
    save_changes(files, path, mcps=())
    assert path.read_text() == CRAB[: CRAB.index("# code")] + CRAB[end:]


def test_servers_are_known_by_their_names(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB)
    github, slack = files.load("crab").mcps  # type: ignore[union-attr]
    slack = msgspec.structs.replace(slack, env={"A": "1", "B": "2"}, auto_restart=False)
    new = McpServerConfig("new", "new-mcp")
    assert save_changes(files, path, mcps=(slack, new, github)) == [
        "+auto_restart = false\n",
        '+B = "2"\n',
        '+name = "new"\n',
        '+command = "new-mcp"\n',
    ]
    code, chat, rest = (CRAB.index(mark) for mark in ("# code", "# chat", "# That is all"))
    slack_text = CRAB[chat:rest].replace("[mcps.env]", "auto_restart = false\n[mcps.env]")
    assert path.read_text() == (
        CRAB[:code]
        + slack_text.replace("# first\n", '# first\nB = "2"\n')
        + '[[mcps]]\nname = "new"\ncommand = "new-mcp"\n\n'
        + CRAB[code:chat]
        + CRAB[rest:]
    )


def test_a_server_that_moves_takes_everything_inside_it_along(
    files: AgentFiles, write: WriteFile
) -> None:
    a = "# a\n[[mcps]]\nname = 'a'\n\n# inside\n\ncommand = 'a'\n\n# too\n\n[mcps.env]\nA = '1'\n\n"
    b = "[[mcps]]\nname = 'b'\ncommand = 'b'\n"
    path = write("crab", f"prompt = 'p'\n\n{a}# apart\n\n[hooks.bash]\n\n{b}")
    servers = files.load("crab").mcps  # type: ignore[union-attr]
    save_changes(files, path, mcps=servers[::-1])
    assert path.read_text() == f"prompt = 'p'\n\n{b}\n{a}# apart\n\n[hooks.bash]\n\n"


def test_servers_written_in_one_list_stay_in_one_list(files: AgentFiles, write: WriteFile) -> None:
    content = """\
prompt = "p"
mcps = [
    { name = "a", command = "a" },  # first
    { name = "b", command = "b", extra = 1 },  # second
    { name = "c", command = "c" },  # third
]
"""
    path = write("crab", content)
    servers = (
        McpServerConfig("b", "b"),
        McpServerConfig("c", "d"),
        McpServerConfig("e", url="http://e"),
    )
    save_changes(files, path, mcps=servers)
    assert path.read_text() == content.replace(
        '    { name = "a", command = "a" },  # first\n', ""
    ).replace(
        'command = "c" },  # third\n',
        'command = "d" },  # third\n    { name = "e", url = "http://e" },\n',
    )
    save_changes(files, path, mcps=())
    assert path.read_text() == 'prompt = "p"\n'


def test_an_environment_on_one_line_is_as_tidy_after_a_change(
    files: AgentFiles, write: WriteFile
) -> None:
    server = '{ name = "a", command = "a", extra = 1, env = %s },  # first\n'
    path = write("crab", 'prompt = "p"\nmcps = [\n    ' + server % '{ B = "2" }' + "]\n")
    for env, rendered in (
        ({"A": "1"}, '{ A = "1" }'),
        ({"A": "1", "C": "3"}, '{ A = "1", C = "3" }'),
        ({"C": "3"}, '{ C = "3" }'),
    ):
        save_changes(files, path, mcps=(McpServerConfig("a", "a", env=env),))
        assert path.read_text() == 'prompt = "p"\nmcps = [\n    ' + server % rendered + "]\n"
    save_changes(files, path, mcps=(McpServerConfig("a", "a"),))
    plain = '{ name = "a", command = "a", extra = 1 },  # first\n'
    assert path.read_text() == f'prompt = "p"\nmcps = [\n    {plain}]\n'


@pytest.mark.parametrize(
    ("written", "hooks"),
    [
        ("hooks.bash.a = 1  # why\nhooks.bash.b = 2", {"bash": {"a": 1, "c": 3}}),
        ("hooks.bash.a = 1", {"bash": {}, "os": {"x": 1}}),
        ("hooks.bash.a = [1, 2]  # why", {"bash": {"a": [2, 3]}}),
        ("hooks = { bash = { a = 1 } }  # why", {"bash": {"a": 2}, "os": {}}),
        ("[hooks]\nbash.a = 1  # why\n", {"bash": {"a": 1, "b": [{"name": "x"}]}, "os": {}}),
        ("[hooks]\nbash = { a = 1, b = 2 }  # why\n", {"bash": {"b": 2, "c": {"d": 1}}}),
        ("[hooks.bash.deep]\na = 1  # why\n", {"bash": {"deep": {"a": 1}, "b": 2}}),
        ("[hooks.bash.deep]\na = 1\n", {"bash": {}}),
        ("[[hooks.bash.rules]]\na = 1\n[[hooks.bash.rules]]\na = 2", {"bash": {"rules": []}}),
        ("[hooks.bash]\na = [ 1 # one\n , 2 ]", {"bash": {"a": [1, 3, 2]}}),
        ("[hooks]\nbash = { a.b = [1], a.c = 2 }  # why", {"bash": {"a": {"b": [2]}, "d": 3}}),
        ("[hooks.bash]\na = { b = 1 }  # why", {"bash": {"a": []}}),
        ("[hooks.bash]\na = 1.0", {"bash": {"a": 1}}),
        ("[hooks.bash]\na = 1", {"bash": {"a": True}}),
        ("[hooks.bash]\n[hooks.'a.b'.\"c\\n\"]\nx = 1 # why", {"a.b": {"c\n": {"x": 1}, "d": 2}}),
    ],
)
def test_hooks_can_be_written_in_any_way_toml_has(
    files: AgentFiles, write: WriteFile, written: str, hooks: dict[str, Any]
) -> None:
    for more in ("", "\n[[mcps]]\nname = 'x'\ncommand = 'y'\n"):
        path = write("crab", f"prompt = 'p'\n{written}{more}")
        save_changes(files, path, hooks=hooks)
        assert repr(files.load("crab").hooks) == repr(hooks)  # type: ignore[union-attr]
        assert ("# why" in written) == ("# why" in path.read_text())


def test_a_value_with_the_same_meaning_stays_as_the_person_wrote_it(
    files: AgentFiles, write: WriteFile
) -> None:
    content = (
        "prompt = 'p'\ntool_choice = { type = 'function', function = { name = 'bash' } }\n"
        "[[mcps]]\nname = 'x'\ncommand = 'y'\nidle_timeout = 5\n"
    )
    path = write("crab", content)
    assert save_changes(files, path) == []
    server = McpServerConfig("x", "y", idle_timeout=None)
    assert save_changes(files, path, mcps=(server,)) == ["-idle_timeout = 5\n"]


@pytest.mark.parametrize(
    "written",
    [
        'prompt = """"quoted""""  # "why',
        'prompt = """\n# no comment\n[no.header]\nmodel = 1 \\""" """',
        "prompt = '''\nit's ''\n[[mcps]]'''''  # [why",
        "prompt = 'a # b'#c",
        "prompt = '\"'\ntools = [ # ]\n  ']', \"\\\"]\", '''\n]''',\n]",
        "prompt = 'p'\n\"a=b\" = { c = ['}'] }\n'd\"' . \"\\u0065\" = 2020-01-01 01:02:03 # e",
        "\t prompt\t=\t'p'\t# why\t",
    ],
)
@pytest.mark.parametrize("eol", ["\n", "\r\n"])
@pytest.mark.parametrize("more", ["", "\n", "\n# end", "\n[hooks.bash]\na = 1\n"])
def test_nothing_inside_a_value_is_taken_for_something_else(
    files: AgentFiles, write: WriteFile, written: str, eol: str, more: str
) -> None:
    eol = eol if "\n" in written + more else "\n"
    before, after = written.replace("\n", eol), more.replace("\n", eol)
    path = write("crab", before + after)
    save_changes(files, path, model="new")
    text = path.read_bytes().decode()
    assert text.startswith(before)
    assert text.replace(f'{eol}model = "new"', "").rstrip() == (before + after).rstrip()
    save_changes(files, path, prompt="another", model="m")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "# nothing but a comment",
        "model = 5",
        "mcps = 5",
        "mcps = [5, { name = 'x' }]",
        "[mcps]\nname = 'x'",
        "hooks = 5",
        "[hooks]\nbash = 5",
        "[[hooks]]\na = 1\n",
        "[[mcps]]\nname = 'x'\n[[mcps]]\nname = 'x'\n[[mcps]]\n",
        "[prompt]\na = 1\n",
    ],
)
def test_a_file_that_is_no_agent_yet_can_be_saved_over(
    files: AgentFiles, write: WriteFile, content: str
) -> None:
    agent = Agent(
        "crab", "p", model="m", hooks={"bash": {"a": 1}}, mcps=(McpServerConfig("x", "y"),)
    )
    write("crab", content)
    with pytest.raises(AgentError, match=r"crab.toml: "):
        files.load("crab")
    files.save(agent)
    assert files.load("crab") == agent


@pytest.mark.req("storage.agents.broken")
@pytest.mark.parametrize("content", ["prompt = ", b"prompt = '\xff'", "a = 1\na = 2", "a = 1\r"])
def test_a_file_that_is_not_toml_is_never_overwritten(
    files: AgentFiles, write: WriteFile, content: str | bytes
) -> None:
    path = write("crab", content)
    before = path.read_bytes()
    with pytest.raises(AgentError, match=r"crab.toml is not valid TOML: .*; mend it or move"):
        files.load("crab")
    with pytest.raises(AgentError, match=r"crab.toml is not valid TOML: .*; mend it or move"):
        files.save(Agent("crab", "p"))
    assert path.read_bytes() == before


def test_an_agent_that_could_not_be_read_again_is_not_written(files: AgentFiles) -> None:
    files.save(Agent("crab", "p"))
    for agent in (Agent("crab", " "), Agent("crab", "p", hooks={"a": {"b": None}})):
        with pytest.raises(AgentError):
            files.save(agent)
    assert files.load("crab") == Agent("crab", "p")


@pytest.mark.req("storage.agents.broken")
def test_a_broken_file_hides_no_other(files: AgentFiles, write: WriteFile, tmp_path: Path) -> None:
    files.save(Agent("fine", "p"))
    write("torn", "prompt = ")
    write("deep", "a = " + "[" * 5000)
    write("long", "a = " + "1" * 5000)
    write("wrong", "prompt = 'p'\nmax_iterations = 0")
    write("a.b", "prompt = 'p'")
    write(".hidden", "prompt = ")
    write("notes", "").rename(tmp_path / "agents" / "notes.txt")
    (tmp_path / "agents" / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "agents" / "pipe.toml")
    (tmp_path / "agents" / "gone.toml").symlink_to("nowhere")
    (tmp_path / "agents" / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "agents" / os.fsdecode(b"\xff.toml")).write_text("prompt = 'p'")
    agents, broken = files.list()
    assert agents == [Agent("fine", "p")]
    names = {"torn", "deep", "long", "wrong", "a.b", "folder", "pipe", "loop", "\ufffd"}
    assert broken.keys() == names
    assert all(f"{tmp_path}/agents/{name}.toml" in why for name, why in broken.items())
    assert "max_iterations must be a whole number from 1 to 1000" in broken["wrong"]
    assert "must not hold any of" in broken["a.b"]
    assert "is not a file" in broken["folder"]
    assert "cannot read" in broken["loop"]
    for text in broken.values():
        text.encode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_hides_no_other(files: AgentFiles, write: WriteFile) -> None:
    files.save(Agent("fine", "p"))
    write("shut", "prompt = 'p'").chmod(0)
    assert files.list()[0] == [Agent("fine", "p")]
    assert "cannot read" in files.list()[1]["shut"]
    with pytest.raises(PermissionError):
        files.load("shut")


def test_a_renamed_file_is_the_same_byte_for_byte(files: AgentFiles, write: WriteFile) -> None:
    path = write("crab", CRAB)
    files.rename("crab", "lobster")
    assert not path.exists()
    assert path.with_name("lobster.toml").read_text() == CRAB
    with pytest.raises(AgentError, match="there is no agent 'crab'"):
        files.rename("crab", "shrimp")


@pytest.mark.parametrize("content", ["prompt = 'p'", "not TOML"])
def test_a_rename_never_overwrites(files: AgentFiles, write: WriteFile, content: str) -> None:
    files.save(Agent("crab", "p"))
    path = write("lobster", content)
    with pytest.raises(AgentError, match="there is an agent 'lobster' already; choose another"):
        files.rename("crab", "lobster")
    assert path.read_text() == content
    assert files.load("crab") == Agent("crab", "p")


@pytest.mark.parametrize("name", ["", "../crab", "a/b", ".hidden", "\0"])
def test_no_name_leads_out_of_the_directory(files: AgentFiles, tmp_path: Path, name: str) -> None:
    (tmp_path / "crab.toml").write_text("prompt = 'p'")
    files.save(Agent("fine", "p"))
    for act in (
        lambda: files.load(name),
        lambda: files.save(Agent(name, "p")),
        lambda: files.delete(name),
        lambda: files.rename(name, "crab"),
        lambda: files.rename("fine", name),
    ):
        with pytest.raises(AgentError, match="name"):
            act()
    assert sorted(path.name for path in tmp_path.rglob("*.toml")) == ["crab.toml", "fine.toml"]


def test_a_directory_that_cannot_be_used_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "agents").write_text("in the way")
    files = AgentFiles(tmp_path / "agents")
    for act in (files.list, lambda: files.load("crab"), lambda: files.save(Agent("crab", "p"))):
        with pytest.raises(NotADirectoryError):
            act()


# ── Any agent, any file ──────────────────────────────────────────────────────────────────────

AWKWARD = "\"'\\\n\r\t#=[]{}.,a é🦀\x7f\x01\x85\u2028"
TEXTS = st.text(
    st.sampled_from(AWKWARD) | st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    max_size=8,
)
NAMES = st.sampled_from(["a", "b", "c d", "e.f", "", '"']) | TEXTS
LISTS = st.lists(st.sampled_from(["bash", "read", "edit", "mcp:*"]) | TEXTS, max_size=4).map(tuple)
PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)
VARIABLES = st.sampled_from(["A", "B", "C"]) | TEXTS.filter(lambda name: name and "=" not in name)
SERVERS = st.builds(
    McpServerConfig,
    name=st.sampled_from(["x", "y", "z", "w.v"]) | TEXTS.filter(str.strip),
    command=TEXTS.filter(str.strip),
    args=LISTS,
    env=st.dictionaries(VARIABLES, st.sampled_from(["1", "2"]) | TEXTS, max_size=3),
    url=st.sampled_from(["", "https://h.example/mcp?q=1"]),
    auth=st.sampled_from(["", "Bearer \"'\\"]),
    auto_restart=st.booleans(),
    idle_timeout=st.none() | st.floats(0.001, 1e9),
)
AGENTS = st.builds(
    Agent,
    name=st.just("crab"),
    prompt=st.text(st.sampled_from(AWKWARD), min_size=1, max_size=12).filter(str.strip),
    description=TEXTS,
    model=st.sampled_from(["", "m"]),
    max_iterations=st.sampled_from([1, 16, 1000]),
    tool_choice=st.sampled_from(["auto", "none", "bash"]),
    thinking=st.booleans(),
    tools=LISTS,
    skills=LISTS,
    approve=LISTS,
    compact_tool_max_len=st.sampled_from([0, 1024, 2**63 - 1]),
    hooks=st.dictionaries(NAMES, st.dictionaries(NAMES, PLAIN, max_size=3), max_size=3),
    mcps=st.lists(SERVERS, max_size=4, unique_by=lambda server: server.name).map(tuple),
)


def encode_hooks_exactly(agent: Agent | None) -> tuple[Agent | None, bytes]:
    """Equal only if hooks agree on what is 1, 1.0 and true."""
    return agent, msgspec.json.encode(agent and agent.hooks, order="deterministic")


def render_toml(value: Any) -> str:
    """Renders values in another style than the code under test."""
    match value:
        case bool():
            return str(value).lower()
        case str() if value.replace("\n", "").isprintable() and "'" not in value:
            return f"'''\n{value}'''"
        case str():
            return quote_toml(value)
        case list() | tuple():
            return "[\n" + "".join(f"  {render_toml(entry)}, # listed\n" for entry in value) + "]"
        case dict():
            return (
                "{" + ",".join(f"{quote_toml(k)}={render_toml(v)}" for k, v in value.items()) + "}"
            )
    return repr(value)


def quote_toml(text: str) -> str:
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


def changed_settings(value: Agent | McpServerConfig) -> dict[str, Any]:
    default = Agent("", "") if isinstance(value, Agent) else McpServerConfig("")
    pairs = msgspec.structs.asdict(value).items()
    return {key: entry for key, entry in pairs if entry != getattr(default, key)}


class HandWrittenFile:
    """An agent's file as a person might write it, with the text of each statement and server."""

    def __init__(self, draw: st.DrawFn, agent: Agent) -> None:
        self._draw = draw
        self._notes = 0
        self.statements: dict[str, str] = {}
        self.servers: dict[str, str] = {}
        top = [self._draw_line("id", "1979-05-27")]
        for key, value in changed_settings(agent).items():
            if key not in ("name", "hooks", "mcps"):
                self.statements[key] = self._draw_line(key, render_toml(value))
                top.append(self.statements[key])
        sections = []
        for path, value in self._lay_out_hooks(agent.hooks):
            if value is None:
                sections.append(f"{self._draw_comment()}[{path}]\n")
            elif sections:
                sections[-1] += self._draw_line(path, render_toml(value))
            else:
                top.append(self._draw_line(path, render_toml(value)))
        is_one_list = draw(st.booleans())
        if agent.mcps and is_one_list:
            top.append(
                self._draw_line(
                    "mcps", render_toml([changed_settings(server) for server in agent.mcps])
                )
            )
        else:
            self.servers = {server.name: self._draw_server(server) for server in agent.mcps}
        sections = draw(st.permutations(sections))
        for section in self.servers.values():
            last = max(
                (i for i, s in enumerate(sections) if s in self.servers.values()), default=-1
            )
            sections.insert(draw(st.integers(last + 1, len(sections))), section)
        self.text = "".join([*draw(st.permutations(top)), *sections]) + "\n# The end."

    def _draw_comment(self) -> str:
        self._notes += 1
        return self._draw(st.sampled_from(["", f"# note {self._notes}.\n"]))

    def _draw_line(self, key: str, value: str) -> str:
        self._notes += 1
        remark = self._draw(st.sampled_from(["", f"  # remark {self._notes}."]))
        gap = self._draw(st.sampled_from(["", "\n", "\n# apart\n\n"]))
        return f"{self._draw_comment()}{key} = {value}{remark}\n{gap}"

    def _lay_out_hooks(self, hooks: dict[str, dict[str, Any]]) -> list[tuple[str, Any]]:
        """Keys and their values in order; a value of None means a header."""
        match self._draw(st.sampled_from(["headers", "one table", "inline", "dotted"])):
            case "headers":
                pairs: list[tuple[str, Any]] = []
                for name, table in hooks.items():
                    pairs.append((f"hooks.{quote_toml(name)}", None))
                    pairs += [(quote_toml(key), value) for key, value in table.items()]
                return pairs
            case "one table":
                return [
                    ("hooks", None),
                    *((quote_toml(name), table) for name, table in hooks.items()),
                ]
            case "inline":
                return [("hooks", hooks)]
        return [
            pair
            for name, table in hooks.items()
            for pair in (
                [
                    (f"hooks.{quote_toml(name)}.{quote_toml(key)}", value)
                    for key, value in table.items()
                ]
                or [(f"hooks . {quote_toml(name)}", {})]
            )
        ]

    def _draw_server(self, server: McpServerConfig) -> str:
        settings = changed_settings(server)
        env = settings.pop("env", {})
        lines = [self._draw_line(key, render_toml(value)) for key, value in settings.items()]
        match self._draw(st.sampled_from(["header", "inline", "dotted"])):
            case "header" if env:
                lines += [f"{self._draw_comment()}[mcps.env]\n"]
                lines += [
                    self._draw_line(quote_toml(key), render_toml(value))
                    for key, value in env.items()
                ]
            case "dotted":
                lines += [
                    self._draw_line(f"env.{quote_toml(k)}", render_toml(v)) for k, v in env.items()
                ]
            case _:
                lines += [self._draw_line("env", render_toml(env))]
        return f"{self._draw_comment()}[[mcps]]\n" + "".join(lines)


@st.composite
def draw_revision(draw: st.DrawFn) -> tuple[HandWrittenFile, Agent, Agent]:
    """A file by a person, the agent in it, and a changed version of that agent."""
    first, other = draw(AGENTS), draw(AGENTS)
    changes = {key: getattr(other, key) for key in draw(st.sets(st.sampled_from(FIELDS)))}
    if "mcps" in changes and draw(st.booleans()):
        servers = {server.name: server for server in (*other.mcps, *first.mcps)}
        changes["mcps"] = tuple(draw(st.permutations(list(servers.values()))))
    return HandWrittenFile(draw, first), first, msgspec.structs.replace(first, **changes)


def strip_trailing_space(text: str) -> str:
    return re.sub(r"(\s*# apart)*\s*\Z", "", text)


FIELDS = [field for field in Agent.__struct_fields__ if field != "name"]


@given(AGENTS)
def test_any_agent_that_is_saved_is_loaded_as_it_was(agent: Agent) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = AgentFiles(Path(directory))
        files.save(agent)
        assert encode_hooks_exactly(files.load("crab")) == encode_hooks_exactly(agent)


MANY = pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])


@pytest.mark.parametrize("count", [40, MANY])
def test_any_agent_can_be_saved_over_any_other(count: int) -> None:
    @hypothesis.settings(max_examples=count)
    @given(AGENTS, AGENTS)
    def check(first: Agent, second: Agent) -> None:
        with tempfile.TemporaryDirectory() as directory:
            files = AgentFiles(Path(directory))
            files.save(first)
            files.save(second)
            assert encode_hooks_exactly(files.load("crab")) == encode_hooks_exactly(second)

    check()


@pytest.mark.req("storage.agents")
@pytest.mark.parametrize("count", [40, MANY])
def test_unchanged_settings_stay_however_a_person_wrote_them(count: int) -> None:
    hypothesis.settings(max_examples=count)(check_unchanged_settings)()


@given(draw_revision(), st.sampled_from(["\n", "\r\n"]))
def check_unchanged_settings(revision: tuple[HandWrittenFile, Agent, Agent], eol: str) -> None:
    file, first, second = revision
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "crab.toml"
        before = file.text.replace("\n", eol).encode()
        path.write_bytes(before)
        files = AgentFiles(path.parent)
        assert encode_hooks_exactly(files.load("crab")) == encode_hooks_exactly(first)
        files.save(first)
        assert path.read_bytes() == before
        files.save(second)
        assert encode_hooks_exactly(files.load("crab")) == encode_hooks_exactly(second)
        after = path.read_bytes().decode().replace(eol, "\n")
    assert "id = 1979-05-27" in after
    assert "# The end." in after
    for key, statement in file.statements.items():
        if getattr(first, key) == getattr(second, key):
            assert strip_trailing_space(statement) in after
    for server in first.mcps:
        if server in second.mcps and server.name in file.servers:
            assert strip_trailing_space(file.servers[server.name]) in after
