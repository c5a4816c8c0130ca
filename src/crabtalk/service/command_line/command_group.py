"""Exit codes of a program: 0, 1 with a sentence, 2 for unknown words, 130 for Ctrl+C.

A closed pipe is no failure, because the reader has seen enough; a full disk is one, and reported.
"""

import os
import sys
from pathlib import Path
from typing import Any

import click

from .output import print_to_stderr, to_one_line


class CommandGroup(click.Group):
    """A group of commands. Its name is the program's, and stands in front of error messages."""

    def explain_error(self, error: Exception) -> str | None:
        """One sentence that ends in what to do next; None for a bug, which needs a traceback."""
        return str(error) if isinstance(error, OSError) else None

    def main(self, *args: Any, **extra: Any) -> Any:
        ensure_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # from printing the help, which happens before invoke()
            discard_output()
            print_to_stderr(f"{self.name}: {describe_output_error(error)}")
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has seen enough
            discard_output()
            sys.exit(0)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            sentence = flush_output() or self.explain_error(error)
            if sentence is None:
                raise
            print_to_stderr(f"{self.name}: {to_one_line(sentence)}")
            sys.exit(1)


def ensure_streams() -> None:
    """Replace streams that were closed when the program started with /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def flush_output() -> str | None:
    """Flush standard output. Returns why it failed, if it did; then nothing more is printed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard_output()
        return describe_output_error(error)
    return None


def describe_output_error(error: OSError) -> str:
    return f"the output cannot be written: {error.strerror}; send it elsewhere"


def discard_output() -> None:
    """Send buffered output to /dev/null: the flush at exit would fail otherwise."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
