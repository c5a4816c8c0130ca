"""The MCP host: the separate process that runs the MCP SDK for the daemon."""
