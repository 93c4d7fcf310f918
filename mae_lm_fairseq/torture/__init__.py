"""What happens to runs that are killed, starved and fed with rubbish; ``scripts/torture.py`` makes a table of it."""
