from mae_lm_fairseq import register

register()  # importing one of these modules by itself would leave fairseq without its patches
