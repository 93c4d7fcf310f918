"""Parts whose malformed records were skipped, and a preparation that does not skip them."""

import json

import pytest

from mae_lm_fairseq import cli
from mae_lm_fairseq.text.sentencepiece_tokenizer import train_model
from mae_lm_fairseq.utils.errors import UserError

LINES = [f"ab cd {number} ef" for number in range(40)]


def test_a_part_that_lacks_malformed_records_is_not_reused_without_skip_malformed(tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES) + "{\n")
    (tmp_path / "valid.txt").write_text("\n".join(LINES))
    (tmp_path / "a.model").write_bytes(train_model(LINES, 25, 1.0))
    words = ["--train", "train.jsonl", "--valid", "valid.txt", "--tokenizer", "a.model", "--destdir", "out"]
    words = [word if word.startswith("--") else str(tmp_path / word) for word in words] + ["--workers", "1"]
    cli.run("prepare", [*words, "--skip-malformed", "--part", "1/1"])
    with pytest.raises(UserError, match=r"train\.jsonl: line 41 is not JSON"):
        cli.run("prepare", words)
    assert not (tmp_path / "out" / "train.bin").exists()
