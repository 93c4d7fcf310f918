"""The network in pure PyTorch: neither fairseq nor transformers is imported here."""
