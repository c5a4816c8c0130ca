"""crabtalk on the web: the session stream, its gateway and its relay."""

__version__ = "0.1.0"
