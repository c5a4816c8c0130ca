"""How a program ends: in 0, in 1 with a sentence, in 2 for words it does not know, in 130 for
Ctrl+C. A reader who has seen enough is no failure; a disk that is full is one, and is told.
"""

import os
import sys
from pathlib import Path
from typing import Any

import click

from .output import print_to_stderr, to_one_line


class CommandGroup(click.Group):
    """Named as the program is, which begins its complaints."""

    def explain_error(self, error: Exception) -> str | None:
        """One sentence that ends in what to do next; None for what is a fault of the program, and
        deserves a traceback."""
        return str(error) if isinstance(error, OSError) else None

    def main(self, *args: Any, **extra: Any) -> Any:
        ensure_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # of the help, which is printed before anything is invoked
            discard_output()
            print_to_stderr(f"{self.name}: {describe_output_error(error)}")
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read our output has seen enough
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
    """A stream that was closed before we began is one that nobody reads."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def flush_output() -> str | None:
    """Why what was printed did not arrive, if it did not; then nothing more is printed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard_output()
        return describe_output_error(error)
    return None


def describe_output_error(error: OSError) -> str:
    return f"the output cannot be written: {error.strerror}; send it elsewhere"


def discard_output() -> None:
    """What is still buffered goes nowhere, instead of failing when the interpreter flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
