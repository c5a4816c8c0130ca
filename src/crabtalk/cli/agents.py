"""crabtalk agents: list, create, edit, fork and remove agents.

Each agent is a file that the daemon writes.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    escape_controls,
    format_table,
    get_line_width,
    json_option,
    measure_width,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .agent_file import read_agent_file, read_prompt
from .agent_permissions import agents_explain
from .agent_toml import parse_agent, render_agent, require_json_values
from .confirmation import require_confirmation, yes_option
from .errors import CommandError
from .memory_sources import explain_not_found
from .name_completion import AgentName, ModelName
from .options import connect_daemon, format_command, home_option

if TYPE_CHECKING:
    from crabtalk.protocol import wire

LIST_HINT = "`crabtalk agents list` has the names"
EDIT_HEADER = """\
# {name}, as it is. Save and close to change it; close it as it is to leave it so.
# What is left out has its default; a prompt that is left out stays. So does a secret that is left
# as ********. Comments are not taken over from here; those in agents/{name}.toml stay.

"""

name_argument = click.argument("name", type=AgentName())
text_file = click.File("r", encoding="utf-8")
config_option = click.option(
    "--config",
    type=text_file,
    metavar="FILE",
    help="Settings in TOML or JSON; - is standard input.",
)


@click.group()
def agents() -> None:
    """Who there is, and what they are.

    \b
    Examples:
      crabtalk agents list
      crabtalk agents create scout --prompt "You look things up. Be brief."
      crabtalk agents edit scout
      crabtalk agents explain scout --sender tg:1
      crabtalk agents fork scout twin
      crabtalk agents rm twin
    """


@agents.command("list")
@home_option
@json_option
def agents_list(home: Path | None, in_json: bool) -> None:
    """List agents, their models, and what they are for.

    \b
    Examples:
      crabtalk agents list
      crabtalk agents list --json
    """
    with connect_daemon(home) as client:
        agents = client.list_agents().agents
    if in_json:
        print_json({"agents": [agent_to_json(agent) for agent in agents]})
    elif agents:
        print_output(format_agent_list(agents))
    else:
        print_to_stderr("there are no agents; `crabtalk agents create` makes one")


@agents.command("show")
@name_argument
@home_option
@json_option
def agents_show(name: str, home: Path | None, in_json: bool) -> None:
    """Print an agent as TOML: every setting, its prompt, its MCP servers.

    Secrets are masked. `edit --config` takes it back.

    \b
    Examples:
      crabtalk agents show crab
      crabtalk agents show crab --json
    """
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        info = client.get_agent(name)
    prompt = read_prompt(home, name)
    if in_json:
        print_json({**agent_to_json(info), "prompt": prompt})
        return
    page = render_agent(json.loads(info.config), prompt)
    if sys.stdout.isatty():
        print_output(escape_controls(page, layout=True).rstrip("\n"))
    else:
        click.echo(page.encode(), nl=False)


@agents.command("create")
@click.argument("name")
@click.option("--prompt", metavar="TEXT", help="What it is told before everything else.")
@click.option(
    "--prompt-file", type=text_file, metavar="FILE", help="The same; - is standard input."
)
@config_option
@click.option("--model", type=ModelName(), help="The model it asks, if not the active one.")
@click.option("--description", metavar="TEXT", help="What people and other agents are shown.")
@home_option
@json_option
def agents_create(
    name: str,
    prompt: str | None,
    prompt_file: Any,
    config: Any,
    model: str | None,
    description: str | None,
    home: Path | None,
    in_json: bool,
) -> None:
    """Make a new agent.

    \b
    Examples:
      crabtalk agents create scout --prompt "You look things up. Be brief."
      crabtalk agents create scout --prompt-file scout.md --model qwen3
      crabtalk agents show crab | crabtalk agents create twin --config -
    """
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("say either --prompt or --prompt-file")
    if prompt_file is not None and config is not None and prompt_file.name == config.name:
        raise click.UsageError("--prompt-file and --config cannot both be the same file")
    settings, config_prompt = parse_agent(read_text(config)) if config is not None else ({}, None)
    if prompt_file is not None:
        prompt = read_text(prompt_file)
    if prompt is None:
        prompt = config_prompt
    if prompt is None:
        raise click.UsageError(
            "say what it is told: --prompt, --prompt-file, or prompt in --config"
        )
    options = {"model": model, "description": description}
    settings |= {key: value for key, value in options.items() if value is not None}
    with connect_daemon(home) as client:
        info = client.create_agent(name, prompt, settings)
    if ignored := settings.keys() - json.loads(info.config):
        print_to_stderr(
            f"no agent has {', '.join(sorted(map(to_one_line, ignored)))}, which was left out"
        )
    print_agent(info, f"created {to_one_line(name)}", in_json)


@agents.command("edit")
@name_argument
@config_option
@home_option
@json_option
def agents_edit(name: str, config: Any, home: Path | None, in_json: bool) -> None:
    """Change an agent in your editor ($VISUAL, $EDITOR), or to what a file says.

    What is wrong is said at the top, and you go on from what you wrote.

    \b
    Examples:
      crabtalk agents edit crab
      EDITOR=nano crabtalk agents edit crab
      crabtalk agents edit crab --config crab.toml
    """
    from .agent_revision import AgentRevision
    from .editor import InvalidEditError, edit_text

    revision = AgentRevision(home, name)
    if config is not None:
        try:
            revision.apply(read_text(config))
        except InvalidEditError as error:
            raise CommandError(str(error)) from None
    else:
        retry_command = format_command("agents edit", name, "", home)
        if not edit_text(
            EDIT_HEADER.format(name=name) + revision.toml, name, revision.apply, retry_command
        ):
            print_agent(revision.info, "nothing was changed", in_json)
            return
    print_agent(revision.info, f"changed {to_one_line(name)}", in_json)


@agents.command("rm")
@name_argument
@yes_option
@home_option
@json_option
def agents_rm(name: str, yes: bool, home: Path | None, in_json: bool) -> None:
    """Remove an agent. Its conversations and what it remembers stay.

    \b
    Examples:
      crabtalk agents rm twin
      crabtalk agents rm twin --yes
    """
    with connect_daemon(home) as client:
        with explain_not_found(LIST_HINT):
            client.get_agent(name)
        require_confirmation(f"Remove {to_one_line(name)}, its prompt and its settings?", yes)
        with explain_not_found(LIST_HINT):
            client.delete_agent(name)
    if in_json:
        print_json({"removed": name})
    else:
        print_to_stderr(f"removed {to_one_line(name)}")


@agents.command("rename")
@click.argument("old", type=AgentName())
@click.argument("new")
@home_option
@json_option
def agents_rename(old: str, new: str, home: Path | None, in_json: bool) -> None:
    """Give an agent another name.

    What it remembers goes along. Its conversations stay under the old name.

    \b
    Example:
      crabtalk agents rename twin scout
    """
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        info = client.rename_agent(old, new)
    print_agent(info, f"{to_one_line(old)} is {to_one_line(new)} now", in_json)


@agents.command("fork")
@name_argument
@click.argument("new")
@home_option
@json_option
def agents_fork(name: str, new: str, home: Path | None, in_json: bool) -> None:
    """Make NEW with the settings, prompt and MCP servers of NAME, secrets included.

    It has no memory and no conversations yet.

    \b
    Example:
      crabtalk agents fork crab twin
    """
    with connect_daemon(home) as client:
        with explain_not_found(LIST_HINT):
            info = client.get_agent(name)
        # The wire masks secrets; the agent's file has them, and this user may read it.
        file = read_agent_file(home, name)
        settings = {key: file[key] for key in json.loads(info.config) if key in file}
        require_json_values(settings)
        fork = client.create_agent(new, str(file.get("prompt", "")), settings)
    print_agent(fork, f"{to_one_line(new)} is what {to_one_line(name)} is", in_json)


agents.add_command(agents_explain)


def read_text(file: Any) -> str:
    try:
        text: str = file.read()
    except UnicodeDecodeError:
        raise CommandError(f"{file.name} is not UTF-8; convert it first") from None
    return text


def print_agent(info: "wire.AgentInfo", sentence: str, in_json: bool) -> None:
    if in_json:
        print_json(agent_to_json(info))
    else:
        print_to_stderr(sentence)


def agent_to_json(info: "wire.AgentInfo") -> dict[str, Any]:
    return {"name": info.name, **json.loads(info.config)}


def format_agent_list(agents: "Sequence[wire.AgentInfo]") -> str:
    """Render name, model and as much of the description as fits, one agent per row."""
    rows = [
        (to_one_line(agent.name), to_one_line(agent.model) or "(active model)") for agent in agents
    ]
    used = (
        max(measure_width(name) for name, _ in rows)
        + max(measure_width(model) for _, model in rows)
        + 4
    )
    room = max(20, get_line_width() - used)
    return format_table(
        [
            (*row, to_one_line(agent.description, room))
            for row, agent in zip(rows, agents, strict=True)
        ]
    )
