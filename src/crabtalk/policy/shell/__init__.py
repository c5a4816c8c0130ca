"""Shell rules: parse a command line and judge every simple command in it."""
