"""Pretrain MAE-LM and the RoBERTa preset on the same text, and write a report that compares them.

Writes OUT/report.md, OUT/results.json, figures, and OUT/models with a bundle of each model. Takes about ten minutes on
two CPU cores. Started again, it resumes.

Examples:
    mae-lm quickstart
    mae-lm quickstart --smoke --out quickstart-smoke
"""

from mae_lm_fairseq.study.options import QuickstartOptions as Options
from mae_lm_fairseq.utils.errors import needs_extra


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.quickstart import quickstart
    from mae_lm_fairseq.utils.locks import directory_lock
    from mae_lm_fairseq.utils.signals import signals_as_errors

    with needs_extra("analysis"):
        import matplotlib  # noqa: F401  before long work that ends in figures

    with signals_as_errors(), directory_lock(options.directory):
        quickstart(options)
