"""Turn raw text into a tokenizer, dict.txt and a data-bin.

Text is UTF-8. In plain text, blank lines separate documents, and each file starts a new document. In JSON lines
(.jsonl, .jsonlines, .ndjson, .json), CSV, TSV and Parquet, a record is a document. All but Parquet may be compressed:
.gz, .xz, .bz2, .zst.

Examples:
    mae-lm prepare --train train.txt --valid valid.txt --vocab-size 16000 --destdir data-bin
    mae-lm prepare --train train.txt --valid valid.txt --tokenizer byte-bpe --vocab-size 16000 --destdir data-bin
"""

import sys

from mae_lm_fairseq.text.manifest import splits_table
from mae_lm_fairseq.text.moving import PARTS
from mae_lm_fairseq.text.preparation import prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions as Options
from mae_lm_fairseq.utils.signals import signals_as_errors


def main(options: Options) -> None:
    """Run the command."""
    with signals_as_errors():
        manifest = prepare(options)
        if manifest is None:
            print(f"the parts of this run are in {options.destdir / PARTS}; the command without --part merges all")
            return
    splits = manifest.splits
    fields = {name: vars(split) for name, split in splits.items()}
    print(splits_table(fields))
    if malformed := sum(split.malformed for split in splits.values()):
        print(f"skipped {malformed:,} malformed records")
    if lost := sum(split.lost_joiners for split in splits.values()):
        print(
            f"warning: the tokenizer drops {lost:,} zero-width joiners or non-joiners of this text, or makes spaces of "
            "them; --tokenizer byte-bpe keeps them",
            file=sys.stderr,
        )
    print(f"ready for fairseq-train: {':'.join(map(str, options.data_bins))}")
