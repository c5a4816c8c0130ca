"""The MCP host: the process beside the daemon that runs the MCP SDK."""
