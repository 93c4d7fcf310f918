"""The parsers of our own, each a function of the bytes that it is given; for ``scripts/fuzz.py`` and for tests."""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.downstream.glue.files import read_split
from mae_lm_fairseq.downstream.glue.tasks import TASKS
from mae_lm_fairseq.downstream.squad import metrics as squad_metrics
from mae_lm_fairseq.downstream.squad.files import read_squad
from mae_lm_fairseq.pretrained.reading import read_bundle
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.text_files import read_chunks, sample_lines
from mae_lm_fairseq.utils.errors import UserError

PARSERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "glue-tsv": ("train.tsv", lambda path: read_split(TASKS["RTE"], path.parent, "train")),
    "glue-json": ("train.json", lambda path: read_split(TASKS["STS-B"], path.parent, "train")),
    "squad": ("squad.json", lambda path: read_squad(path, version_2=True)),
    "questions": ("dev.json", squad_metrics.read_gold),
    "manifest": ("manifest.json", Manifest.read),
    "dictionary": ("dict.txt", read_symbols),
    "bundle": ("config.json", lambda path: read_bundle(path.parent)),
    "index": ("train.idx", lambda path: check_data_bin(path.with_suffix(""))),
    "text": ("text", lambda path: (list(read_chunks(path, 50)), list(sample_lines([path], 1000)))),
}
"""For each the name of the file, and what reads it."""

_QUESTION = {"id": "1", "question": "b?", "is_impossible": False, "answers": [{"text": "b", "answer_start": 2}]}
_SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [_QUESTION]}]}]}).encode()
_COUNTS = dict.fromkeys(("documents", "lines", "tokens_in", "tokens_out", "unk", "unk_rate"), 1)
SAMPLES = {
    "glue-tsv": b"index\tsentence1\tsentence2\tlabel\n0\ta b\tc\tentailment\n1\td\te f\tnot_entailment\n",
    "glue-json": json.dumps([{"sentence1": "a b", "sentence2": "c", "label": 2.5}]).encode(),
    "squad": _SQUAD,
    "questions": _SQUAD,
    "manifest": json.dumps(asdict(Manifest({}, {}, "0", "0", {"train": _COUNTS}))).encode(),
    "dictionary": "\u2581the 10\n\u2581a 7\ns 5\n".encode(),
    "bundle": json.dumps({"format": 1, "network": vars(MaskedAutoencoderConfig()), "about": {}}, default=str).encode(),
    "index": b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, 1) + bytes(12),
    "text": "one line\r\nand \u00e4n other\n\nthird".encode(),
}
"""What a fuzzer may begin with."""


def parse(name: str, content: bytes, directory: Path) -> bool:
    """Gives bytes to a parser, as a file in a directory.

    Returns:
        Whether it has taken them; it may refuse with a UserError, and with nothing else.
    """
    file, read = PARSERS[name]
    (directory / "train.bin").touch()  # of the index
    path = directory / file
    path.write_bytes(content)
    try:
        read(path)
    except UserError:
        return False
    return True
