"""Pretrain MAE-LM and the RoBERTa preset on the same text, and write a report that compares them.

Writes OUT/report.md, OUT/results.json and a figure. Takes about ten minutes on two CPU cores. Started again, it
resumes.

Examples:
    mae-lm quickstart
    mae-lm quickstart --smoke --out quickstart-smoke
"""

from dataclasses import replace

from mae_lm_fairseq.study.options import QuickstartOptions as Options


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.measures.figures import check_matplotlib
    from mae_lm_fairseq.quickstart import quickstart
    from mae_lm_fairseq.utils.locks import directory_lock
    from mae_lm_fairseq.utils.signals import signals_as_errors

    check_matplotlib()
    out, corpus = options.directory, options.corpus and options.corpus.resolve()
    with signals_as_errors(), directory_lock(out):
        quickstart(replace(options, corpus=corpus, out=out.resolve()))
