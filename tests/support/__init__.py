"""Helpers shared by several test modules."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Root directory of the checkout."""
