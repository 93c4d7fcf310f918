"""Training processes of a benchmark, one for each subject; :mod:`.worker` is the program.

It runs as a script and imports its siblings by their bare names. Modules that every subject imports do not import
``mae_lm_fairseq``: it would register our models with the fairseq of the process, which may be the authors' copy.
"""
