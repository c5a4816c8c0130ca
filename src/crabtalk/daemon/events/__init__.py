"""The feed of events to clients, and the event bus between agents with its subscriptions."""
