"""SKILL.md files: their syntax, and where they are found."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.hooks import skill_files
from crabtalk.hooks.skill_files import MAX_FILE_BYTES, SkillFiles, parse_skill, read_skill
from crabtalk.hooks.skill_front_matter import SkillError

PDF = """\
---
name: pdf-forms
description: >-
  Fill in, merge and split PDF files. Use this skill when
  the user mentions a PDF, a form,
  or pages.

  Not for scanned documents.
license: Proprietary. LICENSE.txt has complete terms
compatibility: "Needs python 3.11, qpdf and the internet"
metadata:
  author: example-org   # who to ask
  version: "1.0"
allowed-tools: Bash(python:*) Bash(git add:*) Read
---

# PDF forms

Run `scripts/fill.py`; the fields are in [FORMS](references/FORMS.md).
"""


def build_skill_text(text: str) -> bytes:
    return f"---\nname: x\ndescription: d\n{text}\n---\nbody".encode()


def write_skill(root: Path, path: str, text: str = "") -> Path:
    """Write a skill below a root. Its name is that of the directory unless the text has another."""
    directory = root / path
    directory.mkdir(parents=True)
    name = directory.name
    (directory / "SKILL.md").write_text(
        text or f"---\nname: {name}\ndescription: does {name}\n---\nDo {name}.\n"
    )
    return directory


def scan_roots(*roots: Path) -> SkillFiles:
    files = SkillFiles([(root.name, root) for root in roots])
    files.scan()
    return files


@pytest.mark.req("skill.format")
def test_a_published_skill_is_read_whole(tmp_path: Path) -> None:
    directory = write_skill(tmp_path, "pdf-forms", PDF)
    (directory / "scripts").mkdir()
    (directory / "scripts" / "fill.py").write_text("print()")
    skill, body = read_skill(directory, "local")
    assert skill.name == "pdf-forms"
    assert skill.description == (
        "Fill in, merge and split PDF files. Use this skill when the user mentions a PDF, a form, "
        "or pages.\nNot for scanned documents."
    )
    assert skill.license == "Proprietary. LICENSE.txt has complete terms"
    assert skill.compatibility == "Needs python 3.11, qpdf and the internet"
    assert skill.metadata == {"author": "example-org", "version": "1.0"}
    assert skill.allowed_tools == ("Bash(python:*)", "Bash(git add:*)", "Read")
    assert (skill.directory, skill.source) == (directory, "local")
    assert body.startswith("# PDF forms\n\nRun `scripts/fill.py`")


@pytest.mark.req("skill.format")
@pytest.mark.parametrize("name", ["a", "a-b", "1-2-3", "x" * 64, "'quoted'", '"quoted"'])
def test_valid_names_are_accepted(name: str) -> None:
    skill, _ = parse_skill(f"---\nname: {name}\ndescription: d\n---\n".encode())
    assert skill.name == name.strip("'\"")


@pytest.mark.req("skill.format")
@pytest.mark.parametrize(
    "name", ["", "A", "a b", "-a", "a-", "a--b", "a_b", "a/b", "..", "é", "x" * 65, "[a]", "|"]
)
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(SkillError):
        parse_skill(f"---\nname: {name}\ndescription: d\n---\n".encode())


@pytest.mark.req("skill.format")
@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "must start"),
        (b"# Just a page", "must start"),
        (b"---\nname: x\ndescription: d\n", "must start"),
        (b"name: x\n---\ndescription: d\n---\n", "must start"),
        (b"---\ndescription: d\n---\n", "name"),
        (b"---\nname: x\n---\n", "description is missing"),
        (b"---\nname: x\ndescription:\n---\n", "description is missing"),
        (b"---\nname: x\ndescription: ''\n---\n", "description is missing"),
        (b"---\nname: x\ndescription: %s\n---\n" % (b"d" * 1025), "1024"),
        (build_skill_text("compatibility: " + "c" * 501), "500"),
        (build_skill_text("license: [MIT]"), "license must be text"),
        (build_skill_text("metadata: words"), "metadata must be a map"),
        (build_skill_text("allowed-tools:\n  a: b"), "allowed-tools must be a list"),
        (build_skill_text("allowed-tools: Bash(git"), "parenthesis"),
        (build_skill_text("metadata:\n  a: " + "a" * 20_000), "16384"),
        (build_skill_text("\n" * 600), "500 lines"),
        (build_skill_text("") + b"\xff", "UTF-8"),
        (build_skill_text("") + b"\0", "NUL"),
        (build_skill_text("") + b"x" * MAX_FILE_BYTES, "more than 262144 bytes"),
    ],
)
def test_an_error_names_the_problem(data: bytes, word: str) -> None:
    with pytest.raises(SkillError, match=word):
        parse_skill(data)


@pytest.mark.req("skill.format")
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n", "\ufeff\r\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_line_ends_are_accepted(start: str, end: str) -> None:
    lines = ["---", "name: x", "description: |", "  one", "  two", "---  ", "", " ", "a", "b", ""]
    skill, body = parse_skill((start + end.join(lines)).encode())
    assert (skill.description, body) == ("one\ntwo", "a\nb")


@pytest.mark.req("skill.format")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain words", "plain words"),
        ("plain # comment", "plain"),
        ("a#b", "a#b"),
        ("use when: always", "use when: always"),
        ("http://x", "http://x"),
        ("-5", "-5"),
        ("true", "true"),
        ("~", ""),
        ("null", ""),
        ("'it''s' # c", "it's"),
        ("'it''\n  s'", "it' s"),
        ("'back\\slash'", "back\\slash"),
        (r'"a \"b\" \\ \n \t \x41 é \U0001F980"', 'a "b" \\ \n \t A é 🦀'),
        ('"a # b"', "a # b"),
        ("one\n  two\n\n  three # c", "one two\nthree"),
        ("one\n\n# c", "one"),
        ("one\n  # c", "one"),
        ('"one\n  two\n\n\n  three"', "one two\n\nthree"),
        ("'one\n  # two'", "one # two"),
        ("|\n  a\n   b\n\n  c\n\n", "a\n b\n\nc\n"),
        ("|-\n  a\n\n", "a"),
        ("|+\n  a\n\n", "a\n\n\n"),
        ("|2-\n   a", " a"),
        ("|-2\n   a", " a"),
        ("| # c\n  # a", "# a\n"),
        (">\n  a\n  b\n\n  c", "a b\nc\n"),
        (">-\n  a\n    b\n  c", "a\n  b\nc"),
        (">+\n  a\n\n", "a\n\n\n"),
        ("|\n\n", ""),
        ("", ""),
        ("# c", ""),
    ],
)
def test_scalars(text: str, value: str) -> None:
    """Parse a scalar inside a map, where it is not trimmed."""
    inside = text.replace("\n", "\n  ") if "\n" in text else text
    skill, _ = parse_skill(build_skill_text(f"metadata:\n  k: {inside}"))
    assert skill.metadata == {"k": value}


@pytest.mark.req("skill.format")
@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("Read, Edit,Grep", ("Read", "Edit", "Grep")),
        ("Read Edit", ("Read", "Edit")),
        ("", ()),
        ("[]", ()),
        ("[a, 'b, c', \"d\",] # e", ("a", "b, c", "d")),
        ("[\n  a,\n  b\n]", ("a", "b")),
        ("\n  - a # b\n\n  # c\n  - 'd: e'", ("a", "d: e")),
        ("\n- a\n- Bash(git:*)", ("a", "Bash(git:*)")),
        ("|\n  a\n  b", ("a", "b")),
    ],
)
def test_lists(text: str, tools: tuple[str, ...]) -> None:
    assert parse_skill(build_skill_text(f"allowed-tools: {text}"))[0].allowed_tools == tools


@pytest.mark.req("skill.format")
@pytest.mark.parametrize(
    "text",
    [
        "k: &anchor a",
        "k: *alias",
        "k: !!python/object:os.system a",
        "k: {a: b}",
        "k: [a, [b]]",
        "k: [a: b]",
        "k: [a",
        "k: [a] b",
        "k: [a b # c]",
        "k: [, a]",
        "k: ['a' 'b']",
        "k: 'a",
        "k: 'a' b",
        'k: "a',
        'k: "a \\q"',
        'k: "a\\\n  b"',
        'k: "\\ud800"',
        'k: "\\U00110000"',
        'k: "\\x00"',
        "k: \x1b[0m",
        "k: |x\n  a",
        "k: |\n    a\n  b",
        "k: - a",
        "k: ? a",
        "k: @a",
        "k: a\n  b: c",
        "k: a # b\n  c",
        "k:\n  - a: b",
        "k:\n  - - a",
        "k:\n  -",
        "k:\n  - a\n - b",
        "k:\n  a: b\n   c: d",
        "k:\n  a:\n    b: c",
        "k:\n  a: [b]",
        "k:\n  a: b\n  a: c",
        "k:\n\ta: b",
        "k: a\nk: b",
        "name: y",
        "  k: a",
        "k:a",
        "just words",
        "? k",
        "...",
        "k: a\x00",
    ],
)
def test_unsupported_yaml_is_an_error(text: str) -> None:
    with pytest.raises(SkillError):
        parse_skill(build_skill_text(text))


@pytest.mark.req("skill.format")
@given(st.binary())
def test_any_bytes_are_a_skill_or_an_error(data: bytes) -> None:
    for whole in (data, b"---\n" + data + b"\n---\n"):
        with suppress(SkillError):
            parse_skill(whole)


PIECES = ["a", " ", "  ", "\n", "\n  ", "\n- ", ": ", "k:", "'", '"', "\\", "[", "]", ",", "|", ">"]


@pytest.mark.req("skill.format")
@given(st.lists(st.sampled_from([*PIECES, "-", "+", "2", "#", "\t", "{", "\r", "\x85", "\u2028"])))
def test_any_front_matter_is_parsed_or_an_error(pieces: list[str]) -> None:
    try:
        skill, body = parse_skill(build_skill_text("k: " + "".join(pieces)))
    except SkillError:
        return
    assert (skill.name, skill.description, body[-4:]) == ("x", "d", "body")


@pytest.mark.req("skill.format")
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=200))
def test_quoted_text_round_trips(text: str) -> None:
    single = text.replace("'", "''")
    double = text.replace("\\", "\\\\").replace('"', '\\"')
    skill, _ = parse_skill(build_skill_text(f"metadata:\n  s: '{single}'\n  d: \"{double}\""))
    assert skill.metadata == {"s": text, "d": text}


@pytest.mark.req("skill.discovery")
def test_skills_are_found_in_categories_but_not_in_hidden_directories(tmp_path: Path) -> None:
    write_skill(tmp_path, "one")
    write_skill(tmp_path, "web/two")
    write_skill(tmp_path, "web/deep/three")
    write_skill(tmp_path, ".git/four")
    write_skill(tmp_path, "web/.cache/five")
    write_skill(tmp_path, "one/assets/template")  # directories inside a skill are not searched
    (tmp_path / "web" / "README.md").write_text("no skill")
    assert list(scan_roots(tmp_path).skills) == ["one", "two", "three"]


@pytest.mark.req("skill.discovery")
def test_a_root_may_be_a_skill_and_hold_others(tmp_path: Path) -> None:
    root = write_skill(tmp_path, "all")
    write_skill(root, "one")
    assert list(scan_roots(root).skills) == ["all", "one"]


@pytest.mark.req("skill.discovery")
def test_the_first_root_wins_and_the_other_skill_is_reported_once(tmp_path: Path) -> None:
    first = write_skill(tmp_path, "local/same")
    second = write_skill(tmp_path, "claude/same")
    write_skill(tmp_path, "claude/other")
    roots = [("local", tmp_path / "local"), ("claude", tmp_path / "claude"), ("no", tmp_path / "n")]
    files = SkillFiles(roots)
    (warning,) = files.scan()
    assert str(first) in warning
    assert str(second) in warning
    found = {name: skill.source for name, skill in files.skills.items()}
    assert found == {"same": "local", "other": "claude"}
    assert files.scan() == []  # each warning is reported once


@pytest.mark.req("skill.discovery")
def test_a_broken_skill_is_skipped_with_a_warning(tmp_path: Path) -> None:
    write_skill(tmp_path, "bad", "no head")
    write_skill(tmp_path, "good")
    (tmp_path / "odd" / "SKILL.md").mkdir(parents=True)
    files = SkillFiles([("local", tmp_path)])
    warnings = files.scan()
    assert list(files.skills) == ["good"]
    assert [name in text for name, text in zip(["bad", "odd"], warnings, strict=True)] == [True] * 2


@pytest.mark.req("skill.discovery")
def test_a_name_that_differs_from_the_directory_is_a_warning(tmp_path: Path) -> None:
    write_skill(tmp_path, "Some Folder", "---\nname: tidy\ndescription: d\n---\n")
    files = SkillFiles([("local", tmp_path)])
    (warning,) = files.scan()
    assert "should be named tidy" in warning
    assert list(files.skills) == ["tidy"]


@pytest.mark.req("skill.discovery")
def test_links_are_followed_but_cycles_are_not(tmp_path: Path) -> None:
    outside = write_skill(tmp_path, "elsewhere/linked")
    root = tmp_path / "root"
    write_skill(root, "category/one")
    (root / "category" / "up").symlink_to(root)
    (root / "linked").symlink_to(outside)
    (root / "self").symlink_to(root / "self")
    (root / "gone").symlink_to(root / "nowhere")
    files = scan_roots(root)
    assert sorted(files.skills) == ["linked", "one"]
    assert files.warnings == ()


@pytest.mark.req("skill.discovery")
def test_a_pipe_does_not_block_the_scan(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    (warning,) = scan_roots(tmp_path).warnings
    assert "not a file" in warning


@pytest.mark.req("skill.bounds")
def test_depth_is_bounded(tmp_path: Path) -> None:
    write_skill(tmp_path, "1/2/3/4/5/6/7/eighth")
    write_skill(tmp_path, "1/2/3/4/5/6/7/8/ninth")
    assert list(scan_roots(tmp_path).skills) == ["eighth"]


@pytest.mark.req("skill.bounds")
def test_numbers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        write_skill(tmp_path, name)
    monkeypatch.setattr(skill_files, "MOST_SKILLS", 3)
    files = scan_roots(tmp_path)
    assert list(files.skills) == ["a", "b", "c"]
    assert "more than 3 skills" in files.warnings[-1]
    monkeypatch.setattr(skill_files, "MOST_DIRECTORIES", 3)  # the root is one of them
    files = scan_roots(tmp_path)
    assert list(files.skills) == ["a", "b"]
    assert "too many directories" in files.warnings[-1]


@pytest.mark.req("skill.fresh")
def test_a_scan_sees_what_changed(tmp_path: Path) -> None:
    directory = write_skill(tmp_path, "one")
    files = scan_roots(tmp_path)
    before = files.skills["one"]
    files.scan()
    assert files.skills["one"] is before  # not read again
    (directory / "SKILL.md").write_text("---\nname: one\ndescription: another\n---\n")
    write_skill(tmp_path, "two")
    files.scan()
    found = {name: skill.description for name, skill in files.skills.items()}
    assert found == {"one": "another", "two": "does two"}
    (directory / "SKILL.md").unlink()
    files.scan()
    assert list(files.skills) == ["two"]
