#!/usr/bin/env python3
"""Prepare the data of the main-sentence experiment: a data-bin, four tasks of GLUE and UPOS in one compressed file.

Example:
    mae-lm prepare --train train.txt --valid valid.txt --vocab-size 8000 --destdir data-bin
    scripts/experiments/prepare_main_sentence.py --data-bin data-bin --glue glue --ewt ewt --data main-sentence-data
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # neither this package nor scripts/ need be installed

from experiments.sentence_data import BOS, EOS, FILE, LENGTH, Data, Rows, make_rows, save, sequences  # noqa: E402
from mae_lm_fairseq.finetuning.sentences.encoding import join, truncate  # noqa: E402
from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles  # noqa: E402
from mae_lm_fairseq.finetuning.sentences.tasks import find_task  # noqa: E402
from mae_lm_fairseq.measures.probe import first_subwords  # noqa: E402
from mae_lm_fairseq.text.conllu import LabelledSentence, read_conllu  # noqa: E402
from mae_lm_fairseq.text.data_bin import read_lines  # noqa: E402
from mae_lm_fairseq.text.tokenizer import Tokenizer  # noqa: E402
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer  # noqa: E402
from mae_lm_fairseq.utils.command_line import Directory, Options, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import errors_end_the_program  # noqa: E402

HELD_OUT = 5000
"""Training rows of SST-2 that become further test rows."""


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Options of the preparation.

    Attributes:
        data_bin: what mae-lm prepare wrote, with the sets train and valid.
        glue: directory with CoLA, RTE, SST-2 and STS-B.
        ewt: directory with en_ewt-ud-{train,dev,test}.conllu.xz.
        data: directory for the result.
    """

    data_bin: Directory
    glue: Directory
    ewt: Directory
    data: Directory


def main(options: PrepareOptions) -> None:
    """Prepare the data."""
    tokenizer = open_tokenizer(options.data_bin)
    corpus = {}
    for name in ("train", "valid"):
        corpus[name] = sequences(np.concatenate([tokens for tokens, _ in read_lines(options.data_bin / name)]))
    tasks = {name: _glue(name, tokenizer, options.glue) for name in ("SST-2", "CoLA", "STS-B", "RTE")}
    tasks["SST-2"] = _hold_out(**tasks["SST-2"])
    tasks["UPOS"] = _upos(tokenizer, options.ewt)
    save(options.data, Data(tokenizer.mask + 1, **corpus, tasks=tasks))
    size = (options.data / FILE).stat().st_size
    print(f"{options.data / FILE}: {size / 2**20:.1f} MiB, {corpus['train'].size:,} training tokens")


def _glue(name: str, tokenizer: Tokenizer, directory: Path) -> dict[str, Rows]:
    """Return the training set, and the development set as ``test``."""
    task, sets = find_task(name), {}
    for split, ours in (("train", "train"), ("valid", "test")):
        rows = GlueFiles(task, directory).read(split)
        columns = [tokenizer.encode_lines(list(column)) for column in zip(*rows.sentences, strict=True)]
        texts = [join(truncate(sample, LENGTH)) for sample in zip(*columns, strict=True)]
        sets[ours] = make_rows(texts, [task.to_unit(x) if task.is_regression else x for x in rows.labels])
    return sets


def _hold_out(train: Rows, test: Rows) -> dict[str, Rows]:
    """Move random training rows to the end of the test rows."""
    chosen = np.zeros(len(train), dtype=bool)
    chosen[np.random.default_rng(0).choice(len(train), HELD_OUT, replace=False)] = True
    kept, moved = ([(*train.text(row),) for row in np.flatnonzero(part)] for part in (~chosen, chosen))
    moved = [*(test.text(row) for row in range(len(test))), *moved]
    return {
        name: make_rows([text for text, _ in rows], [float(label[0]) for _, label in rows])
        for name, rows in (("train", kept), ("test", moved))
    }


def _upos(tokenizer: Tokenizer, directory: Path) -> dict[str, Rows]:
    names = ("train", "dev", "test")
    sentences = {name: read_conllu(directory / f"en_ewt-ud-{name}.conllu.xz", "UPOS") for name in names}
    classes = sorted({label for sentence in sentences["train"] for label in sentence.labels})
    return {name: _labelled(tokenizer, of_set, classes) for name, of_set in sentences.items()}


def _labelled(tokenizer: Tokenizer, sentences: list[LabelledSentence], classes: list[str]) -> Rows:
    """Return sentences with the label of each word at its first subword."""
    texts, labels = [], []
    for sentence in sentences:
        ids, spans = tokenizer.encode_with_offsets(sentence.text)
        text = np.array([BOS, *ids, EOS])
        of_tokens = np.full(len(text), -1)
        for index, label in zip(first_subwords(spans, sentence.starts), sentence.labels, strict=True):
            if index < len(ids) and label in classes:
                of_tokens[1 + index] = classes.index(label)
        texts.append(text[:LENGTH])
        labels.append(of_tokens[:LENGTH])
    return make_rows(texts, labels)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(PrepareOptions, sys.argv[1:], __doc__, "prepare_main_sentence.py"))
