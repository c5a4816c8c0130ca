"""Measurements. `make bench` runs them all and rewrites the tables in bench/README.md."""
