"""``mae-lm finetune squad`` in processes of its own, from a question file to the reported metrics."""

from pathlib import Path

from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import SquadOptions
from mae_lm_fairseq.finetuning.squad.metrics import evaluate_1_1, gold_answers
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.utils.files import read_json, read_record
from tests.support.answering import write_squad, write_tokenizer

# Large enough to memorise sixteen answers in a few seconds.
LEARN_BY_HEART = ["--encoder-layers", "2", "--dropout", "0", "--attention-dropout", "0"]
LEARN_BY_HEART += ["--max-update", "100", "--total-num-update", "300"]


def test_answers_are_memorised(tmp_path):
    questions, out = write_squad(tmp_path / "squad.json"), tmp_path / "out"
    options = SquadOptions(
        train=questions,
        dev=questions,
        model=Path("mae_lm_tiny"),
        data_bin=write_tokenizer(tmp_path / "data-bin"),
        out=out,
        seeds=1,
        learning_rates=[1e-3],
        tokens_per_sample=64,
        extra=LEARN_BY_HEART,
    )
    results = finetune(options)
    assert read_record(out / "results.json") == results
    assert "| 0.001 | exact_match | 100.0 (one seed) | 100.0 |" in (out / "report.md").read_text()
    answers = read_json(out / "predictions.json")
    metrics = evaluate_1_1(gold_answers(read_squad(questions, version_2=False)), answers)
    assert metrics == {"exact_match": 100.0, "f1": 100.0}
