"""FLOPs and memory of the rehearsed training step against a real one."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from benchmark.workers.training import Training
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import PRESETS, MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.core.kernels.operator import PositionBias, Rows, attend
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.core.relative_position import relative_position_bucket
from mae_lm_fairseq.cost.flops import TRAINING, Positions, forward_flops
from mae_lm_fairseq.cost.memory import (
    PAD,
    PRECISIONS,
    TOKEN,
    AllocationCounter,
    FakeTrainingStep,
    Memory,
    training_memory,
)

pytestmark = pytest.mark.integration  # measures steps of all presets

VOCABULARY = 8_000


PRE_NORM = ("mae_lm_pre_norm", "mae_lm_exlm_pre_norm")


def config(preset: str, size: str) -> MaskedAutoencoderConfig:
    return preset_config(preset.removesuffix("_pre_norm"), size, pre_norm=preset in PRE_NORM)


def check(directory, config, positions, rows, precision="fp32", checkpoint_activations=False) -> None:
    """Compare with the peak number of bytes in tensors during a real step with torch's fused AdamW."""
    mask = VOCABULARY - 1
    tokens = torch.full((rows, positions.sequence), TOKEN)
    tokens[:, -positions.predicted :] = mask
    layout, targets = batch_layout(tokens, tokens.eq(mask), PAD, mask), tokens[tokens.eq(mask)]
    network = MaskedAutoencoder(config, VOCABULARY, PAD, mask)
    for stack in network.stacks():
        stack.checkpoint_activations = checkpoint_activations

    def loss(network, _):
        total, _ = network.lm_head.loss(network.predicted_states(tokens, layout), targets, layout)
        return total, len(targets), len(targets)

    names = {"fp32": "fp32", "autocast": "bf16"}
    spec = {"device": "cpu", "directory": directory, "precision": names[precision]}
    training = Training(spec, network, collate=None, loss=loss)
    training.batches["the one"] = None
    training.train("the one", 1)
    options = {"precision": PRECISIONS[precision], "checkpoint_activations": checkpoint_activations}
    planned = memory_of(config, positions, rows, **options)
    assert planned.total == pytest.approx(training.memory("the one", 1), rel=0.15)


def memory_of(config: MaskedAutoencoderConfig, *batch, accumulate: bool = False, **options) -> Memory:
    return training_memory(FakeTrainingStep(config, VOCABULARY, *batch, **options), accumulate)


@pytest.mark.parametrize(("preset", "size"), [*((preset, "tiny") for preset in PRESETS), ("mae_lm", "large")])
def test_formula_counts_what_torch_counts(preset, size):
    positions = Positions(128, 90, 38)
    training_step = FakeTrainingStep(config(preset, size), VOCABULARY, positions, rows=2)
    with FlopCounterMode(display=False) as counter:
        training_step.run()
    flops = forward_flops(config(preset, size), VOCABULARY, [positions] * 2)
    again = flops.head if config(preset, size).mask_states > 1 else 0  # computed again in the backward pass
    assert counter.get_total_flops() == pytest.approx(TRAINING * flops.total + again, rel=0.02)


@pytest.mark.parametrize("size", ["tiny", pytest.param("small", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("preset", "checkpoint_activations"),
    [*((preset, False) for preset in (*PRESETS, *PRE_NORM)), ("mae_lm", True), ("mae_lm_exlm", True)],
)
def test_memory_equals_that_of_a_real_step(preset, size, checkpoint_activations, tmp_path):
    check(tmp_path, config(preset, size), Positions(128, 90, 38), 8, checkpoint_activations=checkpoint_activations)


@pytest.mark.slow  # half a minute on a CPU that is slow in bfloat16
def test_memory_under_autocast(tmp_path):
    check(tmp_path, config("mae_lm", "small"), Positions(128, 90, 38), 8, precision="autocast")


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_activations", [False, True], ids=["kept", "checkpointed"])
def test_memory_at_base_size(checkpoint_activations, tmp_path):
    batch = config("mae_lm", "base"), Positions(512, 435, 77), 2
    check(tmp_path, *batch, checkpoint_activations=checkpoint_activations)


def memory(precision: str = "fp32", rows: int = 8, **options) -> Memory:
    return memory_of(config("mae_lm", "tiny"), Positions(128, 90, 38), rows, precision=PRECISIONS[precision], **options)


def test_memory_that_depends_on_parameters_only():
    network = MaskedAutoencoder(config("mae_lm", "tiny"), VOCABULARY, PAD, VOCABULARY - 1)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    for precision, weight, optimizer in [("fp32", 4, 8), ("autocast", 4, 8), ("bf16", 2, 16), ("fp16", 2, 16)]:
        measured = memory(precision, accumulate=True)
        buffers = sum(buffer.nbytes for buffer in network.buffers())
        assert (measured.weights, measured.optimizer) == (weight * parameters + buffers, optimizer * parameters)
        assert measured.gradients == weight * parameters


def test_masks_in_the_encoder_take_memory():
    of_encoder = [
        memory_of(config("mae_lm", "tiny"), Positions(128, visible, 38), 8).encoder for visible in (90, 109, 128)
    ]
    assert of_encoder == sorted(set(of_encoder))


def test_options_that_change_memory():
    usual = memory()
    assert memory(rows=16).encoder > 1.9 * usual.encoder
    assert memory(checkpoint_activations=True).total < usual.total
    assert memory("autocast").total < usual.total
    assert memory("bf16").encoder < usual.encoder
    assert usual.gradients < memory(accumulate=True).gradients


def test_fused_attention_allocates_its_results_only():
    tokens, heads, head_size, buckets = 130, 2, 8, 20
    starts, positions = torch.tensor([0, tokens]).int(), torch.arange(tokens)
    rows = Rows(starts, starts, positions, positions, tokens, tokens)
    packed = torch.zeros(tokens, 3, heads, head_size, dtype=torch.float16, requires_grad=True)
    table = torch.zeros(buckets, heads, requires_grad=True)
    normaliser = random = 4 * tokens * heads
    bucket = relative_position_bucket(torch.arange(1 - tokens, tokens), buckets, 64)
    bias, counter = PositionBias.of(table, bucket, rows), AllocationCounter()
    with counter, FakeTensorMode(allow_non_fake_inputs=True):
        output = attend(packed, None, rows, bias, 0.1)
        assert counter.live.total() == output.nbytes + normaliser + random
        output.backward(output.detach())
    assert counter.peak.total() == 4 * output.nbytes + normaliser + random + table.nbytes  # one gradient of all three
