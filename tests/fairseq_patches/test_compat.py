"""Each quirk of fairseq or torch is cured, and each test fails without its cure."""

import argparse
import multiprocessing
import os
import random
import resource
import shlex
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import TokenBlockDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches import compat, option_checks
from mae_lm_fairseq.utils.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # hydra's, some for each configuration

compat.apply()

SETTINGS = shlex.split(
    "--task masked_lm --criterion masked_lm --arch roberta_base --encoder-layers 1 --encoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --tokens-per-sample 32 --batch-size 8 --optimizer adam "
    "--lr 1e-3 --lr-scheduler fixed --num-workers 0 --user-dir mae_lm_fairseq"
)
DAMAGED = "it is damaged, or not a checkpoint"
DECAY = ("--lr-scheduler", "polynomial_decay")
STATE = {
    "model": {"weight": torch.arange(50_000.0)},
    "cfg": None,
    "args": None,
    "optimizer_history": [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 2}],
    "extra_state": {"train_iterator": {}},
}


def settings(*arguments: str, data: Path | str = "data-bin"):
    """What fairseq-train makes of its command line."""
    return options.parse_args_and_arch(options.get_training_parser(), [str(data), *SETTINGS, *map(str, arguments)])


def config(*arguments: str):
    return convert_namespace_to_omegaconf(settings(*arguments))


def refusal(function, *arguments) -> str:
    """The one line that a user reads."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.code


def complaint(done: subprocess.CompletedProcess) -> str:
    """The one line with which a command ended."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


def test_apply_again_changes_nothing():
    def cured():
        return [
            *(checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.torch_persistent_save, PathManager.copy),
            *(Trainer.__init__, Trainer.load_checkpoint, utils.import_user_module, options.parse_args_and_arch),
            *(distributed_utils.call_main, distributed_utils.broadcast_object),
        ]

    before = cured()
    compat.apply()
    assert all(now is then for now, then in zip(cured(), before, strict=True))
    assert all(hasattr(function, "__wrapped__") for function in before)


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


class TestReading:
    @pytest.mark.parametrize(
        "value",
        [argparse.Namespace(lr=0.5), np.float64(0.1), np.float32(0.5), np.float16(2), np.int64(7), np.bool_(True)],
        ids=lambda value: type(value).__name__,
    )
    def test_plain_values(self, tmp_path, value):
        path = str(tmp_path / "checkpoint.pt")
        torch.save({**STATE, "best": value}, path)
        best = checkpoint_utils.load_checkpoint_to_cpu(path)["best"]
        assert best == value
        assert type(best) is type(value)

    @pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
    def test_scalars_of_either_numpy(self, tmp_path, module):
        path = tmp_path / "checkpoint.pt"
        # The older of torch's two file formats is one plain pickle, in which a name can be exchanged.
        torch.save({**STATE, "best": np.float64(0.1)}, path, _use_new_zipfile_serialization=False)
        written = np.float64().__reduce__()[0].__module__.encode()
        assert written in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(written, module))
        assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["best"] == np.float64(0.1)

    def test_cure_is_what_allows_them(self, tmp_path):
        torch.save({**STATE, "best": np.float64(0.1)}, tmp_path / "checkpoint.pt")
        allowed = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            assert "refused" in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "checkpoint.pt"))
        finally:
            torch.serialization.add_safe_globals(allowed)

    @pytest.mark.parametrize("new_format", [True, False])
    @pytest.mark.parametrize("function", [os.mkdir, Path.mkdir, eval])
    def test_nothing_in_a_checkpoint_runs(self, tmp_path, monkeypatch, function, new_format):
        path, proof = tmp_path / "checkpoint.pt", tmp_path / "it-ran"
        argument = {os.mkdir: str(proof), Path.mkdir: proof, eval: f"__import__('os').mkdir({str(proof)!r})"}[function]

        class Malicious:
            def __reduce__(self):
                return function, (argument,)

        torch.save({**STATE, "best": Malicious()}, path, _use_new_zipfile_serialization=new_format)
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        assert str(path) in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
        assert not proof.exists()
        with pytest.warns(UserWarning, match="weights_only"):
            checkpoint_utils.load_checkpoint_to_cpu.__wrapped__(str(path))
        assert proof.exists()

    def test_something_that_fairseq_takes_for_an_older_checkpoint(self, tmp_path):
        path = str(tmp_path / "checkpoint.pt")
        torch.save({name: value for name, value in STATE.items() if name != "optimizer_history"}, path)
        assert "not a checkpoint of fairseq" in refusal(checkpoint_utils.load_checkpoint_to_cpu, path)
        with pytest.raises(KeyError):
            checkpoint_utils.load_checkpoint_to_cpu.__wrapped__(path)

    def test_builds_of_fairseq_that_allow_code(self, tmp_path):
        torch.save({**STATE, "best": SimpleNamespace()}, tmp_path / "checkpoint.pt")

        def load(path):
            return torch.load(path, weights_only=False)

        assert "SimpleNamespace" in refusal(compat._load_checkpoint_as_data, load, tmp_path / "checkpoint.pt")

    def test_damaged_file(self, tmp_path):
        whole, path = tmp_path / "whole.pt", tmp_path / "checkpoint.pt"
        torch.save(STATE, whole)
        content, generator = whole.read_bytes(), random.Random(0)
        cuts = [content[:length] for length in (0, 1, 100, len(content) // 2, len(content) - 1)]
        noise = [generator.randbytes(length) for length in (1, 10, 100, 1000) for _ in range(20)]
        for damaged in (*cuts, *noise, b"\x80\x02" + noise[-1], b"version https://git-lfs.github.com/spec/v1\n"):
            path.write_bytes(damaged)
            message = refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
            assert message == f"error: cannot read the checkpoint {path}: {DAMAGED}", damaged[:20]

    def test_path_that_is_no_file(self, tmp_path):
        message = refusal(checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path))
        assert message == f"error: cannot read the checkpoint {tmp_path}: Is a directory"

    @pytest.mark.parametrize("content", [{"encoder.weight": torch.zeros(2)}, [1, 2], torch.zeros(2)])
    def test_file_of_something_else(self, tmp_path, content):
        torch.save(content, tmp_path / "pytorch_model.bin")
        assert "not a checkpoint of fairseq" in refusal(
            checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "pytorch_model.bin")
        )

    def test_checkpoint_reaches_the_other_process(self, tmp_path):
        path = str(tmp_path / "checkpoint.pt")
        saved = {**STATE, "cfg": {"model": {"_name": "roberta", "args": argparse.Namespace(layers=3)}}}
        torch.save(saved, path)
        processes = multiprocessing.get_context("fork")
        received = processes.Queue()
        for rank in range(2):
            processes.Process(target=_broadcast, args=(rank, tmp_path / "rendezvous", path, received)).start()
        assert received.get(timeout=60) == {"_name": "roberta", "args": argparse.Namespace(layers=3)}


def _broadcast(rank: int, rendezvous: Path, path: str, received) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    state = checkpoint_utils.load_checkpoint_to_cpu(path) if rank == 0 else None
    try:
        state = distributed_utils.broadcast_object(state, src_rank=0, group=torch.distributed.group.WORLD)
        assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])
    finally:
        if rank == 1:
            received.put(state and state["cfg"]["model"])


class TestSaving:
    """The same for both ways in which fairseq gives a checkpoint its names."""

    @pytest.fixture(params=["torch_persistent_save", "PathManager.copy"])
    def saving(self, request, tmp_path):
        """``saving(state)`` makes a function ``save(path)``; with ``original`` it does what fairseq did."""
        source = tmp_path / "source.pt"

        def saving(state: dict):
            def save(path: Path, original: bool = False) -> None:
                if request.param == "torch_persistent_save":
                    function, arguments = checkpoint_utils.torch_persistent_save, (state, str(path))
                else:
                    function, arguments = PathManager.copy, (str(source), str(path), True)
                (function.__wrapped__ if original else function)(*arguments)

            torch.save(state, source)
            return save

        return saving

    @pytest.mark.parametrize("original", [False, True])
    def test_failure_leaves_what_was_there(self, tmp_path, saving, monkeypatch, original):
        """With a real limit on the size of files, which strikes in the middle of writing as a full disk does."""
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        path = tmp_path / "saved" / "checkpoint.pt"
        path.parent.mkdir()
        saving({"updates": 1})(path)
        saving({"updates": 2})(path)
        save = saving({"updates": 3, "weight": torch.zeros(100_000)})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(
                (OSError, RuntimeError) if original else UserError, match=r"File too large|unexpected pos"
            ):
                save(path, original)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        intact = os.listdir(path.parent) == [path.name] and path.stat().st_size < 5_000
        assert intact is not original
        assert original or torch.load(path) == {"updates": 2}

    def test_on_disk_before_it_has_its_name(self, tmp_path, saving, monkeypatch):
        order = []
        for name in ("fsync", "replace"):
            original = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, name=name, original=original: [order.append(name), original(*a)])
        saving({"updates": 1})(tmp_path / "checkpoint.pt")
        assert order == ["fsync", "replace", "fsync"]

    def test_killed_at_any_moment(self, tmp_path, saving):
        path, generator = tmp_path / "checkpoint.pt", random.Random(0)
        saving({"updates": -1})(path)
        context, updates = multiprocessing.get_context("fork"), []
        for _ in range(12):
            at_work = context.Event()
            process = context.Process(target=_save_forever, args=(saving, path, at_work))
            process.start()
            assert at_work.wait(60)
            time.sleep(generator.uniform(0, 0.1))
            process.kill()
            process.join()
            updates.append(torch.load(path)["updates"])
        assert min(updates) > 3
        assert len(set(updates)) > 1
        assert set(os.listdir(tmp_path)) <= {"checkpoint.pt", "checkpoint.pt.tmp", "source.pt"}

    def test_other_file_systems_are_left_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda path: path.startswith("s3:"))
        copied = []
        assert compat._copy_atomically(lambda *paths, overwrite: copied.append(paths) or True, "s3:a", "b", True)
        compat._save_atomically(lambda obj, path, async_write: copied.append(path), {}, "s3:c")
        assert copied == [("s3:a", "b"), "s3:c"]


def _save_forever(saving, path: Path, at_work) -> None:
    for updates in range(10**9):
        saving({"updates": updates, "weight": torch.full((500_000,), float(updates))})(path)
        if updates > 3:
            at_work.set()


class TestSettings:
    @pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
    def test_bf16_is_no_tpu(self, flag):
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
        "flag", ["--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16", "--amp"]
    )
    def test_half_precision_without_gpu(self, flag):
        started = []
        message = refusal(distributed_utils.call_main, config(flag, "--cpu"), started.append)
        assert message == f"error: {flag} needs a GPU: on a CPU use --autocast bf16 instead"
        assert not started

    def test_half_precision_twice(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        cfg = config("--bf16")
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
            *(("--update-freq", "0"), ("--log-interval", "0"), ("--max-update", "-1")),
            *(("--adam-betas", "0.9"), ("--adam-betas", "(2, 3)"), ("--adam-eps", "nan"), ("--weight-decay", "-1")),
        ],
    )
    def test_numbers_out_of_range(self, option, value):
        started = []
        message = refusal(distributed_utils.call_main, config(option, value), started.append)
        assert message.startswith(f"error: {option} {value}")
        assert not started

    @pytest.mark.parametrize(
        ("option", "value"),
        [("--warmup-updates", "-1"), ("--power", "nan"), ("--power", "-0.5"), ("--end-learning-rate", "nan")],
    )
    def test_numbers_of_the_schedule_out_of_range(self, option, value):
        cfg = config(*DECAY, "--total-num-update", "20", option, value)
        assert refusal(option_checks.check_settings, cfg).startswith(f"error: {option} {value} must be a number")

    def test_one_learning_rate_of_several_out_of_range(self):
        message = refusal(option_checks.check_settings, config("--lr", "1e-3,nan"))
        assert message == "error: --lr nan must be a number from 0 on"
        assert "--lr is empty" in refusal(option_checks.check_settings, config("--lr", ""))

    @pytest.mark.parametrize("value", ["abc", "1e-3 1e-4", "1e-3,abc"])
    def test_lists_that_are_none(self, value, capsys):
        with pytest.raises(SystemExit):
            settings("--lr", value)
        assert f"error: argument --lr: {value!r} is not a number, nor a list" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--total-num-update", "--batch-size-valid", "--max-tokens-valid"])
    @pytest.mark.parametrize("value", ["nan", "inf", "abc", ""])
    def test_text_in_place_of_a_number(self, option, value):
        assert (
            refusal(settings, *DECAY, "--total-num-update", "20", option, value)
            == f"error: {option} {value} must be a number"
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
        assert message.startswith("error: --total-num-update")
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
        assert warnings == ["--max-update 30 is more than --total-num-update 20: the updates after it change nothing"]

    def test_a_check_leaves_nothing_behind(self, tmp_path, monkeypatch):
        """fairseq-validate has a --save-dir, too, where it saves nothing."""
        cfg = config()
        monkeypatch.chdir(tmp_path)
        option_checks.check_settings(cfg)
        assert not list(tmp_path.iterdir())

    def test_half_precision_with_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        option_checks.check_settings(config("--bf16"))
        with pytest.raises(UserError):
            option_checks.check_settings(config("--bf16", "--cpu"))

    @pytest.mark.parametrize("options", [[], ["--distributed-world-size", "2"]])
    def test_torchrun_without_a_gpu(self, monkeypatch, tmp_path, options):
        """fairseq would train twice, or divide by the number of GPUs."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        cfg = config(*options, "--cpu", "--save-dir", tmp_path / "run")
        option_checks.check_settings(cfg)
        for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
            monkeypatch.setenv(name, value)
        started = []
        message = refusal(distributed_utils.call_main, cfg, started.append)
        assert message.startswith("error: torchrun started 2 processes")
        assert not started
        cfg.distributed_training.distributed_init_method = "env://"
        option_checks.check_settings(cfg)

    def test_torchrun_with_one_gpu_on_each_machine(self, monkeypatch, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setenv("WORLD_SIZE", "2")
        options = ["--save-dir", tmp_path / "run"]
        assert "add --distributed-world-size 2" in refusal(
            option_checks.check_settings, config(*options, "--distributed-world-size", "1")
        )
        option_checks.check_settings(config(*options, "--distributed-world-size", "2"))

    @pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model", "--continue-once"])
    def test_checkpoint_that_does_not_exist(self, tmp_path, option):
        started, missing, save_dir = [], tmp_path / "missing.pt", ["--save-dir", tmp_path / "run"]
        message = refusal(distributed_utils.call_main, config(option, missing, *save_dir), started.append)
        assert message.startswith(f"error: {option} {missing}: no such file")
        assert not started
        missing.touch()
        option_checks.check_settings(config(option, missing, *save_dir))

    def test_run_that_goes_on_needs_no_start(self, tmp_path):
        (tmp_path / "checkpoint_last.pt").touch()
        option_checks.check_settings(config("--finetune-from-model", tmp_path / "missing.pt", "--save-dir", tmp_path))

    def test_names_with_a_suffix(self, tmp_path):
        arguments = ["--restore-file", tmp_path / "pretrained.pt", "--checkpoint-suffix", "_half"]
        assert "pretrained_half.pt" in refusal(option_checks.check_settings, config(*arguments))
        (tmp_path / "pretrained_half.pt").touch()
        option_checks.check_settings(config(*arguments))

    @pytest.mark.parametrize(("code", "expected"), [(1, SystemExit), (3, torch.multiprocessing.ProcessExitedException)])
    def test_error_in_a_started_process(self, capfd, code, expected):
        def call_main():
            torch.multiprocessing.start_processes(_fail, args=(code,), nprocs=2, start_method="fork")

        with pytest.raises(expected) as caught:
            compat._call_main_in_processes(call_main)
        assert expected is not SystemExit or caught.value.code == 1
        assert capfd.readouterr().err == ("error: no such file\n" if code == 1 else "")


def _fail(rank: int, code: int) -> None:
    if rank == 1:
        raise UserError("no such file") if code == 1 else SystemExit(code)
    time.sleep(60)


@pytest.fixture(scope="module")
def train(data_bin, run_cli):
    def train(save_dir: Path, *arguments) -> subprocess.CompletedProcess:
        saving = ["--save-dir", save_dir, "--no-epoch-checkpoints", "--cpu"]
        return run_cli(["fairseq-train", data_bin, *SETTINGS, *saving, *arguments])

    return train


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    done = train(directory, "--max-update", "2")
    assert done.returncode == 0, done.stderr
    return directory / "checkpoint_last.pt"


class TestTraining:
    """Through fairseq's own commands."""

    def test_resume(self, train, trained, tmp_path):
        done = train(tmp_path, "--max-update", "4", "--restore-file", trained)
        assert done.returncode == 0, done.stderr
        assert "(epoch 1 @ 2 updates)" in done.stdout
        last = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
        assert last["optimizer_history"][-1]["num_updates"] == 4

    def test_checkpoint_of_another_size(self, train, trained):
        done = train(trained.parent, "--max-update", "4", "--encoder-embed-dim", "32", "--dropout", "0.3")
        assert complaint(done) == (
            f"error: the checkpoint {trained} does not fit this model: "
            "dropout is 0.1 there and 0.3 here; encoder_embed_dim is 16 there and 32 here"
        )

    def test_checkpoint_that_does_not_exist(self, train, tmp_path):
        done = train(tmp_path / "run", "--restore-file", tmp_path / "missing.pt")
        assert str(tmp_path / "missing.pt") in complaint(done)
        assert not (tmp_path / "run").exists()

    def test_hydra(self, data_bin, run_cli, tmp_path):
        arguments = {
            "task": "masked_lm",
            "task.data": data_bin,
            "criterion": "masked_lm",
            "+model._name": "roberta_base",
            "+model.encoder_layers": 1,
            "dataset.batch_size": 8,
            "optimizer": "adam",
            "lr_scheduler": "fixed",
            "common.user_dir": Path(compat.__file__).parent,
            "common.cpu": "true",
            "common.bf16": "true",
        }
        command = ["fairseq-hydra-train", *(f"{key}={value}" for key, value in arguments.items())]
        assert "--bf16 needs a GPU" in complaint(run_cli(command, cwd=tmp_path))

    def test_task_checks_checkpoint(self, data_bin, trained, run_cli, tmp_path):
        script = tmp_path / "train.py"
        script.write_text(
            "from fairseq.tasks.masked_lm import MaskedLMTask\n"
            "from fairseq_cli.train import cli_main\n"
            "from mae_lm_fairseq.utils.errors import UserError\n"
            "def check_checkpoint(task, filename, state):\n"
            '    raise UserError(f\'{filename} has {len(state["model"])} weights, {state["task_state"]}\')\n'
            "MaskedLMTask.check_checkpoint = check_checkpoint\n"
            "cli_main()\n"
        )
        saving = ["--save-dir", trained.parent, "--max-update", "2", "--cpu"]
        done = run_cli(["python", script, data_bin, *SETTINGS, *saving], env={"PYTHONPATH": str(PACKAGE.parent)})
        weights = len(torch.load(trained)["model"])
        assert complaint(done) == f"error: {trained} has {weights} weights, {{}}"


LOADING_AHEAD = """
import torch
import mae_lm_fairseq
from fairseq.data.iterators import BufferedIterator

class Batches:
    def __len__(self):
        return 10**6

    def __iter__(self):
        states = torch.randn(400, 400)
        while True:
            yield states @ states

next(iter(BufferedIterator(10, Batches())))
"""


def test_a_run_that_stops_while_batches_are_loaded_ends_well(run_cli, tmp_path):
    script = tmp_path / "stop.py"
    script.write_text(LOADING_AHEAD)
    done = run_cli(["python", script], env={"PYTHONPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stderr  # without the cure it is -6
