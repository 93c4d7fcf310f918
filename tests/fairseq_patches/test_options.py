"""Option checks that run before training starts; each test fails without its patch."""

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import TokenBlockDataset
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

import mae_lm_fairseq
from mae_lm_fairseq import fairseq_patches
from mae_lm_fairseq.fairseq_patches import option_checks
from mae_lm_fairseq.utils.errors import UserError
from tests.support.fairseq_commands import SETTINGS, config, refusal, settings

DECAY = ("--lr-scheduler", "polynomial_decay")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # hydra warns several times per configuration

mae_lm_fairseq.register()


def test_apply_again_changes_nothing():
    def patched():
        return [
            *(checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.torch_persistent_save, PathManager.copy),
            *(Trainer.__init__, Trainer.load_checkpoint, utils.import_user_module, options.parse_args_and_arch),
            *(distributed_utils.call_main, distributed_utils.broadcast_object, checkpoint_utils.load_checkpoint),
            *(options.get_parser, Trainer.train_step, checkpoint_utils.verify_checkpoint_directory),
        ]

    before = patched()
    fairseq_patches.apply()
    assert all(now is then for now, then in zip(patched(), before, strict=True))
    assert all(len(function.wrappers) == 1 for function in before)


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

    def test_our_criterion_with_a_model_of_fairseq(self):
        message = refusal(option_checks.check_settings, config("--criterion", "masked_autoencoder_lm"))
        assert message.endswith("not --arch roberta_base; choose --criterion masked_lm")

    @pytest.mark.parametrize("flag", ["--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16"])
    def test_half_precision_without_gpu(self, flag):
        started = []
        message = refusal(distributed_utils.call_main, config(flag, "--cpu"), started.append)
        assert message == f"{flag} needs a GPU: leave it out, or on a CPU with fast bfloat16 use --autocast bf16"
        assert not started

    @pytest.mark.parametrize(("speed", "warns"), [(1 / 60, True), (0.6, False), (2.0, False)])
    def test_autocast_on_a_cpu_without_fast_bfloat16(self, monkeypatch, caplog, speed, warns):
        monkeypatch.setattr(option_checks, "bfloat16_speed", lambda: speed)
        option_checks._warn_once.cache_clear()
        cfg = OmegaConf.create({"common": config("--cpu").common, "model": {"autocast": "bf16"}})
        caplog.clear()
        option_checks._check_precision(cfg)
        slower = "this CPU multiplies matrices 60 times slower in bfloat16 than in float32; leave the option out"
        assert caplog.messages == [f"--autocast bf16: {slower}"] * warns
        caplog.clear()
        cfg.model.autocast = "none"
        option_checks._check_precision(cfg)
        assert not caplog.messages

    def test_half_precision_twice(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        both = "--fp16 and --bf16 have the same purpose; choose one"
        assert refusal(settings, "--fp16", "--memory-efficient-bf16") == both
        cfg = config("--bf16")
        cfg.common.fp16 = True
        assert refusal(option_checks.check_settings, cfg) == both
        cfg.common.fp16, cfg.common.memory_efficient_fp16 = False, True
        message = refusal(option_checks.check_settings, cfg)
        assert message.startswith("common.memory_efficient_fp16 has no effect without common.fp16")
        cfg.common.memory_efficient_fp16 = False
        cfg = OmegaConf.create({"common": cfg.common, "model": {"autocast": "bf16"}})
        assert "--bf16 and --autocast bf16" in refusal(option_checks._check_precision, cfg)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            *(
                ("--seed", "-1"),
                ("--seed", str(1 << 32)),
                ("--batch-size", "0"),
                ("--num-workers", "-1"),
                ("--lr", "-1"),
            ),
            *(("--lr", "nan"), ("--lr", "inf"), ("--batch-size-valid", "0"), ("--max-tokens-valid", "-1")),
            *(("--required-batch-size-multiple", "0"), ("--validate-interval", "0"), ("--save-interval", "0")),
            *(("--clip-norm", "nan"), ("--clip-norm", "inf"), ("--clip-norm", "-0.5")),
            *(("--update-freq", "0"), ("--log-interval", "0"), ("--max-update", "-1"), ("--max-epoch", "-1")),
            *(("--adam-betas", "0.9"), ("--adam-betas", "(2, 3)"), ("--adam-eps", "nan"), ("--weight-decay", "-1")),
        ],
    )
    def test_numbers_out_of_range(self, option, value):
        started = []
        message = refusal(distributed_utils.call_main, config(option, value), started.append)
        assert message.startswith(f"{option} {value}")
        assert not started

    @pytest.mark.parametrize(
        ("option", "value"),
        [("--warmup-updates", "-1"), ("--power", "nan"), ("--power", "-0.5"), ("--end-learning-rate", "nan")],
    )
    def test_numbers_of_the_schedule_out_of_range(self, option, value):
        cfg = config(*DECAY, "--total-num-update", "20", option, value)
        assert refusal(option_checks.check_settings, cfg).startswith(f"{option} {value} must be a number")

    def test_one_learning_rate_of_several_out_of_range(self):
        message = refusal(option_checks.check_settings, config("--lr", "1e-3,nan"))
        assert message == "--lr nan must be a number of at least 0"
        assert "--lr is empty" in refusal(option_checks.check_settings, config("--lr", ""))

    @pytest.mark.parametrize("value", ["abc", "1e-3 1e-4", "1e-3,abc"])
    def test_invalid_lists(self, value, capsys):
        with pytest.raises(SystemExit):
            settings("--lr", value)
        assert f"error: argument --lr: {value!r} is neither a number nor a list" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--total-num-update", "--batch-size-valid", "--max-tokens-valid"])
    @pytest.mark.parametrize("value", ["nan", "inf", "abc", ""])
    def test_text_in_place_of_a_number(self, option, value):
        assert (
            refusal(settings, *DECAY, "--total-num-update", "20", option, value) == f"{option} {value} must be a number"
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--warmup-updates", "20", "--total-num-update", "20"),
            ("--total-num-update", "0"),
            ("--total-num-update", "-3"),
        ],
    )
    def test_decay_that_ends_before_the_warm_up(self, arguments):
        message = refusal(option_checks.check_settings, config(*DECAY, *arguments))
        assert message.startswith("--total-num-update")
        assert "must be more than --warmup-updates" in message

    def test_decay_without_an_end(self):
        assert "needs --total-num-update" in refusal(settings, *DECAY)

    def test_updates_after_the_decay(self, caplog):
        def check(*arguments: str) -> None:
            option_checks.check_settings(
                config(*DECAY, "--warmup-updates", "5", "--total-num-update", "20", *arguments)
            )

        for arguments in (("--max-update", "20"), ("--max-update", "30", "--end-learning-rate", "1e-5"), ()):
            check(*arguments)
        for _ in range(2):
            check("--max-update", "30")
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert warnings == ["--max-update 30 is more than --total-num-update 20: the learning rate is 0 after it"]

    @pytest.mark.parametrize("option", ["--max-tokens", "--max-tokens-valid"])
    def test_batches_that_hold_no_sequence(self, option):
        ours = ["--arch", "mae_lm_tiny", "--tokens-per-sample", "32"]
        message = refusal(option_checks.check_settings, config(*ours, option, "31"))
        assert message.startswith(f"{option} 31 must be at least --tokens-per-sample 32")
        option_checks.check_settings(config(*ours, option, "32"))

    def test_compile_without_effect(self):
        words = ["--arch", "mae_lm_tiny", "--tokens-per-sample", "32", "--compile"]
        message = refusal(option_checks.check_settings, config(*words))
        assert message.startswith("--compile has no effect with --criterion masked_lm")
        option_checks.check_settings(config(*words, "--criterion", "masked_autoencoder_lm"))

    def test_checks_create_no_files(self, tmp_path, monkeypatch):
        """fairseq-validate also has a --save-dir, but saves nothing there."""
        cfg = config()
        monkeypatch.chdir(tmp_path)
        option_checks.check_settings(cfg)
        assert not list(tmp_path.iterdir())

    def test_half_precision_with_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        option_checks.check_settings(config("--bf16"))
        with pytest.raises(UserError):
            option_checks.check_settings(config("--bf16", "--cpu"))

    def test_several_processes_without_gpus(self, monkeypatch, tmp_path):
        """fairseq would fail with an assertion."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        started = []
        cfg = config("--distributed-world-size", "2", "--cpu", "--save-dir", tmp_path / "run")
        message = refusal(distributed_utils.call_main, cfg, started.append)
        assert message.startswith("--distributed-world-size 2 needs a GPU for each process")
        assert not started

    @pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model", "--continue-once"])
    def test_checkpoint_that_does_not_exist(self, tmp_path, option):
        started, missing, save_dir = [], tmp_path / "missing.pt", ["--save-dir", tmp_path / "run"]
        message = refusal(distributed_utils.call_main, config(option, missing, *save_dir), started.append)
        assert message.startswith(f"{option} {missing}: no such file")
        assert not started
        missing.touch()
        option_checks.check_settings(config(option, missing, *save_dir))

    def test_resumed_run_needs_no_initial_checkpoint(self, tmp_path):
        (tmp_path / "checkpoint_last.pt").touch()
        option_checks.check_settings(config("--finetune-from-model", tmp_path / "missing.pt", "--save-dir", tmp_path))

    def test_names_with_a_suffix(self, tmp_path):
        arguments = ["--restore-file", tmp_path / "pretrained.pt", "--checkpoint-suffix", "_half"]
        assert "pretrained_half.pt" in refusal(option_checks.check_settings, config(*arguments))
        (tmp_path / "pretrained_half.pt").touch()
        option_checks.check_settings(config(*arguments))
