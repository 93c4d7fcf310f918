"""The batch size on GPUs: what the planner puts into the memory, and a checkpoint's when a run resumes."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.cost.planned_run import DEVICES, PlannedRun
from mae_lm_fairseq.cost.planner import BatchMemory, batch_memory, plan_cost
from mae_lm_fairseq.training import batch_size
from mae_lm_fairseq.training.batch_size import MEMORY_FRACTION, training_run
from mae_lm_fairseq.training.estimate import TrainingRun
from mae_lm_fairseq.training.pretrain import configure
from mae_lm_fairseq.training.settings import recipe
from tests.support import words_of
from tests.support.documentation import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::UserWarning")]

GB = 10**9
PAGE = ROOT / "docs/pretraining.md"
MEMORIES = sorted({device.memory for device in DEVICES.values()})
SIZES = ("base", "large")
PRECISIONS = ("--fp16", "--autocast bf16")
"""``--bf16`` takes as much memory as ``--fp16``, and training on GPUs is never in float32."""


def configured(architecture, *words, save_dir="saved"):
    return configure(architecture, "data", str(save_dir), words_of(*words))


@pytest.fixture
def gpus(monkeypatch):
    """Return ``pretend(memories)``, which simulates GPUs of these gigabytes on which a sequence takes 1 GB."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(batch_size, "fastest_backend", lambda device, training: AttentionBackend.fused)
    monkeypatch.setattr(batch_size, "batch_memory", lambda run: BatchMemory(2 * GB, GB))

    def pretend(*memories):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memories))
        properties = [SimpleNamespace(total_memory=memory * GB) for memory in memories]
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties[number])

    return pretend


class TestMemory:
    def test_is_linear_in_the_batch(self):
        """At 4 times the tokens of the smaller batch that is measured, and at a quarter of them, above the plan's."""
        run = PlannedRun("mae_lm_tiny", tokens_per_sample=512, devices=2)
        memory = batch_memory(run)
        planned = {size: plan_cost(replace(run, batch_size=size)).memory_total for size in (8, 128)}
        assert memory.total(128) == pytest.approx(planned[128], rel=0.01)  # chunks of logits are not always full
        assert planned[8] <= memory.total(8) <= 1.2 * planned[8]

    @pytest.mark.parametrize(("memory", "expected"), [(2.9, 0), (3, 1), (5.9, 2), (6, 4), (1026, 1024)])
    def test_the_largest_batch_is_a_power_of_two(self, memory, expected):
        assert BatchMemory(2 * GB, GB).largest_batch(memory * GB) == expected


def batches(architecture: str, *precision: str) -> list[int]:
    """Return the batch of each kind of device, by increasing memory of its data sheet."""
    words = ["--cpu --attention-backend fused", *precision]
    _, cfg, _ = configured(architecture, *words)
    memory = batch_memory(training_run(cfg, PlannedRun.vocab_size, processes=1))
    sequences = recipe(architecture)["sequences"].value
    return [min(sequences, memory.largest_batch(MEMORY_FRACTION * size)) for size in MEMORIES]


def of_page() -> dict[tuple[str, str], list[int]]:
    """Return the rows of the table of the page, by preset and options of the precision."""
    rows = re.findall(r"^\| `(mae_lm_\w+)` \| `(--[\w -]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {(preset, precision): [int(cell) for cell in cells.split(" | ")] for preset, precision, cells in rows}


def test_the_page_covers_all_presets_and_devices():
    expected = {(f"{preset}_{size}", precision) for preset in PRESETS for size in SIZES for precision in PRECISIONS}
    assert of_page().keys() == expected
    memories = " | ".join(f"{memory // GB} GB" for memory in MEMORIES)
    assert f"| preset | precision | {memories} |\n" in PAGE.read_text()
    for memory in MEMORIES:
        kinds = ", ".join(f"`{kind}`" for kind, device in DEVICES.items() if device.memory == memory)
        assert f"| {memory // GB} GB | {kinds} |\n" in PAGE.read_text()


@pytest.mark.parametrize("precision", [PRECISIONS[0], pytest.param(PRECISIONS[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("preset", "size"),
    [
        pytest.param(preset, size, marks=[] if preset == "mae_lm" else pytest.mark.slow)
        for preset in PRESETS
        for size in SIZES
    ],
)
def test_the_table_on_the_page_is_computed(preset, size, precision):
    architecture = f"{preset}_{size}"
    assert of_page()[architecture, precision] == batches(architecture, *precision.split())


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--fp16"], {"precision": "fp16"}),
        (["--autocast bf16"], {"precision": "autocast"}),
        (["--checkpoint-activations"], {"checkpoint_activations": True}),
        (["--attention-backend sdpa"], {"attention": AttentionBackend.sdpa}),
        (["--compile"], {"attention": AttentionBackend.fused}),
        (["--tokens-per-sample 128"], {"tokens_per_sample": 128}),
        (["--mask-prob 0.4"], {"mask_prob": 0.4}),
    ],
)
def test_the_planner_knows_the_options_that_change_memory(gpus, words, changes):
    gpus(80)
    _, cfg, _ = configured("mae_lm_tiny", *words)
    run = training_run(cfg, 32_000, processes=3)
    assert {name: getattr(run, name) for name in changes} == changes
    assert (run.devices, run.update_freq, run.vocab_size) == (3, 2, 32_000)


def test_scores_of_other_backends_than_fused_are_counted(gpus):
    gpus(80)
    _, cfg, _ = configured("mae_lm_tiny", "--tokens-per-sample 64")
    run = training_run(cfg, 32_000, 1)
    fused, eager = (
        plan_cost(replace(run, attention=attention)).memory_total
        for attention in (AttentionBackend.fused, AttentionBackend.eager)
    )
    assert eager > fused


class TestChoice:
    @pytest.mark.parametrize(
        ("memories", "batch", "accumulated"),
        [
            ([24], 8, 256),
            ([80], 32, 64),
            ([100], 64, 32),
            ([400], 256, 8),
            ([9999], 2048, 1),
            ([80, 24, 80, 80], 8, 64),
        ],
    )
    def test_fills_70_per_cent_of_the_smallest_gpu_and_keeps_the_update(self, gpus, memories, batch, accumulated):
        gpus(*memories)
        _, cfg, chosen = configured("mae_lm_base")
        assert (cfg.dataset.batch_size, list(cfg.optimization.update_freq)) == (batch, [accumulated])
        reason = f"{batch} sequences per batch: {batch + 2} of {min(memories)} GB by the planner's estimate"
        assert (chosen.reasons, chosen.warnings) == ((reason,), ())

    def test_an_option_of_the_user_or_a_cpu_leaves_it(self, gpus):
        gpus(400)
        for words in (["--cpu"], ["--batch-size 32"], ["--update-freq 64"]):
            _, cfg, chosen = configured("mae_lm_base", *words)
            assert (cfg.dataset.batch_size, list(cfg.optimization.update_freq), chosen.reasons) == (32, [64], ())

    def test_a_gpu_that_is_too_small_is_warned_of(self, gpus):
        gpus(4)
        _, cfg, chosen = configured("mae_lm_base")
        assert cfg.dataset.batch_size == 32
        [warning] = chosen.warnings
        assert warning.startswith("1 sequences per batch: 3 of 4 GB")
        assert "--checkpoint-activations" in warning

    @pytest.mark.parametrize("problem", ["is_wrapped", "data-dependent"])
    def test_a_network_that_the_planner_does_not_describe_keeps_the_recipes(self, gpus, monkeypatch, problem):
        def fails(run):
            raise RuntimeError("data-dependent")

        gpus(400)
        if problem == "is_wrapped":
            monkeypatch.setattr(TrainingRun, "is_wrapped", True)
        else:
            monkeypatch.setattr(batch_size, "batch_memory", fails)
        _, cfg, chosen = configured("mae_lm_base")
        assert cfg.dataset.batch_size == 32
        [reason] = chosen.reasons
        assert ("of transformers" if problem == "is_wrapped" else problem) in reason


class TestResumed:
    @pytest.fixture
    def checkpoint(self):
        def write(path: Path, batch: int) -> Path:
            path.parent.mkdir(exist_ok=True)
            torch.save({"cfg": {"dataset": {"batch_size": batch}}, "model": {}}, path)
            return path

        return write

    @pytest.mark.parametrize(("number", "saved", "batch", "accumulated"), [(1, 64, 64, 32), (8, 2048, 256, 1)])
    def test_keeps_the_batch_of_its_checkpoint(self, gpus, checkpoint, tmp_path, number, saved, batch, accumulated):
        """More processes make it smaller."""
        gpus(*[400] * number)
        last = checkpoint(tmp_path / "saved/checkpoint_last.pt", saved)
        _, cfg, chosen = configured("mae_lm_base", save_dir=last.parent)
        assert (cfg.dataset.batch_size, list(cfg.optimization.update_freq)) == (batch, [accumulated])
        assert str(last) in chosen.reasons[0]

    def test_passes_over_a_damaged_or_missing_last_checkpoint(self, gpus, checkpoint, tmp_path):
        gpus(400)
        earlier = checkpoint(tmp_path / "saved/checkpoint_1_500.pt", 128)
        for damage in (lambda last: None, lambda last: last.write_bytes(b"damaged")):
            damage(earlier.with_name("checkpoint_last.pt"))
            _, cfg, _ = configured("mae_lm_base", save_dir=earlier.parent)
            assert cfg.dataset.batch_size == 128

    @pytest.mark.parametrize(
        ("option", "save_dir", "batch"), [("--restore-file", "saved", 16), ("--finetune-from-model", "other", 256)]
    )
    def test_restore_file_is_the_checkpoint(self, gpus, checkpoint, tmp_path, option, save_dir, batch):
        """Weights to start from are no checkpoint to resume from."""
        gpus(400)
        checkpoint(tmp_path / "saved/checkpoint_last.pt", 64)
        start = checkpoint(tmp_path / "start.pt", 16)
        _, cfg, _ = configured("mae_lm_base", option, start, save_dir=tmp_path / save_dir)
        assert cfg.dataset.batch_size == batch
