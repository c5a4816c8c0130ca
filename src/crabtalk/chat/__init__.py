"""The chat that `crabtalk` opens at a terminal. Imported only then, because it is slow to load.

Its values are named tuples: as dataclasses, eighteen of them would add 10 ms to opening the chat.
"""
