"""Training processes of a benchmark, one for each subject; :mod:`.worker` is the program.

It runs as a script and imports its siblings by their bare names: importing this package would register our models with
the fairseq that the process finds, which may be the authors' copy.
"""
