"""The `crabup` command: programs and packages installed, services kept alive."""

__version__ = "0.1.0"
