"""Our own parsers, each as a function of the bytes of one file, for the fault injection and the tests."""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.text.text_files import read_chunks, sample_lines
from mae_lm_fairseq.utils.errors import UserError
from tests.fault_injection.damage import Damage, damaged, damaged_json, damaged_lines

_QUESTION = {"id": "1", "question": "b?", "is_impossible": False, "answers": [{"text": "b", "answer_start": 2}]}
_SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [_QUESTION]}]}]}).encode()
_COUNTS = dict.fromkeys(("documents", "lines", "tokens_in", "tokens_out", "unk", "unk_rate"), 1)


class Parser(NamedTuple):
    """Parser of one file.

    Attributes:
        file: name of the file.
        read: reads the file.
        sample: valid content.
        damage: returns a strategy of damaged content.
    """

    file: str
    read: Callable[[Path], object]
    sample: bytes
    damage: Damage = damaged_json


PARSERS = {
    "glue-tsv": Parser(
        "train.tsv",
        lambda path: GlueFiles(TASKS["RTE"], path.parent).read("train"),
        b"index\tsentence1\tsentence2\tlabel\n0\ta b\tc\tentailment\n1\td\te f\tnot_entailment\n",
        damaged,
    ),
    "glue-json": Parser(
        "train.json",
        lambda path: GlueFiles(TASKS["STS-B"], path.parent).read("train"),
        json.dumps([{"sentence1": "a b", "sentence2": "c", "label": 2.5}]).encode(),
    ),
    "squad": Parser("squad.json", lambda path: read_squad(path, version_2=True), _SQUAD),
    "manifest": Parser(
        "manifest.json", Manifest.read, json.dumps(asdict(Manifest({}, {}, "0", "0", {"train": _COUNTS}))).encode()
    ),
    "dictionary": Parser("dict.txt", read_symbols, "\u2581the 10\n\u2581a 7\ns 5\n".encode(), damaged_lines),
    "index": Parser(
        "train.idx",
        lambda path: check_data_bin(path.with_suffix("")),
        b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, 1) + bytes(12),
        damaged,
    ),
    "text": Parser(
        "text",
        lambda path: (list(read_chunks(path, 50)), list(sample_lines([path], 1000))),
        "one line\r\nand \u00e4n other\n\nthird".encode(),
        damaged,
    ),
}


def parse(name: str, content: bytes, directory: Path) -> bool:
    """Write bytes to a file in a directory and parse it.

    Returns:
        Whether the parser accepts them. It may refuse them with a UserError; any other exception is passed on.
    """
    parser = PARSERS[name]
    (directory / "train.bin").touch()  # for the index parser
    path = directory / parser.file
    path.write_bytes(content)
    try:
        parser.read(path)
    except UserError:
        return False
    return True
