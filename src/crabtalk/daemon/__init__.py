"""The daemon process: its home, configuration, listeners, startup, shutdown and request handlers.

This module imports nothing, so that `crabtalkd --version` does not load the engine.
"""
