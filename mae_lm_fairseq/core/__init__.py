"""The network in pure PyTorch; imports neither fairseq nor transformers."""
