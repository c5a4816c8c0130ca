"""crabtalk doctor: what is wrong, and the command that mends it."""

from pathlib import Path

import click

from crabtalk.component.command import document, json_option, show, styled, table, visible

from .checks import Finding, examined
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

    from .daemon_checks import questioned

    root = home if home is not None else default_home()
    findings = list(examined(root))
    findings += questioned(root, findings)
    is_well = all(finding.level != "fail" for finding in findings)
    if in_json:
        document({"home": str(root), "ok": is_well, "findings": [as_json(f) for f in findings]})
    else:
        show(table([row(finding) for finding in findings]))
    ctx.exit(0 if is_well else 1)


def as_json(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level,
        "what": finding.what,
        "text": finding.text,
        "mend": finding.mend,
    }


def row(finding: Finding) -> tuple[str, ...]:
    text = f"{finding.text}  → {finding.mend}" if finding.mend else finding.text
    return styled(f"{finding.level:<4}", fg=COLOURS[finding.level]), finding.what, visible(text)
