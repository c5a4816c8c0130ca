"""crabtalk agents: who there is, and what they are. Each is a file; the daemon writes it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    cells,
    document,
    json_option,
    line_width,
    one_line,
    say,
    show,
    table,
    visible,
)

from .agent_file import written, written_prompt
from .agent_page import must_be_plain, page_of, read_page
from .agent_permissions import agents_explain
from .agreement import must_agree, yes_option
from .complaints import CommandError
from .names import AgentName, ModelName
from .options import daemon, home_option, typed
from .stores import known

if TYPE_CHECKING:
    from crabtalk.protocol import wire

NAMES = "`crabtalk agents list` has the names"
HEAD = """\
# {name}, as it is. Save and close to change it; close it as it is to leave it so.
# What is left out has its default; a prompt that is left out stays. So does a secret that is left
# as ********. Comments are not taken over from here; those in agents/{name}.toml stay.

"""

name_argument = click.argument("name", type=AgentName())
page_type = click.File("r", encoding="utf-8")
config_option = click.option(
    "--config",
    type=page_type,
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
    with daemon(home) as client:
        found = client.list_agents().agents
    if in_json:
        document({"agents": [as_json(each) for each in found]})
    elif found:
        show(listing(found))
    else:
        say("there are no agents; `crabtalk agents create` makes one")


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
    with daemon(home) as client, known(NAMES):
        info = client.get_agent(name)
    prompt = written_prompt(home, name)
    if in_json:
        document({**as_json(info), "prompt": prompt})
        return
    page = page_of(json.loads(info.config), prompt)
    if sys.stdout.isatty():
        show(visible(page, layout=True).rstrip("\n"))
    else:
        click.echo(page.encode(), nl=False)


@agents.command("create")
@click.argument("name")
@click.option("--prompt", metavar="TEXT", help="What it is told before everything else.")
@click.option(
    "--prompt-file", type=page_type, metavar="FILE", help="The same; - is standard input."
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
    settings, own = read_page(text_of(config)) if config is not None else ({}, None)
    if prompt_file is not None:
        prompt = text_of(prompt_file)
    told = own if prompt is None else prompt
    if told is None:
        raise click.UsageError(
            "say what it is told: --prompt, --prompt-file, or prompt in --config"
        )
    given = {"model": model, "description": description}
    settings |= {key: value for key, value in given.items() if value is not None}
    with daemon(home) as client:
        made = client.create_agent(name, told, settings)
    if ignored := settings.keys() - json.loads(made.config):
        say(f"no agent has {', '.join(sorted(map(one_line, ignored)))}, which was left out")
    answer(made, f"created {one_line(name)}", in_json)


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
    from .agent_editing import ObjectionError, edit
    from .agent_revision import Revision

    revision = Revision(home, name)
    if config is not None:
        try:
            revision.apply(text_of(config))
        except ObjectionError as error:
            raise CommandError(str(error)) from None
    else:
        again = typed("agents edit", name, "", home)
        if not edit(HEAD.format(name=name) + revision.page, name, revision.apply, again):
            answer(revision.info, "nothing was changed", in_json)
            return
    answer(revision.info, f"changed {one_line(name)}", in_json)


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
    with daemon(home) as client:
        with known(NAMES):
            client.get_agent(name)
        must_agree(f"Remove {one_line(name)}, its prompt and its settings?", yes)
        with known(NAMES):
            client.delete_agent(name)
    if in_json:
        document({"removed": name})
    else:
        say(f"removed {one_line(name)}")


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
    with daemon(home) as client, known(NAMES):
        made = client.rename_agent(old, new)
    answer(made, f"{one_line(old)} is {one_line(new)} now", in_json)


@agents.command("fork")
@name_argument
@click.argument("new")
@home_option
@json_option
def agents_fork(name: str, new: str, home: Path | None, in_json: bool) -> None:
    """Make NEW with the settings, prompt and MCP servers of NAME, secrets included.

    It remembers nothing yet, and has spoken with nobody.

    \b
    Example:
      crabtalk agents fork crab twin
    """
    with daemon(home) as client:
        with known(NAMES):
            info = client.get_agent(name)
        # The wire masks secrets; the file, which is ours to read, has them.
        file = written(home, name)
        settings = {key: file[key] for key in json.loads(info.config) if key in file}
        must_be_plain(settings)
        made = client.create_agent(new, str(file.get("prompt", "")), settings)
    answer(made, f"{one_line(new)} is what {one_line(name)} is", in_json)


agents.add_command(agents_explain)


def text_of(file: Any) -> str:
    try:
        text: str = file.read()
    except UnicodeDecodeError:
        raise CommandError(f"{file.name} is not UTF-8; convert it first") from None
    return text


def answer(info: "wire.AgentInfo", sentence: str, in_json: bool) -> None:
    if in_json:
        document(as_json(info))
    else:
        say(sentence)


def as_json(info: "wire.AgentInfo") -> dict[str, Any]:
    return {"name": info.name, **json.loads(info.config)}


def listing(found: "Sequence[wire.AgentInfo]") -> str:
    """Name, model and as much of the description as fits."""
    rows = [(one_line(each.name), one_line(each.model) or "(active model)") for each in found]
    used = max(cells(name) for name, _ in rows) + max(cells(model) for _, model in rows) + 4
    room = max(20, line_width() - used)
    return table(
        [(*row, one_line(each.description, room)) for row, each in zip(rows, found, strict=True)]
    )
