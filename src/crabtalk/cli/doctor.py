"""crabtalk doctor: report what is wrong, and for each finding the command that fixes it."""

from pathlib import Path

import click

from crabtalk.service.command_line import (
    apply_style,
    escape_controls,
    format_table,
    json_option,
    print_json,
    print_output,
)

from .home_checks import Finding, run_home_checks
from .options import home_option

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@home_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, home: Path | None, in_json: bool) -> None:
    """Look at home, daemon, database, models and MCP servers: what is wrong, what mends it.

    Changes nothing and starts nothing. Exits with 1 when something has failed.

    \b
    Examples:
      crabtalk doctor
      crabtalk doctor --json | jq '.findings[] | select(.level == "fail")'
    """
    from crabtalk.transport import default_home

    from .daemon_checks import run_daemon_checks

    root = home if home is not None else default_home()
    findings = list(run_home_checks(root))
    findings += run_daemon_checks(root, findings)
    is_well = all(finding.level != "fail" for finding in findings)
    if in_json:
        print_json(
            {"home": str(root), "ok": is_well, "findings": [finding_to_json(f) for f in findings]}
        )
    else:
        print_output(format_table([format_finding(finding) for finding in findings]))
    ctx.exit(0 if is_well else 1)


def finding_to_json(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level,
        "what": finding.what,
        "text": finding.text,
        "mend": finding.mend,
    }


def format_finding(finding: Finding) -> tuple[str, ...]:
    text = f"{finding.text}  → {finding.mend}" if finding.mend else finding.text
    return (
        apply_style(f"{finding.level:<4}", fg=COLOURS[finding.level]),
        finding.what,
        escape_controls(text),
    )
