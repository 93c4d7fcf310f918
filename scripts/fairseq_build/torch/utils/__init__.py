"""Package of the only module that fairseq's setup.py imports."""
