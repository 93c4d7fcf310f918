"""Stand-in for torch while fairseq is compiled: its setup.py imports ``torch.utils.cpp_extension`` and nothing else.

``scripts/install.sh`` puts it on the path for that one step. Those of fairseq's extensions that include torch's headers
take minutes to compile: ``libnat`` (non-autoregressive translation), ``libbase`` (BASE layers) and an example's. This
project needs none of them, and fairseq names the missing one if something else does.
"""
