from mae_lm_fairseq import register

register()  # so that importing a module of this package directly patches fairseq, too
