"""The stages of the day-one programme, :mod:`benchmark.gpu_day_one`.

A stage is a module with ``measurements(scale, work)``: names, and functions that measure and return values for JSON.
"""
