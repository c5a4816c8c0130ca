"""crabtalkd: the daemon's command line."""

import asyncio
import sys
from pathlib import Path

import click

from crabtalk import __version__
from crabtalk.transport import default_home

EXAMPLES = """\b
Examples:
  crabtalkd run
  crabtalkd run --home /tmp/crab --tcp off
"""


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="crabtalkd", message="%(prog)s %(version)s")
def main() -> None:
    """The agent daemon: owns the conversations, runs the agents, serves any client."""


@main.command(epilog=EXAMPLES)
@click.option(
    "--home",
    metavar="DIR",
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)
@click.option(
    "--tcp",
    metavar="ADDR|off",
    help="HOST:PORT to listen on beside the Unix socket  [default: 127.0.0.1:6688]",
)
def run(home: str | None, tcp: str | None) -> None:
    """Run in the foreground until Ctrl+C or SIGTERM."""
    from .config import ConfigError, load_config
    from .home import Home, HomeError
    from .process import StartError, serve
    from .server import DaemonServer

    if home == "":
        raise click.BadParameter(
            "it is empty; leave it out, or name a directory", param_hint="home"
        )
    place = Home(Path(home).expanduser() if home is not None else default_home())
    try:
        config = load_config(place.config, tcp=tcp)
        for word in config.unknown:
            say(f"crabtalkd: {place.config} has {word}, which means nothing here and is ignored")
        with place, asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(place, config, DaemonServer(), ready=say))
    except (HomeError, ConfigError, StartError) as error:
        say(f"crabtalkd: {error}")
        sys.exit(1)


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # where uvloop has no build, the standard loop does
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def say(sentence: str) -> None:
    click.echo(sentence, err=True)
