"""Shell rules: parses a command line and judges every simple command in it."""
