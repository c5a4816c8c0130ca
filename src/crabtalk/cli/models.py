"""crabtalk models: list the models and choose the active one."""

from pathlib import Path

import click

from crabtalk.service.command_line import (
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .name_completion import ModelName
from .options import connect_daemon, home_option


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
    with connect_daemon(home) as client:
        models = client.list_models().models
    if in_json:
        print_json({"models": [{"name": model.name, "active": model.active} for model in models]})
    elif models:
        print_output(
            "\n".join(
                f"{'*' if model.active else ' '} {to_one_line(model.name)}" for model in models
            )
        )
    else:
        print_to_stderr("there is no model yet; `crabtalkd setup` helps with that")


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
    with connect_daemon(home) as client:
        client.set_active_model(name)
    if in_json:
        print_json({"name": name, "active": True})
    else:
        print_to_stderr(f"{to_one_line(name)} answers from now on")
