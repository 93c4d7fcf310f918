"""Time the scoring of sentences by pseudo-log-likelihood, on this CPU.

Compared with the bare forward passes of the same batches; the two take turns, and the ratio is the median of the
rounds' ratios.

Example:
    scripts/benchmark.py scoring --preset mae_lm_roberta
"""

import statistics
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import PRESETS, SIZES, preset_config
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout
from mae_lm_fairseq.trained.masked_prediction import NEVER_MASKED, NetworkPredictor, Words, pseudo_log_likelihoods
from mae_lm_fairseq.utils.command_line import Count, Options, OutputFile
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance

VOCABULARY = 8_000
PAD, MASK = 1, VOCABULARY - 1
SHORTEST, LONGEST = 6, 20
"""Sentence lengths in tokens, about as in BLiMP."""


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Options of the benchmark.

    Attributes:
        preset: preset of the model.
        size: size of the model.
        sentences: number of sentences.
        rounds: timed rounds.
        json: JSON file for the results.
    """

    preset: Literal[*PRESETS] = "mae_lm"
    size: Literal[*SIZES] = "tiny"
    sentences: Count = 500
    rounds: Count = 5
    json: OutputFile | None = None


def main(options: BenchmarkOptions) -> None:
    """Measure and print."""
    found = measure(options.preset, options.size, options.sentences, options.rounds)
    for name in ("scoring", "forward"):
        seconds = statistics.median(getattr(found, name))
        print(f"{name:8} {seconds:7.2f} s   {found.tokens / seconds:,.0f} tokens per second")
    print(f"scoring runs at {found.ratio:.0%} of the rate of the forward passes")
    if options.json:
        write_json(options.json, provenance() | vars(found))


@dataclass(frozen=True)
class Scoring:
    """Measured times.

    Attributes:
        scoring, forward: seconds of each round.
        tokens: in all rows.
    """

    scoring: list[float]
    forward: list[float]
    tokens: int

    @property
    def ratio(self) -> float:
        """The rate of scoring as a fraction of that of the forward passes: the median of the rounds."""
        return statistics.median(forward / scoring for forward, scoring in zip(self.forward, self.scoring, strict=True))


class _Recorder(NetworkPredictor):
    """Keeps the batches that it predicts, with their layouts."""

    def __init__(self, network: MaskedAutoencoder):
        super().__init__(network, PAD, MASK)
        self.batches: list[tuple[Tensor, BatchLayout]] = []

    def __call__(self, tokens: Tensor, is_predicted: Tensor) -> Tensor:
        self.batches.append((tokens, batch_layout(tokens, is_predicted, PAD, MASK)))
        return super().__call__(tokens, is_predicted)


@torch.no_grad()
def measure(preset: str, size: str, sentences: int, rounds: int) -> Scoring:
    """Time scoring and the forward passes in turn, after one round of warm-up.

    Args:
        preset, size: of :data:`~mae_lm_fairseq.core.config.PRESETS` and :data:`~mae_lm_fairseq.core.config.SIZES`.
        sentences: how many to score.
        rounds: number of timed rounds.
    """
    torch.manual_seed(1)
    network = MaskedAutoencoder(preset_config(preset, size), VOCABULARY, PAD, MASK).eval()
    texts, recorder = _draw_sentences(sentences), _Recorder(network)
    pseudo_log_likelihoods(recorder, texts)
    predictor, found = NetworkPredictor(network, PAD, MASK), ([], [])
    for _ in range(rounds):
        start = time.perf_counter()
        pseudo_log_likelihoods(predictor, texts)
        middle = time.perf_counter()
        for tokens, layout in recorder.batches:
            network(tokens, layout)
        found[0].append(middle - start)
        found[1].append(time.perf_counter() - middle)
    return Scoring(*found, sum(layout.sequence.index.numel() for _, layout in recorder.batches))


def _draw_sentences(count: int) -> list[Words]:
    """Return synthetic sentences of different lengths, each token a word."""
    generator = np.random.default_rng(1)
    sentences = []
    for length in generator.integers(SHORTEST, LONGEST, count):
        words = np.arange(length)
        words[[0, -1]] = NEVER_MASKED
        sentences.append(Words(np.array([0, *generator.integers(4, MASK, length - 2), 2]), words))
    return sentences
