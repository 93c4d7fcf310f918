"""The processes that train, one for each subject of a benchmark: :mod:`.worker` is the program.

It runs as a script and imports its siblings by their bare names: importing this package would register our models
with whatever fairseq the process finds, which may be the authors' copy.
"""
