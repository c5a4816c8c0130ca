"""The chat: what `crabtalk` is at a terminal. Loaded when it opens, for it is heavy."""
