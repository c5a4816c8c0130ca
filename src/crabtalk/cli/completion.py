"""crabtalk completions: print the shell script that completes commands, options and names."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completions(shell: str) -> None:
    """Print what makes Tab complete commands, options and the names of agents.

    \b
    Examples:
      eval "$(crabtalk completions bash)"
      crabtalk completions zsh > ~/.zfunc/_crabtalk
      crabtalk completions fish > ~/.config/fish/completions/crabtalk.fish
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    from .main import main

    completers = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}
    click.echo(completers[shell](main, {}, "crabtalk", "_CRABTALK_COMPLETE").source(), nl=False)
