"""Metrics of the tasks that models are fine-tuned on."""
