"""Comparison of tensors, and of dictionaries and lists of tensors, which must have the same keys."""

import torch


def assert_equal(found, expected) -> None:
    """Check that they are equal, bit by bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_close(found, expected, tolerance: float) -> None:
    """Check that no element differs by more than a tolerance."""
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
