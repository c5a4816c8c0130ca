"""The chat: what `crabtalk` is at a terminal. Loaded when it opens, for it is heavy.

Its values are named tuples: as dataclasses, eighteen of them would take 10 ms more to open.
"""
