"""Experiments that were planned for one machine and one call."""
