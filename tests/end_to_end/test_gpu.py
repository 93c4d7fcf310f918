"""Training on a GPU, in every precision and with every attention backend, and what a user does there first."""

import math
import re

import pytest

from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from tests.support.glue import make_rows, write_official, write_tokenizer
from tests.support.training import RECIPE

pytestmark = pytest.mark.gpu

PRECISIONS = [[], ["--fp16"], ["--bf16"], ["--autocast", "bf16"], ["--memory-efficient-fp16"]]
HALF = ("--fp16", "--bf16", "--memory-efficient-fp16")
OPTIONS = [
    *(["--attention-backend", "fused", *precision] for precision in PRECISIONS),
    *(["--attention-backend", "sdpa", *precision] for precision in PRECISIONS),
    ["--attention-backend", "eager", "--fp16"],
    ["--checkpoint-activations", "--bf16"],
    ["--compile", "--bf16"],
    ["--optimizer", "fused_adamw", "--bf16"],
]
UPDATES = 12
# Heads of 16 values, and a rate at which the loss falls by more than a bit.
COMMON = [word for word in RECIPE if word != "--cpu"] + ["--user-dir", "mae_lm_fairseq", "--arch", "mae_lm_tiny"]
COMMON += ["--encoder-embed-dim", 64, "--lr", 1e-2, "--max-update", UPDATES, "--no-save", "--disable-validation"]
NO_DROPOUT = ["--dropout", 0, "--attention-dropout", 0]


def on_device(options, gpu):
    """Return the options; those of a rehearsal on a CPU, which trains in float32, without the fused kernel."""
    if gpu == "cpu" and "fused" in options:
        pytest.skip("the fused kernel does not train on a CPU")
    return list(options) if gpu == "cuda" else [*(word for word in options if word not in HALF), "--cpu"]


def losses(done):
    logged = re.findall(r"\| train_inner \|.*?\bloss=([\d.]+)", done.stderr + done.stdout)
    assert done.returncode == 0, done.stderr
    assert logged
    return [float(loss) for loss in logged]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options)))
def test_first_updates_have_the_losses_of_a_cpu(fairseq_train, data_bin, options, gpu):
    trained = on_device(options, gpu)
    recipe = [data_bin, *COMMON, *NO_DROPOUT]
    optimizer = options[:2] if "--optimizer" in options else []
    on_cpu = losses(fairseq_train(*recipe, *optimizer, "--cpu"))
    on_gpu = losses(fairseq_train(*recipe, *trained))
    assert len(on_gpu) == len(on_cpu) == UPDATES
    # The masks are the same. bfloat16 products alone change these losses by 0.03 %.
    assert all(math.isclose(gpu, cpu, rel_tol=0.02) for gpu, cpu in zip(on_gpu, on_cpu, strict=True))
    assert min(on_cpu) < 0.9 * on_cpu[0]


LEARNING = [*OPTIONS[:2], OPTIONS[len(PRECISIONS)]]


@pytest.mark.parametrize("options", LEARNING, ids=lambda options: " ".join(map(str, options)))
def test_learns_with_dropout(fairseq_train, data_bin, options, gpu):
    curve = losses(fairseq_train(data_bin, *COMMON, *on_device(options, gpu)))
    assert min(curve) < 0.9 * curve[0]


def test_what_a_user_does_first(mae_lm, tmp_path, gpu):
    """Pretrain the base preset for a few updates, fine-tune it, export it, which compares outputs, and ask the doctor.

    A rehearsal on a CPU has the tiny preset.
    """

    def run(*words):
        done = mae_lm(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    tokenizer = write_tokenizer(tmp_path / "tokenizer") / "sentencepiece.bpe.model"
    sets = make_rows(TASKS["RTE"], rows=40)
    lines = [sentence for rows in sets.values() for row in rows for sentence in row["sentences"]]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = ("--train", "train.txt", "--valid", "valid.txt", "--workers", 1)
    run("prepare", *texts, "--tokenizer", tokenizer, "--max-unk-rate", 1, "--destdir", "data-bin")

    preset = "mae_lm_base" if gpu == "cuda" else "mae_lm_tiny"
    short = ("--max-update", 3, "--batch-size", 4, "--update-freq", 1, "--tokens-per-sample", 64, "--num-workers", 0)
    log = run("pretrain", preset, "data-bin", "checkpoints", *on_device(short, gpu))
    assert "done training" in log
    assert gpu == "cpu" or "--fp16" in log

    write_official(tmp_path / "GLUE", TASKS["RTE"], sets)
    model = ("checkpoints/checkpoint_last.pt", "--data-bin", "data-bin")
    run_of = ("--learning-rates", "1e-4", "--seeds", 1, "--max-updates", 3)
    run("finetune", "glue", "RTE", *model, "--glue-dir", "GLUE", "--out", "rte", *run_of)
    assert (tmp_path / "rte/report.md").exists()
    assert "compared with the original" in run("export", *model, "--out", "exported")
    # Its exit code is that of all checks, such as of optional packages.
    report = mae_lm("doctor", cwd=tmp_path).stdout
    assert re.search(r"works +GPU" if gpu == "cuda" else r"(absent|broken) +GPU", report)
