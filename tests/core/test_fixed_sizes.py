"""Batches with dummies: sizes of buckets, equal loss and gradients, and no influence of what the dummies contain."""

import pytest
import torch
from torch import Tensor

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.fixed_sizes import BUCKETS, IGNORED, Counts, FixedBatch, FixedSizes
from mae_lm_fairseq.core.packing import batch_layout, pack
from tests.support.comparisons import assert_close
from tests.support.networks import MASK, PAD, batch, network, text

WIDTH = 24
ROWS = 7
TOKEN = 4
NETWORKS = (
    "mae_lm",
    "mae_lm_roberta",
    "mae_lm_3ml_self",
    "mae_lm_3ml_cross",
    "mae_lm_cross",
    "mae_lm_mask_later",
    "mae_lm_pre_norm",
    "mae_lm_roberta_pre_norm",
    "mae_lm_renumber_visible",
    "mae_lm_narrow",
)


def sizes(rate: float = 0.2, kept: float = 0.0, rows: int = ROWS, width: int = WIDTH, token: int = TOKEN) -> FixedSizes:
    return FixedSizes(rows, width, rate, kept, PAD, MASK, token)


def ragged_batch(seed: int, rate: float = 0.2, kept: float = 0.0, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Return corrupted tokens and targets; each row predicts as many tokens as fairseq would."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, WIDTH + 1, (rows,), generator=generator).tolist()
    tokens = batch(*(text(length, 100 * seed + row) for row, length in enumerate(lengths)))
    target = torch.full_like(tokens, PAD)
    corrupted = tokens.clone()
    for row, length in enumerate(lengths):
        number = int(rate * length + torch.rand((), generator=generator))
        columns = torch.randperm(length, generator=generator)[:number]
        target[row, columns] = tokens[row, columns]
        is_mask = torch.rand(number, generator=generator) >= kept
        corrupted[row, columns[is_mask]] = MASK
    return corrupted, target


def loss_of(net: MaskedAutoencoder, tokens: Tensor, target: Tensor, width: int | None = None) -> Tensor:
    layout = batch_layout(tokens, target.ne(PAD), PAD, MASK, needs=net.needs(), width=width)
    targets = pack(target, layout.predicted)
    return net.lm_head.loss(net.predicted_states(tokens, layout), targets, layout)[0]


def gradients(net: MaskedAutoencoder, *inputs) -> list[Tensor]:
    """Return the loss, and the gradients of all parameters."""
    loss = loss_of(net, *inputs)
    return [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]


def training_network(
    name: str,
    dtype: torch.dtype = torch.float32,
    backend: AttentionBackend = AttentionBackend.fused,
    probability: float = 0.0,
    **changes,
) -> MaskedAutoencoder:
    """Return a network that trains with dropout of one probability everywhere."""
    options = {"dropout": probability, "attention_dropout": probability, "decoder_dropout": probability}
    if "roberta" in name or "later" in name:
        del options["decoder_dropout"]
    net = network(name, **options, **changes).to(dtype).train()
    for stack in net.stacks():
        stack.attention_backend = backend
    return net


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("dtype", "backend", "tolerance"),
    # Sums over tokens have another order; no more than rounding may differ. Eager attention adds its bias in float32.
    [
        (torch.float64, AttentionBackend.fused, 1e-14),
        (torch.float32, AttentionBackend.fused, 5e-6),
        (torch.float32, AttentionBackend.eager, 5e-6),
    ],
)
def test_loss_and_gradients_are_those_of_the_ragged_batch(name, dtype, backend, tolerance):
    net = training_network(name, dtype, backend)
    tokens, target = ragged_batch(seed=3, kept=0.2)
    fixed = sizes(kept=0.2).pad_batch(tokens, target)
    ragged = gradients(net, tokens, target)
    padded = gradients(net, fixed.tokens, fixed.target, WIDTH)
    for ours, reference in zip(padded, ragged, strict=True):
        largest = max(reference.abs().max().item(), 1e-3)
        assert_close(ours, reference, tolerance * largest)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_dummies_contain_changes_no_bit(name):
    net = training_network(name)
    tokens, target = ragged_batch(seed=4)
    results = []
    for token in (TOKEN, 17):
        fixed = sizes(token=token).pad_batch(tokens, target)
        results.append(gradients(net, fixed.tokens, fixed.target, WIDTH))
    assert all(map(torch.equal, *results))


def counts_of(fixed: FixedBatch) -> Counts:
    masked = int(fixed.tokens.eq(MASK).sum())
    present = int(fixed.tokens.ne(PAD).sum())
    return Counts(present - masked, masked, int(fixed.target.ne(PAD).sum()))


@pytest.mark.parametrize("kept", [0.0, 0.2])
@pytest.mark.parametrize("rows", [ROWS, 3])
def test_sizes_are_those_of_the_bucket(kept, rows):
    fixed_sizes = sizes(kept=kept)
    for seed in range(20):
        tokens, target = ragged_batch(seed, kept=kept, rows=rows)
        fixed = fixed_sizes.pad_batch(tokens, target)
        assert counts_of(fixed) == fixed.bucket.counts
        assert fixed.tokens.shape == fixed.target.shape == (fixed.bucket.rows, WIDTH)
        assert torch.equal(fixed.tokens[:rows, : tokens.shape[1]], tokens)
        assert torch.equal(fixed.target[:rows, : target.shape[1]], target)
        assert fixed.target[fixed.tokens.eq(MASK)].ne(PAD).all()
        dummies = fixed.target[rows:]
        assert int(dummies.eq(IGNORED).sum()) == fixed.dummies.predicted
        assert int(fixed.tokens[rows:].eq(MASK).sum()) == fixed.dummies.masked
        assert int(fixed.tokens[rows:].ne(PAD).sum()) == fixed.dummies.tokens


def many_counts(fixed_sizes: FixedSizes, batches: int, kept: float) -> list[tuple[int, Counts]]:
    """Return length and counts of batches of documents, sorted by length as in training, without their tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, fixed_sizes.width + 1, (batches * fixed_sizes.rows,), generator=generator)
    numbers = []
    for rows in lengths.sort().values.split(fixed_sizes.rows):
        predicted = (fixed_sizes.rate * rows + torch.rand(len(rows), generator=generator)).int()
        masked = torch.binomial(predicted.float(), torch.tensor(1 - kept).expand(len(rows)), generator=generator).int()
        visible = int((rows - masked).sum())
        numbers.append((int(rows.sum()), Counts(visible, int(masked.sum()), int(predicted.sum()))))
    return numbers


@pytest.mark.parametrize(("width", "kept"), [(512, 0.0), (512, 0.2), (128, 0.0)])
@pytest.mark.parametrize("rows", [32, 256])
def test_few_buckets_with_little_padding(width, kept, rows):
    fixed_sizes = sizes(rate=0.15, kept=kept, rows=rows, width=width)
    batches = many_counts(fixed_sizes, 300, kept)
    buckets = set()
    padded = 0
    for tokens, counts in batches:
        bucket = fixed_sizes.bucket_of(counts)
        buckets.add(bucket)
        padded += bucket.counts.tokens - tokens
    assert len(buckets) <= BUCKETS
    # Half of a step of all 31, of documents that are half as long as the longest, and the margin for rounding.
    assert padded / sum(tokens for tokens, _ in batches) < 0.06
