"""Data-bin of a sentence task for fairseq's ``sentence_prediction``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.finetuning.sentences.encoding import encode, sequence_length, truncate
from mae_lm_fairseq.finetuning.sentences.rows import Rows
from mae_lm_fairseq.finetuning.sentences.task_files import TaskFiles
from mae_lm_fairseq.finetuning.sentences.tasks import Task
from mae_lm_fairseq.text.data_bin import DICTIONARY, TASK, DataBinWriter, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.tokenizer import EOS, SPECIALS, Tokenizer
from mae_lm_fairseq.utils.directories import new_directory
from mae_lm_fairseq.utils.files import write_json, write_text
from mae_lm_fairseq.utils.hashes import write_hashes
from mae_lm_fairseq.utils.versions import OF_DATA, versions

DATA_BIN = "data-bin"
"""Subdirectory of ``--out`` with the prepared data."""


def write_data_bin(files: TaskFiles, tokenizer: Tokenizer, max_positions: int, destdir: Path) -> dict[str, Any]:
    """Write ``input0``, ``input1`` (pairs only), ``label``, ``task.json`` and hashes; return the statistics.

    A sequence is ``<s> A </s>`` or ``<s> A </s> </s> B </s>``. fairseq adds ``<s>`` and the ``</s>`` between the
    sentences (``--init-token 0 --separator-token 2``). With tokenizer, dictionary and the description of the task, the
    data-bin has all that a bundle of a fine-tuned checkpoint needs besides the checkpoint. For ``max_positions`` see
    :func:`~mae_lm_fairseq.finetuning.sentences.encoding.truncate`.

    Raises:
        UserError: if a set is malformed, or the directory cannot be written; nothing is left behind.
    """
    task = files.task
    sets = {split: files.read(split) for split in files.splits}
    with new_directory(destdir) as directory:
        tokenizer.save(directory)
        inputs = [directory / f"input{number}" for number in range(len(task.columns))]
        for folder in (directory, *inputs):
            folder.mkdir(exist_ok=True)
            write_symbols(tokenizer.symbols, folder / DICTIONARY)
        labels = directory / "label"
        labels.mkdir()
        classes = [f"{number} 1\n" for number in range(task.num_classes)]
        write_text(labels / DICTIONARY, "".join(classes))

        splits = {}
        for split, rows in sets.items():
            splits[split] = _write(task, split, rows, tokenizer, directory, max_positions)
        statistics = {
            "task": task.name,
            "head": task.head,
            "columns": task.columns,
            "labels": task.labels,
            "score_range": task.score_range,
            "max_positions": max_positions,
            "tokenizer_sha256": tokenizer.fingerprint,
            "dictionary_sha256": dictionary_fingerprint(tokenizer.symbols),
            "splits": splits,
            "versions": versions(OF_DATA),
        }
        write_json(directory / TASK, statistics)
        write_hashes(directory)
    return statistics


def _write(
    task: Task, split: str, rows: Rows, tokenizer: Tokenizer, directory: Path, max_positions: int
) -> dict[str, int]:
    encoded = encode(rows.sentences, tokenizer)
    truncated = [truncate(row, max_positions) for row in encoded]
    for number, column in enumerate(zip(*truncated, strict=True)):
        _write_lines(directory / f"input{number}" / split, column, len(tokenizer.symbols))
    if rows.labels and task.is_regression:
        text = "".join(f"{task.to_unit(label)}\n" for label in rows.labels)
        write_text(directory / "label" / f"{split}.label", text)
    elif rows.labels:
        first = len(SPECIALS)
        labels = [np.array([first + label]) for label in rows.labels]
        _write_lines(directory / "label" / split, labels, first + task.num_classes)
    return {
        "rows": len(encoded),
        "tokens": sum(map(sequence_length, truncated)),
        "truncated": sum(sequence_length(row) > max_positions for row in encoded),
        "malformed": len(rows.malformed),
    }


def _write_lines(prefix: Path, lines: Sequence[np.ndarray], symbols: int) -> None:
    with_ends = [np.append(line, EOS) for line in lines]
    sizes = np.array([len(line) for line in with_ends])
    with DataBinWriter(prefix, symbols) as writer:
        writer.write(np.concatenate(with_ends), sizes)
