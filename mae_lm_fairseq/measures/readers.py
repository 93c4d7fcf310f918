"""Trained models with their tokenizers: our checkpoints and bundles, and Hugging Face directories."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.statistics.token_states import EncoderStates
from mae_lm_fairseq.text.offsets import encode_with_spans, word_numbers
from mae_lm_fairseq.text.text_samples import documents, evenly_spaced, read_text, text_samples
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import missing_tokenizer
from mae_lm_fairseq.trained.conversion import why_no_predictions
from mae_lm_fairseq.trained.masked_prediction import NEVER_MASKED, NetworkPredictor, Words, batches_of_similar_length
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import Pretrained, build, transformers_type
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.wrapped.network import build_network

RANDOM_SEED = 1
"""Seed of the random weights that a model is compared with."""
SPECIAL_IDS = [BOS, PAD, EOS]
"""Ids of the special tokens in texts, which are never masked; the word of their tokens is :data:`NEVER_MASKED`."""
_OPENING, _END = (BOS, False), (EOS, False)
"""Tokens at the start of a text and at the end of a line or text; they start no word."""
SPREAD = 100
"""Tokens that are read per token that is taken, where texts are taken evenly spaced from a file."""


@dataclass(frozen=True)
class Reader:
    """A model and its tokenizer.

    Attributes:
        states: the encoder.
        predictor: the model with its language model head; None if it was opened without.
        tokenizer: the tokenizer.
        ends_lines: whether every line ends with ``</s>``, as in our pretraining, or only every text.
        path: where the model was read from.
        trained_length: maximum length of a sequence in training, in tokens; None if it is unknown.
    """

    states: EncoderStates
    predictor: NetworkPredictor | None
    tokenizer: Tokenizer
    ends_lines: bool
    path: Path
    trained_length: int | None = None

    def encode(self, line: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a line, and start and end of each token in characters."""
        return encode_with_spans(self.tokenizer, line)

    def texts(self, path: Path, length: int, limit: int) -> list[tuple[Words, int]]:
        """Return about ``limit`` tokens of texts that are evenly spaced in a file, and the numbers of their documents.

        Args:
            path: UTF-8 text with blank lines between documents. Of a long file, only the first :data:`SPREAD` times as
                many tokens are read.
            length: maximum number of tokens of a text. A text is as many lines of one document as fit.

        Raises:
            UserError: if the model does not take texts of this length, or a file has records or cannot be read.
        """
        self.check_length(length)
        most_tokens = SPREAD * limit
        ending = [] if self.ends_lines else [_END]
        texts: list[tuple[list, int]] = []
        tokens = 0
        for document, lines in enumerate(documents(read_text(path))):
            samples = text_samples(lines, self._tokens, length, [_OPENING], ending, most_tokens - tokens)
            texts += [(sample, document) for sample in samples]
            tokens += sum(map(len, samples))
            if tokens >= most_tokens:
                break
        count = max(1, round(len(texts) * limit / max(tokens, 1)))
        return [(self._words(text), document) for text, document in evenly_spaced(texts, count)]

    def check_length(self, length: int) -> None:
        """Raise a UserError if the model does not take texts of this length."""
        least = 2 if self.ends_lines else 3
        most = self.states.max_tokens
        if not least <= length <= most:
            raise UserError(f"--tokens-per-sample {length}: {self.path} takes sequences of {least} to {most} tokens")

    def _tokens(self, line: str) -> list[tuple[int, bool]]:
        ids, spans = self.encode(line)
        starts = np.diff(word_numbers(line, spans), prepend=-1) > 0
        tokens = list(zip(ids, starts, strict=True))
        if self.ends_lines:
            tokens.append(_END)
        return tokens

    def _words(self, tokens: list[tuple[int, bool]]) -> Words:
        ids = np.array([index for index, _ in tokens])
        words = np.cumsum([starts for _, starts in tokens])
        return Words(ids, np.where(np.isin(ids, SPECIAL_IDS), NEVER_MASKED, words))


def padded_batches(
    texts: Sequence[Sequence[int]], pad: int, progress: Callable[[Sequence], Iterable]
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield batches of texts of similar length: the numbers of the texts, and their padded tokens, [B, T]."""
    batches = list(batches_of_similar_length([len(text) for text in texts]))
    for numbers in progress(batches):
        rows = [torch.as_tensor(texts[number]) for number in numbers]
        yield numbers, pad_sequence(rows, batch_first=True, padding_value=pad)


def open_model(
    path: Path,
    data_bin: Path | None,
    ema: bool = False,
    with_head: bool = False,
    random_weights: bool = False,
    masks: Literal["trained", "nowhere"] = "trained",
) -> Reader:
    """Load a model for evaluation in float32, on a GPU if available.

    Args:
        path: a checkpoint of ``fairseq-train``, a bundle, or a Hugging Face directory with its tokenizer.
        data_bin: for a checkpoint, the data-bin with its dictionary and tokenizer.
        ema: use the moving average of a checkpoint's weights.
        with_head: also load what predicts masked tokens.
        random_weights: replace the trained weights by random ones, as before training.
        masks: where the ``[MASK]`` tokens are: as in pretraining, or nowhere (random tokens stand in their place when
            tokens are predicted, and only clean text is encoded). Hugging Face models have them in the encoder.

    Raises:
        UserError: if a file is missing or does not match the others, or the model has no language model head.
    """
    # Several models are measured at once, and only checkpoints need the data-bin.
    pretrained = open_pretrained(path, None if path.is_dir() else data_bin, ema)
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        raise missing_tokenizer(path if path.is_dir() else data_bin)
    network = _network(pretrained, path, with_head, random_weights)
    network.float().to("cuda" if torch.cuda.is_available() else "cpu")
    treatment_of_tokens = {
        "pad": pretrained.pad,
        "mask": pretrained.mask,
        "mask_in_encoder": pretrained.mask_in_encoder,
        "without_masks": masks == "nowhere",
    }
    return Reader(
        states=EncoderStates(network.encoder, **treatment_of_tokens),
        predictor=NetworkPredictor(network, **treatment_of_tokens) if with_head else None,
        tokenizer=tokenizer,
        ends_lines=not transformers_type(path),
        path=path,
        trained_length=pretrained.about.tokens_per_sample,
    )


def _network(pretrained: Pretrained, path: Path, with_head: bool, random_weights: bool) -> MaskedAutoencoder:
    """Return the network of a model in evaluation mode, without what predicts masked tokens unless it is needed."""
    if random_weights:
        with torch.random.fork_rng():
            torch.manual_seed(RANDOM_SEED)
            symbols = len(pretrained.symbols)
            network = build_network(pretrained.config, symbols, pretrained.pad, pretrained.mask).eval()
    else:
        network = build(pretrained)
        reason = why_no_predictions(pretrained) if with_head else ""
        if reason:
            raise UserError(f"{path} {reason}")
    if not with_head:
        network.drop_prediction()
    return network
