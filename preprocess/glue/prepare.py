#!/usr/bin/env python3
"""Convert a local copy of GLUE to a data-bin for fairseq's sentence_prediction, with a pretraining run's tokenizer.

The copy has the official TSV layout (GLUE/CoLA/train.tsv) or that of the Hugging Face hub (GLUE/cola/train.parquet,
.jsonl or .json).
"""

import sys
from dataclasses import dataclass
from typing import Annotated

from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Options, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.output import configure_logging


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(Options):
    """Options of the program.

    Attributes:
        task: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI.
        glue_dir: local copy of GLUE.
        data_bin: data-bin of the pretraining run.
        out: output directory, which must not exist.
        max_positions: maximum sequence length of the checkpoint; longer sequences are truncated and counted.
        skip_malformed: drop malformed rows, except from test sets.
    """

    task: Annotated[str, Argument("TASK", positional=True)]
    glue_dir: Directory
    data_bin: Directory
    out: Directory
    max_positions: Count = 512
    skip_malformed: bool = False


def main(words: list[str]) -> None:
    """Run the program."""
    options = parse(PrepareOptions, words, __doc__, "prepare.py")
    configure_logging()
    from mae_lm_fairseq.finetuning.sentences.data_bin import write_data_bin
    from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles
    from mae_lm_fairseq.finetuning.sentences.tasks import find_task
    from mae_lm_fairseq.text.tokenizer_files import open_tokenizer

    files = GlueFiles(find_task(options.task), options.glue_dir, options.skip_malformed)
    statistics = write_data_bin(files, open_tokenizer(options.data_bin), options.max_positions, options.out)
    for split, counts in statistics["splits"].items():
        print(f"{split:7}" + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    with errors_end_the_program():
        main(sys.argv[1:])
