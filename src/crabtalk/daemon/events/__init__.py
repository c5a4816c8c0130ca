"""Events: the feed to clients, the event bus between agents, and their subscriptions."""
