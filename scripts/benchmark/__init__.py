"""Speed benchmarks of mae_lm_fairseq and its peers, used by the scripts named benchmark."""
