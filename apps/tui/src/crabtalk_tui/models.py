"""crabtalk models: which there are, and which of them answers."""

from pathlib import Path

import click

from crabtalk.component.command import document, json_option, one_line, say, show

from .names import ModelName
from .options import daemon, home_option


@click.group(invoke_without_command=True)
@click.pass_context
def models(ctx: click.Context) -> None:
    """Which models there are, and which of them answers. Alone it lists them.

    \b
    Examples:
      crabtalk models
      crabtalk models use claude-sonnet-5
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(models_list, home=ctx.find_root().params.get("home"))


@models.command("list")
@home_option
@json_option
def models_list(home: Path | None, in_json: bool) -> None:
    """List the models that providers offer. `*` marks the one that answers.

    \b
    Examples:
      crabtalk models list
      crabtalk models list --json
    """
    with daemon(home) as client:
        found = client.list_models().models
    if in_json:
        document({"models": [{"name": each.name, "active": each.active} for each in found]})
    elif found:
        show("\n".join(f"{'*' if each.active else ' '} {one_line(each.name)}" for each in found))
    else:
        say("there is no model yet; `crabtalkd setup` helps with that")


@models.command("use")
@click.argument("name", type=ModelName())
@home_option
@json_option
def models_use(name: str, home: Path | None, in_json: bool) -> None:
    """Have the model NAME answer for agents that name none of their own.

    \b
    Example:
      crabtalk models use claude-sonnet-5
    """
    with daemon(home) as client:
        client.set_active_model(name)
    if in_json:
        document({"name": name, "active": True})
    else:
        say(f"{one_line(name)} answers from now on")
