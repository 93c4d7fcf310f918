"""Options that are refused before training starts, and how fairseq reads its options."""

import os
import re
import tempfile
from argparse import SUPPRESS, ArgumentParser
from contextlib import nullcontext
from multiprocessing.connection import Listener
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import BucketPadLengthDataset, ListDataset, TokenBlockDataset
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.trainer import Trainer
from fairseq_cli import train

import mae_lm_fairseq
from mae_lm_fairseq import fairseq_patches
from mae_lm_fairseq.fairseq_patches import option_checks, parsing, processes
from mae_lm_fairseq.utils.allocator import CAPACITIES
from tests.support.fairseq_commands import SETTINGS, config, refusal, settings
from tests.support.refusals import refused
from tests.support.training import RECIPE, parse

DECAY = "--lr-scheduler polynomial_decay"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # hydra warns several times per configuration

mae_lm_fairseq.register()


def test_apply_again_changes_nothing():
    def patched():
        return [
            *(checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.torch_persistent_save, PathManager.copy),
            *(Trainer.__init__, Trainer.load_checkpoint, utils.import_user_module, options.parse_args_and_arch),
            *(distributed_utils.call_main, distributed_utils.broadcast_object, checkpoint_utils.load_checkpoint),
            Trainer.train_step,
        ]

    before = patched()
    fairseq_patches.apply()
    assert all(current is former for current, former in zip(patched(), before, strict=True))
    assert all(len(function.wrappers) == 1 for function in before)


def options_of(architecture):
    parser = ArgumentParser(argument_default=SUPPRESS)
    ARCH_MODEL_REGISTRY[architecture].add_args(parser)
    return [option for action in parser._actions for option in action.option_strings]


class TestNumpy:
    def test_sample_break_mode_eos(self, monkeypatch):
        def blocks():
            tokens = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
            dataset = TokenBlockDataset(tokens, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos")
            return [block.tolist() for block in dataset]

        assert blocks() == [[5, 6, 2], [7, 2]]
        monkeypatch.delattr(np, "compat")
        with pytest.raises(AttributeError, match="compat"):
            blocks()

    def test_buckets_of_lengths(self):
        tokens = [torch.full((length,), 5) for length in (2, 3, 5, 9)]
        dataset = ListDataset(tokens, [2, 3, 5, 9])
        padded = BucketPadLengthDataset(dataset, [2, 3, 5, 9], num_buckets=2, pad_idx=1, left_pad=False)
        # The lower one of the two lengths beside the median, and the maximum.
        assert [len(padded[number]) for number in range(4)] == [3, 3, 9, 9]


class TestSettings:
    @pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
    def test_bf16_does_not_imply_tpu(self, flag):
        arguments = settings(flag)
        assert arguments.bf16
        assert not arguments.tpu
        assert settings(flag, "--tpu").tpu
        parser = options.get_training_parser()
        assert options.parse_args_and_arch.__wrapped__(parser, ["data-bin", *SETTINGS, flag]).tpu

    def test_bf16_with_unknown_arguments(self):
        parser = options.get_training_parser()
        arguments, unknown = options.parse_args_and_arch(
            parser, ["data-bin", *SETTINGS, "--bf16", "--new"], parse_known=True
        )
        assert (arguments.tpu, unknown) == (False, ["--new"])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--lrr 1", "--lrr 1; is --lr meant?"),
            ("--criterion masked_autoencoder_ml", "is masked_autoencoder_lm meant?"),
            ("--task masked_autoencoder_ml", "is masked_autoencoder_lm meant?"),
            ("--encodr bert", "--encodr bert; mae-lm pretrain has --encoder"),
            ("--task sentence_prediction --mask-prob 0.2", "--mask-prob needs --task masked_autoencoder_lm"),
        ],
    )
    def test_unknown_options_are_explained(self, words, message, capsys):
        with pytest.raises(SystemExit):
            parse("data-bin", "--arch mae_lm_tiny", words)
        assert message in capsys.readouterr().err

    def test_options_of_other_models_are_unknown(self, capsys):
        with pytest.raises(SystemExit):
            parse("data-bin", *RECIPE, "--arch mae_lm_tiny --pooler-dropout=0.1 --offload-activations")
        told = capsys.readouterr().err
        assert "unrecognized arguments: --pooler-dropout=0.1 --offload-activations; " in told
        assert "--pooler-dropout is called --classifier-dropout here; --offload-activations has no" in told

    def test_every_option_of_fairseqs_roberta_is_known_or_explained(self):
        """Options that an explanation names also exist here."""
        theirs, ours = ({*options_of(architecture)} for architecture in ("roberta", "mae_lm_base"))
        named = set(re.findall(r"--[\w-]+", " ".join(parsing.OF_ROBERTA.values())))
        assert theirs - ours == parsing.OF_ROBERTA.keys() - {"--offload-activations"}
        assert named <= ours | {"--ddp-backend"}


OURS = "--arch mae_lm_tiny --tokens-per-sample 32"
EXLM = "--arch mae_lm_exlm_tiny --criterion masked_autoencoder_lm"
FROZEN = "--task masked_autoencoder_lm --freeze-encoder-updates 5"
GPU = ("--fp16 and", "--bf16 and", "--fp16 does", "--bf16 does")
"""Messages that are for machines with a GPU."""
NO_UTF8 = "caf\udce9"
"""Name in Latin-1, as Python reads it."""
PATHS = (
    *("--save-dir", "--restore-file", "--finetune-from-model", "--continue-once"),
    *("--tensorboard-logdir", "--log-file", "--ema-seed-model"),
)
REFUSED_BY_THEMSELVES = (
    *("--batch-size 0", "--batch-size-valid 0", "--clip-norm nan", "--max-update -1", "--max-epoch -1", "--seed -1"),
    *("--num-workers -1", "--weight-decay -1.0", "--mask-prob 1.5", "--mask-multiple-length 0", "--mask-stdev -1.0"),
    *("--log-interval 0", "--max-tokens 0", "--required-batch-size-multiple 0", "--leave-unmasked-prob -1.0"),
    *("--random-token-prob 2.0", "--valid-subset valid,train", "--write-checkpoints-asynchronously", "--tpu"),
    *("--restore-file nowhere.pt", "--finetune-from-model nowhere.pt", "--continue-once nowhere.pt"),
)
"""Words of a command line with which the message also begins."""
REFUSED = {
    **{words: words for words in REFUSED_BY_THEMSELVES},
    **{f"{option} 'caf\\udce9' is not UTF-8": f"{option} {NO_UTF8}" for option in PATHS},
    "--lr -1.0": "--lr 1e-3,-1",
    "--best-checkpoint-metric nosuch": f"{OURS} --criterion masked_autoencoder_lm --best-checkpoint-metric nosuch",
    "--update-freq 0": "--update-freq 1,0",
    "--ema-decay 1.5": "--store-ema --ema-decay 1.5",
    "--warmup-updates -1": f"{DECAY} --total-num-update 20 --warmup-updates -1",
    "--power nan": f"{DECAY} --total-num-update 20 --power nan",
    "--end-learning-rate -1.0": f"{DECAY} --total-num-update 20 --end-learning-rate -1",
    "--total-num-update 20 must be more than --warmup-updates 20": f"{DECAY} --warmup-updates 20 --total-num-update 20",
    "--total-num-update -3 must be more than --warmup-updates 0": f"{DECAY} --total-num-update -3",
    "--stop-min-lr with --warmup-updates": f"{DECAY} --warmup-updates 2 --total-num-update 20 --stop-min-lr 1e-9",
    "--fp16 needs": "--cpu --memory-efficient-fp16",
    (
        "--fp16 needs a GPU: leave it out, or on a CPU with fast bfloat16 use --autocast bf16; with "
        "fairseq-hydra-train, set common.fp16=false common.cpu=true"
    ): "--cpu --fp16",
    "--bf16 needs": "--cpu --bf16",
    "--fp16 and --autocast bf16": f"{OURS} --fp16 --autocast bf16",
    "--fp16 does not work with --freeze-encoder-updates 5": f"{OURS} {FROZEN} --fp16",
    "--bf16 does not work with --freeze-encoder-updates 5": f"{OURS} {FROZEN} --memory-efficient-bf16",
    "--amp": f"{OURS} --amp",
    "--criterion masked_lm is not the loss of --mask-states 4": "--arch mae_lm_exlm_tiny",
    "--criterion masked_lm ignores --loss-weight inverse-rate": (
        f"{OURS} --task masked_autoencoder_lm --criterion masked_lm --loss-weight inverse-rate"
    ),
    "--task masked_lm": EXLM,
    "--task masked_lm keeps": f"{EXLM} --leave-unmasked-prob 0",
    "--task masked_lm keeps some": f"{EXLM} --random-token-prob 0",
    "--criterion cross_entropy": f"{OURS} --criterion cross_entropy",
    "--criterion label_smoothed_cross_entropy": (
        "--task masked_autoencoder_lm --criterion label_smoothed_cross_entropy"
    ),
    "--max-tokens 31 is less than --tokens-per-sample 32": f"{OURS} --max-tokens 31",
    "--max-tokens-valid 31": f"{OURS} --max-tokens 64 --max-tokens-valid 31",
    "--ddp-backend fully_sharded": f"{OURS} --ddp-backend fully_sharded",
    "--ddp-backend slowmo": f"{OURS} --ddp-backend slowmo",
    "--restore-file nowhere_half.pt": "--restore-file nowhere.pt --checkpoint-suffix _half",
}
"""Words of a command line, by the beginning of the message."""


class TestChecks:
    @pytest.mark.parametrize("message", REFUSED)
    def test_an_option_is_refused_in_one_message(self, message, monkeypatch, tmp_path):
        """No process is started, and no file is written: fairseq-validate also has a --save-dir."""
        cfg, started = config(REFUSED[message]), []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: message.startswith(GPU))
        monkeypatch.setattr(option_checks, "unusable_gpu", lambda: None)
        assert refusal(distributed_utils.call_main, cfg, started.append).startswith(message)
        assert not started
        assert not list(tmp_path.iterdir())

    def test_data_in_a_directory_that_is_not_utf8(self):
        cfg = config("--cpu")
        cfg.task.data = NO_UTF8
        assert refusal(option_checks.check_settings, cfg).startswith(r"DATA 'caf\udce9' is not UTF-8")

    def test_both_half_precisions_under_hydra(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        cfg = config("--bf16")
        option_checks.check_settings(cfg)
        cfg.common.fp16 = True
        assert refusal(option_checks.check_settings, cfg).startswith("--fp16 and --bf16")

    @pytest.mark.parametrize("limit", ["", "--max-epoch 2", "--stop-time-hours 1", "--patience 3"])
    def test_a_schedule_that_ends_needs_an_end_of_training(self, limit):
        """fairseq takes 0 for no limit: it would train on with a learning rate of 0."""
        cfg = config(f"{DECAY} --total-num-update 20 --max-update 0 {limit}")
        with nullcontext() if limit else pytest.raises(SystemExit, match="--max-update 0"):
            processes._call_main(lambda cfg, main: None, cfg, train.main)

    def test_every_row_has_a_test(self):
        tested = (*REFUSED, "DATA", "--cpu", "--num-workers", "--autocast bf16")  # in other tests
        patterns = [re.compile(rf"{check.option}\b") for check in option_checks.CHECKS]
        assert [pattern for pattern in patterns if not any(map(pattern.match, tested))] == []

    @pytest.mark.parametrize(
        "arguments",
        [
            f"{OURS} --compile --criterion masked_autoencoder_lm --dataset-impl mmap",
            "--amp",  # left to fairseq for its own models
            f"{OURS} --criterion sentence_ranking",
            f"{EXLM} --leave-unmasked-prob 0 --random-token-prob 0",
            "--max-tokens 31",
            f"{DECAY} --warmup-updates 5 --total-num-update 20 --max-epoch 2",
        ],
    )
    def test_other_values_are_accepted(self, arguments):
        option_checks.check_settings(config(arguments))

    @pytest.mark.parametrize(("length", "binds"), [(75, True), (76, False)])
    def test_data_workers_need_a_short_temporary_directory(self, monkeypatch, length, binds):
        """Exactly where a socket with the names that multiprocessing gives those of workers cannot be bound."""
        cfg, without = config("--num-workers 2"), config("--num-workers 0")
        with tempfile.TemporaryDirectory(dir="/tmp") as parent:
            directory = f"{parent}/{'x' * (length - len(parent) - 1)}"
            os.mkdir(directory)
            sockets = tempfile.mkdtemp(prefix="pymp-", dir=directory)
            with nullcontext() if binds else pytest.raises(OSError, match="AF_UNIX path too long"):
                Listener(tempfile.mktemp(prefix="listener-", dir=sockets)).close()
        monkeypatch.setattr(tempfile, "tempdir", directory)
        option_checks.check_settings(without)
        with nullcontext() if binds else refused(f"--num-workers 2 .*{directory}.* 75 bytes"):
            option_checks.check_settings(cfg)

    @pytest.mark.parametrize("name", CAPACITIES)
    @pytest.mark.parametrize(("options", "number"), [("", "16"), (" --autocast bf16", "64")])
    def test_caches_of_primitives_are_limited(self, options, number, name, monkeypatch):
        """Importing the package does not change the environment, and what the user exported stays."""
        for exported in ("7", None):
            monkeypatch.setenv(name, "7")
            if exported is None:
                monkeypatch.delenv(name)
            arguments = config(f"{OURS} --cpu{options}")
            assert os.environ.get(name) == exported
            option_checks.check_settings(arguments)
            assert os.environ[name] == (exported or number)

    @pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model", "--continue-once"])
    def test_a_checkpoint_that_exists(self, tmp_path, option):
        (tmp_path / "checkpoint.pt").touch()
        option_checks.check_settings(config(option, tmp_path / "checkpoint.pt", "--save-dir", tmp_path / "run"))

    def test_resumed_run_needs_no_initial_checkpoint(self, tmp_path):
        (tmp_path / "checkpoint_last.pt").touch()
        option_checks.check_settings(config("--finetune-from-model", tmp_path / "missing.pt", "--save-dir", tmp_path))


def test_training_begins_on_its_device(monkeypatch):
    """With several processes, fairseq's trainer leaves the model on the CPU until it wraps it."""

    class Model(torch.nn.Linear):
        def begin_training(self, device):
            self.found = self.weight.device, device

        def check_checkpoint(self, filename, state, resumes=False):
            pass

    model, device = Model(1, 1), torch.device("meta")
    trainer = SimpleNamespace(device=device, get_model=lambda: model)
    monkeypatch.setattr(parsing, "check_settings", lambda cfg: None)
    parsing.check_options_of_the_trainer.__wrapped__(lambda *inputs: None, trainer, None)
    assert model.found == (device, device)
