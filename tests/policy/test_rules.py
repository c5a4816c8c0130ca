"""Permission rules: which calls a rule such as `edit(src/**)` matches, and which list wins."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from crabtalk.policy import (
    Decision,
    Mode,
    PermissionRequest,
    Permissions,
    Policy,
    ToolInScope,
    explain_permissions,
    parse_rule,
)
from crabtalk.policy.rules import find_covering_rules, find_matching_rule
from crabtalk.runtime import Run, ToolAccess, ToolDispatch
from crabtalk.storage import Agent, AgentError, Pair

CWD = Path("/work/project")


def build_request(
    tool: str, kind: str, target: str = "", arguments: str = "{}", **run: Any
) -> PermissionRequest:
    return PermissionRequest(
        ToolDispatch(tool, arguments, "c", "crab", "user", build_run(**run), CWD),
        (tool,),
        ToolAccess(kind, target),
    )


def build_run(
    origin: str = "user",
    mode: str = "",
    lineage: tuple[Agent, ...] = (),
    directories: tuple[Path, ...] | None = None,
) -> Run:
    """Only the attributes of a run that the policy uses."""
    run = SimpleNamespace(
        origin=origin,
        mode=mode,
        caller_agents=lineage,
        caller_directories=(CWD,) * len(lineage) if directories is None else directories,
        pair=Pair("crab", origin),
        cwd=CWD,
    )
    run.tree = SimpleNamespace(root=run)
    return cast("Run", run)


def build_agent(name: str = "crab", **settings: Any) -> Agent:
    return msgspec.structs.replace(Agent(name, "You are crab."), **settings)


def judge_request(agent: Agent, permission_request: PermissionRequest, **policy: Any) -> Decision:
    return Policy(**policy).judge_blocking(permission_request, agent).decision


@pytest.mark.req("permissions.rules")
@pytest.mark.parametrize(
    ("rule", "path", "is_about"),
    [
        ("edit(src/**)", "src/a.py", True),
        ("edit(src/**)", "src/deep/er/a.py", True),
        ("edit(src/**)", "/work/project/src/a.py", True),
        ("edit(src/**)", "tests/a.py", False),
        ("edit(src/**)", "src/../tests/a.py", False),
        ("edit(src/**)", "srcs/a.py", False),
        ("edit(src/*.py)", "src/a.py", True),
        ("edit(src/*.py)", "src/deep/a.py", False),
        ("edit(**/*.md)", "docs/deep/a.md", True),
        ("edit(/etc/**)", "/etc/passwd", True),
        ("edit(a.b)", "axb", False),
        ("edit", "anything", True),
        ("ed*", "anything", True),
        ("read(src/**)", "src/a.py", False),
    ],
)
def test_a_path_rule_matches_the_resolved_path(rule: str, path: str, is_about: bool) -> None:
    found = find_matching_rule([parse_rule(rule)], build_request("edit", "edit", path))
    assert (found is not None) == is_about


@pytest.mark.req("permissions.rules")
@pytest.mark.parametrize(
    ("rule", "url", "is_about"),
    [
        ("fetch(example.com)", "https://example.com/x", True),
        ("fetch(example.com)", "https://api.example.com/", True),
        ("fetch(example.com)", "https://example.com.evil.org/", False),
        ("fetch(example.com)", "https://notexample.com/", False),
        ("fetch(example.com)", "https://user@EXAMPLE.com:8443/", True),
        ("fetch(example.com)", "no address", False),
        ("mcp(web__*)", "https://example.com/", True),
        ("mcp(git__*)", "https://example.com/", False),
        ("mcp", "https://example.com/", True),
    ],
)
def test_mcp_rules_match_tools_and_fetch_rules_match_domains(
    rule: str, url: str, is_about: bool
) -> None:
    arguments = msgspec.json.encode({"url": url}).decode()
    permission_request = build_request("web__fetch", "mcp", "web__fetch", arguments)
    assert (find_matching_rule([parse_rule(rule)], permission_request) is not None) == is_about


@pytest.mark.req("permissions.rules")
def test_a_command_line_is_allowed_only_if_rules_cover_all_of_it() -> None:
    rules = [parse_rule("bash(git status:*)"), parse_rule("bash(ls)")]
    for line, is_covered in (
        ("git status --short", True),
        ("git status && ls", True),
        ("git status && rm -rf x", False),
        ("git status $(rm -rf x)", False),
        ("git statusx", False),
        ("git status > /etc/passwd", False),
        ("$X", False),
    ):
        assert (
            find_covering_rules(rules, build_request("bash", "shell", line)) is not None
        ) == is_covered, line


@pytest.mark.req("permissions.rules")
def test_a_deny_rule_matches_unreadable_commands() -> None:
    rules = [parse_rule("bash(git push:*)")]
    for line in ("git push", "sh -c 'git push origin'", "ls; env git push -f", "$X", "'"):
        assert find_matching_rule(rules, build_request("bash", "shell", line)) is not None, line
    assert find_matching_rule(rules, build_request("bash", "shell", "git status")) is None


@pytest.mark.req("permissions.order")
def test_deny_comes_before_ask_and_ask_before_allow_and_the_mode_decides_the_rest() -> None:
    everything = {"allow": ("edit(src/**)",), "ask": ("edit(src/b*)",), "deny": ("edit(src/c*)",)}
    careful = build_agent(permissions=everything, mode="ask")
    expected = {"src/a": Decision.ALLOW, "src/b": Decision.ASK, "src/c": Decision.DENY}
    for path, decision in expected.items():
        assert judge_request(careful, build_request("edit", "edit", path)) is decision
    assert judge_request(careful, build_request("edit", "edit", "other")) is Decision.ASK
    assert judge_request(build_agent(), build_request("edit", "edit", "other")) is Decision.ALLOW


@pytest.mark.req("permissions.order")
def test_always_overrides_ask_but_never_deny() -> None:
    asking = build_agent(approve=("edit", "bash"))
    always = {"remembered": lambda pair: ("edit(/work/project/a)", "bash(git push:*)")}
    assert judge_request(asking, build_request("edit", "edit", "a"), **always) is Decision.ALLOW
    assert judge_request(asking, build_request("edit", "edit", "b"), **always) is Decision.ASK
    assert (
        judge_request(asking, build_request("bash", "shell", "git push origin"), **always)
        is Decision.ALLOW
    )
    assert (
        judge_request(asking, build_request("bash", "shell", "git pull"), **always) is Decision.ASK
    )
    denying = build_agent(permissions={"deny": ("edit",)})
    assert judge_request(denying, build_request("edit", "edit", "a"), **always) is Decision.DENY


@pytest.mark.req("permissions.order")
def test_no_rule_allows_what_mode_plan_refuses() -> None:
    allowing = build_agent(permissions={"allow": ("edit", "bash")}, mode="plan")
    always = {"remembered": lambda pair: ("edit",)}
    assert judge_request(allowing, build_request("edit", "edit", "a"), **always) is Decision.DENY
    assert judge_request(allowing, build_request("bash", "shell", "rm x")) is Decision.DENY
    assert judge_request(allowing, build_request("read", "read", "a")) is Decision.ALLOW


@pytest.mark.req("permissions.always_narrow")
def test_an_older_always_for_all_of_bash_is_asked_again() -> None:
    asking = build_agent(approve=("bash",))
    older = {"remembered": lambda pair: ("bash",)}
    assert (
        judge_request(asking, build_request("bash", "shell", "rm -rf x"), **older) is Decision.ASK
    )


@pytest.mark.req("permissions.lineage")
def test_a_delegated_call_is_judged_for_every_calling_agent() -> None:
    free, careful = build_agent("free"), build_agent("careful", permissions={"deny": ("edit",)})
    permission_request = build_request("edit", "edit", "a", lineage=(careful, free))
    assert judge_request(free, permission_request) is Decision.DENY
    assert (
        judge_request(free, build_request("edit", "edit", "a", lineage=(free,))) is Decision.ALLOW
    )
    # Modes of delegates can only tighten the mode.
    strict = build_request("edit", "edit", "a", mode="plan", lineage=(free,))
    assert judge_request(build_agent("below", mode="auto"), strict) is Decision.DENY
    loose = build_request("edit", "edit", "a", mode="auto", lineage=(free,))
    assert judge_request(build_agent("below", mode="ask"), loose) is Decision.ASK


@pytest.mark.req("permissions.rules")
@pytest.mark.parametrize(
    "permissions",
    [
        {"allow": ("bash(",)},
        {"deny": ("",)},
        {"ask": ("edit()",)},
        {"allow": ("two words",)},
        {"forbid": ("edit",)},
        {"allow": ("bash(git * push)",)},
    ],
)
def test_an_invalid_permission_rule_is_refused_with_a_message(
    permissions: dict[str, tuple[str, ...]],
) -> None:
    with pytest.raises(AgentError, match=r"^permissions\."):
        Permissions.from_agent(build_agent(permissions=permissions))


@pytest.mark.req("permissions.lineage")
def test_a_task_in_a_folder_below_does_not_shift_the_paths_of_its_callers_rules() -> None:
    above = CWD.parent
    caller = build_agent("caller", permissions={"deny": ("read(project/**)",)})
    permission_request = build_request(
        "read", "read", "key", lineage=(caller,), directories=(above,)
    )
    assert judge_request(build_agent(), permission_request) is Decision.DENY
    # It does not widen the caller's rights either: this is not the caller's own folder `src`.
    caller = build_agent("caller", mode="ask", permissions={"allow": ("edit(src/**)",)})
    permission_request = build_request(
        "edit", "edit", "src/a", lineage=(caller,), directories=(above,)
    )
    editor = build_agent(permissions={"allow": ("edit",)})
    assert judge_request(editor, permission_request) is Decision.ASK
    permission_request = build_request(
        "edit", "edit", "src/a", lineage=(caller,), directories=(CWD,)
    )
    assert judge_request(editor, permission_request) is Decision.ALLOW


@pytest.mark.req("permissions.rules")
def test_a_path_rule_matches_if_one_of_its_folders_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for way in ("link", "real"):
        permission_request = build_request("read", "read", str(tmp_path / way / "key"))
        assert (
            find_matching_rule([parse_rule(f"read({tmp_path}/link/**)")], permission_request)
            is not None
        )
        assert (
            find_matching_rule([parse_rule(f"read({tmp_path}/lin*/**)")], permission_request)
            is None
        )


@pytest.mark.req("permissions.rules")
@pytest.mark.parametrize("rule", ["b*(git *)", "*(*)", "ed?t(src/**)", "[b]ash(ls)"])
def test_a_pattern_is_for_one_tool_so_that_no_command_is_matched_as_a_text(rule: str) -> None:
    with pytest.raises(ValueError, match="one rule for each tool"):
        parse_rule(rule)


@pytest.mark.req("permissions.rules")
def test_an_allowed_command_is_asked_about_with_variables_that_may_change_it() -> None:
    """Like `NAME=value command`."""
    crab = build_agent(mode="ask", permissions={"allow": ("bash(make test:*)",)})
    for env, decision in (
        ('{"LANG": "C"}', Decision.ALLOW),
        ('{"TESTS": "x"}', Decision.ASK),
        ('{"LANG": "C", "RIPGREP_CONFIG_PATH": "x"}', Decision.ASK),
    ):
        arguments = f'{{"command": "make test", "env": {env}}}'
        assert (
            judge_request(crab, build_request("bash", "shell", "make test", arguments)) is decision
        )


@pytest.mark.req("permissions.rules")
@pytest.mark.parametrize("url", ["evil.org/a//b", "", "//", "https:///x"])
def test_a_url_without_a_clear_host_may_be_any_domain(url: str) -> None:
    permission_request = build_request("fetch", "mcp", "", f'{{"url": "{url}"}}')
    assert find_matching_rule([parse_rule("fetch(evil.org)")], permission_request) is not None
    assert find_covering_rules([parse_rule("fetch(evil.org)")], permission_request) is None


@pytest.mark.req("cli.explain")
def test_an_explanation_agrees_with_the_verdict_of_a_call() -> None:
    """For each mode, with rules about the whole tool."""
    tools = [ToolInScope("edit", ("edit",), "edit", True), ToolInScope("x", ("x",), "other", True)]
    for rules in ({"allow": ("edit", "x")}, {"ask": ("edit", "x")}, {}):
        crab = build_agent(permissions=rules)
        for mode in Mode:
            found = explain_permissions(Policy(), crab, "user", mode, tools)
            for line, tool in zip(found.tools, tools, strict=True):
                permission_request = build_request(tool.name, tool.kind, "a", mode=mode.label)
                assert line.verdict == judge_request(crab, permission_request).label, (
                    rules,
                    mode,
                    line,
                )
    crab = build_agent(permissions={"strangers": ("bash(git log:*)",)})
    bash = ToolInScope("bash", ("bash",), "shell", True)
    for mode, verdict in ((Mode.AUTO, "allow"), (Mode.ASK, "ask"), (Mode.PLAN, "deny")):
        (line,) = explain_permissions(Policy(), crab, "tg:1", mode, [bash]).tools
        assert (line.verdict, "only bash(git log:*)" in line.reason) == (verdict, True)
