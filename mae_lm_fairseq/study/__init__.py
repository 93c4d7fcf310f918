"""Comparison of models over seeds: a plan (TOML) is trained, measured, tested and reported."""
