"""Time feature extraction from sentences of different lengths, in comparison with stock transformers, on this CPU.

The stock model has the same weights: MPNetModel with the relative position bias, RobertaModel without it. It runs on
padded batches of 32 sentences, in the given order and sorted by length. The three take turns in every round; a speed-up
is the median of the rounds' ratios. Below them: where the time of our method goes.

Example:
    scripts/benchmark.py features --size small
"""

import mae_lm_fairseq.trained.huggingface  # noqa: F401, I001  hides a broken torchaudio: must come before transformers

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmark.operators import by_kind
from benchmark.workers.training import operator_seconds
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import SIZES, preset_config
from mae_lm_fairseq.trained.hub import MAELMHubInterface, hub_interface
from mae_lm_fairseq.trained.huggingface.stock import counterpart, stock_weights, written_config
from mae_lm_fairseq.trained.info import ModelInfo
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.command_line import Count, Options, OutputFile
from mae_lm_fairseq.utils.versions import provenance

VOCABULARY = 32_000
MEDIAN, SPREAD, SHORTEST, LONGEST = 24, 0.6, 4, 256
"""Parameters of the sentence lengths in tokens: log-normal, approximately as in real text."""
ROWS = 32
"""Sentences per batch of transformers."""


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Options of the benchmark.

    Attributes:
        size: size of the encoder.
        no_bias: no relative positions; compare with RobertaModel.
        bf16: both models in bfloat16 (default: float32).
        sentences: number of sentences.
        rounds: timed rounds.
        json: JSON file for the results.
    """

    size: Literal[*SIZES] = "small"
    no_bias: bool = False
    bf16: bool = False
    sentences: Count = 1000
    rounds: Count = 5
    json: OutputFile | None = None


def main(options: BenchmarkOptions) -> None:
    """Measure and print the results."""
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    found = measure(options.size, not options.no_bias, dtype, options.sentences, options.rounds)
    print(f"{found.tokens:,} tokens, {found.padded:,} with padding; largest difference {found.difference:.1e}")
    for name, seconds in found.seconds.items():
        print(
            f"{name:24} {statistics.median(seconds):7.2f} s   this package is {found.speedup(name):.2f} times as fast"
        )
    for kind, fraction in by_kind(found.operators).items():
        print(f"{kind:40} {fraction:6.1%}")
    if options.json:
        write_json(options.json, provenance() | vars(found))


@dataclass(frozen=True)
class Features:
    """Result of a measurement.

    Attributes:
        seconds: time of each round, by method.
        tokens: tokens of all sentences.
        padded: positions of transformers' batches in the given order, padding included.
        difference: maximum absolute difference between our features and those of transformers.
        operators: seconds of each operator of our method, its callees excluded.
    """

    seconds: dict[str, list[float]]
    tokens: int
    padded: int
    difference: float
    operators: dict[str, float]

    def speedup(self, name: str) -> float:
        """Return the median over the rounds of another method's time divided by ours in the same round."""
        return statistics.median(
            theirs / ours for theirs, ours in zip(self.seconds[name], self.seconds["ours"], strict=True)
        )


def measure(size: str, relative_bias: bool, dtype: torch.dtype, sentences: int, rounds: int) -> Features:
    """Time three alternating methods: ours, transformers in the given order, and transformers sorted by length.

    Args:
        size: a key of :data:`~mae_lm_fairseq.core.config.SIZES`.
        relative_bias: compare with MPNet if True, else, without the bias, with RoBERTa.
        dtype: of the weights, and so of the computation, of both models.
        rounds: number of timed rounds, after one warm-up round.
    """
    hub, stock = (model.to(dtype) for model in models(size, relative_bias))
    texts = draw_sentences(sentences)
    by_length = sorted(range(sentences), key=lambda index: len(texts[index]))
    given, in_order = list(_batches(range(sentences))), list(_batches(by_length))
    ways: dict[str, Callable[[], list[Tensor]]] = {
        "ours": lambda: hub.extract_features(texts),
        "transformers": lambda: stock_features(stock, texts, given),
        "transformers, sorted": lambda: stock_features(stock, texts, in_order),
    }
    results = {name: way() for name, way in ways.items()}
    difference = max((a - b).abs().max().item() for a, b in zip(results["ours"], results["transformers"], strict=True))
    seconds = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    padded = sum(len(batch) * max(len(texts[index]) for index in batch) for batch in given)
    return Features(seconds, sum(map(len, texts)), padded, difference, operator_seconds(ways["ours"]))


def models(size: str, relative_bias: bool) -> tuple[MAELMHubInterface, transformers.PreTrainedModel]:
    """Return the same random encoder as our model and as a stock model of transformers."""
    bias = {} if relative_bias else {"relative_buckets": 0, "decoder_relative_buckets": 0}
    config = preset_config("mae_lm", size, **bias)
    torch.manual_seed(1)
    network = MaskedAutoencoder(config, VOCABULARY, pad=1, mask=VOCABULARY - 1)
    network.drop_prediction()
    weights = {f"autoencoder.{name}": weight for name, weight in network.state_dict().items()}
    symbols = ("<s>", "<pad>", "</s>", "<unk>", *map(str, range(VOCABULARY - 5)), "<mask>")
    pretrained = Pretrained(config, weights, symbols, tokenizer=None, about=ModelInfo())
    to = counterpart(pretrained)
    config = transformers.AutoConfig.for_model(**written_config(pretrained, to))
    stock = getattr(transformers, to.architecture)(config, add_pooling_layer=False)
    stock.load_state_dict(stock_weights(pretrained, to), strict=False)
    return hub_interface(pretrained), stock.eval()


def draw_sentences(count: int) -> list[Tensor]:
    """Draw ids [T_i] of random sentences of different lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = (MEDIAN * (SPREAD * torch.randn(count, generator=generator)).exp()).long().clamp(SHORTEST, LONGEST)
    inside = [torch.randint(4, VOCABULARY - 1, (length - 2,), generator=generator) for length in lengths.tolist()]
    return [torch.cat([torch.tensor([0]), tokens, torch.tensor([2])]) for tokens in inside]


@torch.no_grad()
def stock_features(stock: transformers.PreTrainedModel, texts: list[Tensor], batches: list[list[int]]) -> list[Tensor]:
    """Return the last hidden states [T_i, dim] of each text, computed in padded batches with an attention mask."""
    features = [None] * len(texts)
    for batch in batches:
        tokens = pad_sequence([texts[index] for index in batch], batch_first=True, padding_value=1)
        states = stock(input_ids=tokens, attention_mask=tokens.ne(1).long()).last_hidden_state
        for index, row in zip(batch, states, strict=True):
            features[index] = row[: len(texts[index])]
    return features


def _batches(order) -> Iterator[list[int]]:
    order = list(order)
    for start in range(0, len(order), ROWS):
        yield order[start : start + ROWS]
