"""fairseq's own options with the models of this package; docs/reference/options.md lists them."""

import json
import logging
import re
import shutil

import numpy as np
import pytest
import torch
from fairseq import optim, options
from fairseq.models.distributed_fairseq_model import DistributedFairseqModel
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq_cli import validate

from mae_lm_fairseq import PACKAGE
from tests.support import words_of
from tests.support.bundles import saved
from tests.support.finetuning import FINETUNING, SHAPE, save_pretrained, train_here, write_sentences
from tests.support.refusals import refused
from tests.support.training import RECIPE, batches, parse, set_up

UNSCHEDULED = [*RECIPE[: RECIPE.index("--lr-scheduler")], *RECIPE[RECIPE.index("--clip-norm") :]]
LR = 1e-3


@pytest.fixture
def train(tmp_path, data_bin):
    """Return ``train(*options)``, which trains two updates in this process and returns the directory of the run."""

    def run(*arguments, data=data_bin, recipe=RECIPE):
        rest = ["--arch mae_lm_tiny --save-dir", tmp_path / "run", "--max-update 2 --num-workers 0"]
        train_here(data, *recipe, *rest, *arguments)
        return tmp_path / "run"

    return run


# Options, and the learning rate of the first updates.
SCHEDULES = {
    "fixed": (["--warmup-updates 2"], [0.5, 1, 1, 1]),
    "inverse_sqrt": (["--warmup-updates 1 --warmup-init-lr 0"], [0, 1, 2**-0.5, 3**-0.5]),
    "cosine": (["--max-update 4"], [1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
    "polynomial_decay": (["--warmup-updates 1 --total-num-update 3"], [0, 1, 0.5, 0]),
    "tri_stage": (
        ["--warmup-steps 1 --hold-steps 1 --decay-steps 2 --init-lr-scale 0.1 --final-lr-scale 0.01"],
        [0.1, 1, 1, 0.1],
    ),
    "reduce_lr_on_plateau": ([], [1, 1, 1, 1]),
    "triangular": (["--max-lr", 2 * LR, "--lr-period-updates 4"], [1, 1.5, 2, 1.5]),
    "manual": (["--update2lr", "{'1-2': 0.0005, '3': 0.0002}"], [0.5, 0.5, 0.5, 0.2]),
    "step": (["--lr-deacy-period 2 --lr-decay 0.5"], [1, 1, 0.5, 0.5]),
}


def scheduler(data_bin, name, arguments):
    cfg = parse(data_bin, *UNSCHEDULED, "--arch mae_lm_tiny --lr-scheduler", name, *arguments)
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    return build_lr_scheduler(cfg.lr_scheduler, optimizer)


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates(data_bin, name):
    arguments, expected = SCHEDULES[name]
    schedule = scheduler(data_bin, name, arguments)
    rates = [schedule.step_update(update) for update in range(4)]
    np.testing.assert_allclose(rates, LR * np.array(expected), rtol=1e-6, atol=1e-12)


@pytest.fixture
def alone(tmp_path):
    """Make this process a job of its own."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_backends_of_distributed_training(data_bin, alone):
    """Gradients are the same with all of them."""
    cfg, task, model, criterion = set_up(data_bin, "--dropout 0 --attention-dropout 0")
    [batch, *_] = batches(task)
    gradients = []
    for backend in (None, "pytorch_ddp", "c10d", "legacy_ddp", "no_c10d"):
        model.zero_grad()
        wrapped = model
        if backend:
            cfg.distributed_training.ddp_backend = backend
            wrapped = DistributedFairseqModel(cfg.distributed_training, model, alone, torch.device("cpu"))
        loss, _, _ = criterion(wrapped, batch)
        loss.backward()
        if backend in ("legacy_ddp", "no_c10d"):
            wrapped.all_reduce_grads()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for of_backend in gradients[1:]:
        assert all(torch.equal(*pair) for pair in zip(gradients[0], of_backend, strict=True))


def test_several_validation_splits(train, two_validation_splits, caplog):
    with caplog.at_level(logging.INFO):
        train("--valid-subset valid,valid1 --no-save --log-format json", data=two_validation_splits)
    lines = [json.loads(record.message) for record in caplog.records if '_loss"' in record.message]
    losses = {key: line[key] for line in lines for key in line if key in ("valid_loss", "valid1_loss")}
    assert len(losses) == len(set(losses.values())) == 2


def test_a_validation_split_that_is_not_named_is_reported(train, two_validation_splits):
    with refused(r"--valid-subset valid: .*valid1.*--ignore-unused-valid-subsets"):
        train("--no-save", data=two_validation_splits)
    train("--no-save", "--ignore-unused-valid-subsets", data=two_validation_splits)


@pytest.mark.parametrize(
    ("arch", "options", "named"),
    [
        ("mae_lm_tiny", ["--relative-bucketing symmetric"], "--relative-bucketing is t5 in the checkpoint"),
        ("mae_lm_roberta_tiny", ["--mask-join encoder"], "--mask-join is embeddings in the checkpoint"),
        ("mae_lm_tiny", ["--encoder-layers 3"], "Missing key"),  # which fairseq ended in a traceback
        ("mae_lm_tiny", ["--encoder-embed-dim 32"], "size mismatch"),
    ],
)
def test_a_run_is_not_resumed_with_another_meaning_of_its_weights(train, arch, options, named):
    train("--arch", arch)
    with refused(rf"checkpoint_last\.pt .*{named}"):
        train("--arch", arch, *options, "--max-update 3")


def test_validation_splits_are_loaded_before_training(train, caplog):
    """fairseq does so at the first validation, which is before the first checkpoint."""
    long = ["--task masked_lm --criterion masked_lm --tokens-per-sample 16 --no-save"]
    with pytest.raises(Exception, match="skip this example with --skip-invalid-size-inputs-valid-test"):
        train(*long)
    assert "num_updates" not in caplog.text
    train(*long, "--skip-invalid-size-inputs-valid-test")


def test_checkpoints_to_keep_and_patience(train):
    keep = ["--save-interval-updates 1 --keep-interval-updates 2 --keep-best-checkpoints 1"]
    rest = ["--validate-interval-updates 1 --patience 2 --max-update 9 --no-epoch-checkpoints"]
    # The loss is a constant without learning, so the second validation without progress is the third.
    metric = ["--best-checkpoint-metric loss --lr 0"]
    names = sorted(path.name for path in train(*keep, *rest, *metric).glob("*.pt"))
    assert names[:2] == ["checkpoint.best_loss_" + names[0].rpartition("_")[2], "checkpoint_1_2.pt"]
    assert names[2:] == ["checkpoint_1_3.pt", "checkpoint_best.pt", "checkpoint_last.pt"]


@pytest.mark.parametrize("is_highest", [False, True])
def test_the_best_checkpoints_are_kept_through_a_resume(train, caplog, is_highest):
    """At so high a rate the loss rises, so that the first checkpoint is better than those that follow."""
    keep = ["--keep-best-checkpoints 3 --best-checkpoint-metric loss --no-epoch-checkpoints"]
    keep += ["--maximize-best-checkpoint-metric"] if is_highest else []
    often = ["--validate-interval-updates 1 --save-interval-updates 1"]
    rate = ["--lr 0.3 --warmup-updates 0"]
    caplog.set_level(logging.INFO)
    for updates in (4, 8):
        directory = train(*keep, *often, *rate, "--log-format json --max-update", updates)
        lines = [json.loads(record.message) for record in caplog.records if '"valid_loss"' in record.message]
        losses = sorted((float(line["valid_loss"]) for line in lines), reverse=is_highest)
        assert len(losses) == updates
        kept = [float(path.stem.rpartition("_")[2]) for path in directory.glob("checkpoint.best_*.pt")]
        # A name has three decimals of the value, and a random digit that separates equal ones.
        np.testing.assert_allclose(sorted(kept, reverse=is_highest), losses[:3], atol=2e-3)


def test_fairseq_validate(data_bin, tmp_path, caplog):
    path = save_pretrained(tmp_path / "checkpoint.pt", data_bin, "mae_lm_tiny")
    parser = options.get_validation_parser()
    words = [
        data_bin,
        "--path",
        path,
        "--task masked_autoencoder_lm --batch-size 8 --cpu --num-workers 0",
    ]
    arguments = options.parse_args_and_arch(parser, words_of(*words))
    with caplog.at_level(logging.INFO):
        validate.main(arguments)
    [record] = [record for record in caplog.records if record.name == "valid"]
    assert re.search(r"\| loss \d+\.\d+ \| accuracy", record.message)


def test_sentence_ranking(data_bin, tmp_path):
    """Each row of the data has two candidates, and the label is the number of the right one."""
    sentences = write_sentences(tmp_path / "sentences", data_bin / "dict.txt")
    for part in ("input1", "input2"):
        shutil.rmtree(sentences / part, ignore_errors=True)
        shutil.copytree(sentences / "input0", sentences / part)
    for split in ("train", "valid"):
        rows = [str(number % 2) for number in range(40)]
        (sentences / "label" / f"{split}.label").write_text("\n".join(rows) + "\n")
    words = [*FINETUNING, *SHAPE, "--arch mae_lm_tiny --max-update 2 --save-dir", tmp_path / "run"]
    words += ["--task sentence_ranking --criterion sentence_ranking --num-classes 2 --no-shuffle"]
    train_here(sentences, *words)
    weights = saved(tmp_path / "run/checkpoint_last.pt")["model"]
    assert weights["classification_heads.sentence_classification_head.out_proj.weight"].shape == (1, 16)


def test_wandb_offline(train, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train("--wandb-project project --no-save")
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


HYDRA_RECIPE = """
common: {user_dir: PACKAGE, cpu: true}
task: {_name: masked_autoencoder_lm, data: DATA, tokens_per_sample: 64}
model: {_name: mae_lm_tiny}
criterion: masked_autoencoder_lm
dataset: {batch_size: 32}
optimization: {max_update: 2}
optimizer: {_name: adam}
lr_scheduler: {_name: fixed}
"""


@pytest.mark.slow
def test_hydra_multirun(run_cli, data_bin, tmp_path):
    """``fairseq-hydra-train -m`` trains once for each learning rate."""
    recipe = HYDRA_RECIPE.replace("PACKAGE", str(PACKAGE)).replace("DATA", str(data_bin))
    (tmp_path / "recipe.yaml").write_text(recipe)
    command = ["fairseq-hydra-train", "-m", "--config-dir . --config-name recipe"]
    # A relative path is in the directory of each run.
    command += ["optimization.lr=[0.001],[0.002]", "checkpoint.save_dir=saved"]
    done = run_cli(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rates = [saved(path)["cfg"]["optimization"]["lr"] for path in tmp_path.glob("multirun/**/checkpoint_last.pt")]
    assert sorted(rates) == [[0.001], [0.002]]
