"""Training speed of this package and of its peers: everything behind scripts/benchmark.py."""
