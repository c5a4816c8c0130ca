"""The process: home, configuration, doors, life and death, and the Server behind them.

Nothing is imported here: `crabtalkd --version` should not pay for the engine.
"""
