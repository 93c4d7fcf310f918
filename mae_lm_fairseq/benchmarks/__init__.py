"""Speed benchmarks of this package and its peers, used by the scripts named benchmark."""
