"""Web search as a component: what the web says about a question, and what a page says."""

__version__ = "0.1.0"
