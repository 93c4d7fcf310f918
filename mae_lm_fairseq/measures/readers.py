"""Trained models with their tokenizers: our checkpoints and bundles, and Hugging Face directories."""

import inspect
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from mae_lm_fairseq.checkpoints.averaging import check_file
from mae_lm_fairseq.checkpoints.conversion import why_no_predictions
from mae_lm_fairseq.checkpoints.reading import Pretrained, build, read, transformers_type
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.measures.masked_prediction import (
    NEVER_MASKED,
    HuggingFacePredictor,
    NetworkPredictor,
    Predictor,
    RandomTokensPredictor,
    Words,
)
from mae_lm_fairseq.statistics.token_states import EncoderStates, HuggingFaceStates, StatesOf
from mae_lm_fairseq.text.offsets import encode_with_spans, word_numbers
from mae_lm_fairseq.text.text_samples import documents, evenly_spaced, read_text, text_samples
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD
from mae_lm_fairseq.text.tokenizer_files import NAMES
from mae_lm_fairseq.utils.errors import UserError

RANDOM_SEED = 1
"""Seed of the random weights that a model is compared with."""
SPREAD = 100
"""Tokens that are read per token that is taken, where texts are taken evenly spaced from a file."""


@dataclass(frozen=True)
class Reader:
    """A model and its tokenizer.

    Attributes:
        states: the encoder.
        predictor: the model with its language model head; None if it was opened without.
        encode: returns the ids of a line.
        encode_with_spans: returns the ids of a line, and start and end of each token in characters.
        opening, closing: ids at the start and end of every text.
        line_end: ids after every line.
        special: ids that are never masked.
        path: where the model was read from.
        architecture: equal for models that are the same before training.
    """

    states: StatesOf
    predictor: Predictor | None
    encode: Callable[[str], list[int]]
    encode_with_spans: Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]
    opening: list[int]
    line_end: list[int]
    closing: list[int]
    special: list[int]
    path: Path
    architecture: Hashable

    def texts(self, path: str | Path, length: int, limit: int) -> list[list[int]]:
        """Return about ``limit`` tokens of texts that are evenly spaced in a file, as ids.

        Args:
            path: UTF-8 text with blank lines between documents. Of a long file, only the first :data:`SPREAD` times as
                many tokens are read.
            length: maximum number of tokens of a text. A text is as many lines of one document as fit.
            limit: number of tokens.

        Raises:
            UserError: if the model does not take texts of this length, or a file has records or cannot be read.
        """

        def encode(line: str) -> list[int]:
            return [*self.encode(line), *self.line_end]

        return [text for text, _ in self._spread(path, length, limit, encode, (self.opening, self.closing))]

    def texts_with_words(self, path: str | Path, length: int, limit: int) -> list[Words]:
        """Return the same texts with the words of their tokens."""
        return [text for text, _ in self.texts_of_documents(path, length, limit)]

    def texts_of_documents(self, path: str | Path, length: int, limit: int) -> list[tuple[Words, int]]:
        """Return the same texts with the words of their tokens and the numbers of their documents."""
        ends = _inside_words(self.opening), _inside_words(self.closing)
        spread = self._spread(path, length, limit, self._tokens, ends)
        return [(self._words(tokens), document) for tokens, document in spread]

    def _spread(
        self, path: str | Path, length: int, limit: int, encode: Callable[[str], list], ends: tuple[list, list]
    ) -> list[tuple[list, int]]:
        """Return evenly spaced texts and the numbers of their documents."""
        self.check_length(length)
        texts, tokens = [], 0
        for number, lines in enumerate(documents(read_text(path))):
            of_document = text_samples(lines, encode, length, *ends, SPREAD * limit - tokens)
            texts += [(text, number) for text in of_document]
            tokens += sum(map(len, of_document))
            if tokens >= SPREAD * limit:
                break
        return evenly_spaced(texts, max(1, round(len(texts) * limit / max(tokens, 1))))

    def sentence(self, text: str) -> Words:
        """Return a text of one line."""
        return self._words([*_inside_words(self.opening), *self._tokens(text), *_inside_words(self.closing)])

    def check_length(self, length: int) -> None:
        """Raise a UserError if the model does not take texts of this length."""
        least, most = len(self.opening) + len(self.closing) + 1, self.states.max_tokens
        if not least <= length <= most:
            raise UserError(f"--tokens-per-sample {length}: {self.path} takes sequences of {least} to {most} tokens")

    def _tokens(self, line: str) -> list[tuple[int, bool]]:
        """Return the ids of a line, and whether each starts a word."""
        ids, spans = self.encode_with_spans(line)
        starts = np.diff(word_numbers(line, spans), prepend=-1) > 0
        return [*zip(ids, starts, strict=True), *_inside_words(self.line_end)]

    def _words(self, tokens: list[tuple[int, bool]]) -> Words:
        ids, starts = map(np.array, zip(*tokens, strict=True))
        return Words(ids, np.where(np.isin(ids, self.special), NEVER_MASKED, np.cumsum(starts)))


def _inside_words(ids: Iterable[int]) -> list[tuple[int, bool]]:
    """Return ids as tokens that start no word."""
    return [(index, False) for index in ids]


def open_model(
    path: Path,
    data_bin: str | Path | None,
    ema: bool = False,
    with_head: bool = False,
    random_weights: bool = False,
    masks: Literal["trained", "encoder", "decoder", "nowhere"] = "trained",
) -> Reader:
    """Load a model for evaluation in float32, on a GPU if available.

    Args:
        path: a checkpoint of ``fairseq-train``, a bundle, or a Hugging Face directory with its tokenizer.
        data_bin: for a checkpoint, the data-bin with its dictionary and tokenizer.
        ema: use the moving average of a checkpoint's weights.
        with_head: also load what predicts masked tokens.
        random_weights: replace the trained weights by random ones, as before training.
        masks: where the ``[MASK]`` tokens are: as in pretraining, in the encoder, in the decoder alone, or nowhere
            (random tokens stand in their place when tokens are predicted, and only clean text is encoded). Hugging
            Face models have them in the encoder.

    Raises:
        UserError: if a file is missing or does not match the others, or the model has no language model head.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or directory")
    if ema:
        check_file(path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if transformers_type(path):
        return _open_hugging_face(path, device, with_head, random_weights)
    if not path.is_dir() and data_bin is None:
        raise UserError(f"{path} is a checkpoint; give its data-bin with --data-bin")
    pretrained = read(path, None if path.is_dir() else data_bin, ema)
    folder = path if path.is_dir() else Path(data_bin)
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        raise UserError(f"{folder} has no tokenizer ({NAMES}), which is needed to tokenize the text")
    network = _random_network(pretrained) if random_weights else build(pretrained)
    if with_head and not random_weights and (reason := why_no_predictions(pretrained)):
        raise UserError(f"{path} {reason}")
    if not with_head:
        network.drop_prediction()
    network.float().to(device)
    seen = {"encoder": 1.0, "decoder": 0.0}.get(masks, pretrained.mask_in_encoder)
    ids = pretrained.pad, pretrained.mask, seen
    predictor, states = NetworkPredictor(network, *ids) if with_head else None, EncoderStates(network.encoder, *ids)
    if masks == "nowhere":
        states.inputs = ("clean",)
    return Reader(
        states,
        RandomTokensPredictor(predictor) if predictor and masks == "nowhere" else predictor,
        encode=lambda line: tokenizer.encode_lines([line])[0].tolist(),
        encode_with_spans=lambda line: encode_with_spans(tokenizer, line),
        opening=[BOS],
        line_end=[EOS],
        closing=[],
        special=[BOS, PAD, EOS],
        path=path,
        architecture=(pretrained.config, pretrained.symbols, seen),
    )


def _random_network(pretrained: Pretrained) -> MaskedAutoencoder:
    with torch.random.fork_rng():
        torch.manual_seed(RANDOM_SEED)
        return MaskedAutoencoder(pretrained.config, len(pretrained.symbols), pretrained.pad, pretrained.mask).eval()


def _open_hugging_face(directory: Path, device: str, with_head: bool, random_weights: bool) -> Reader:
    try:
        import mae_lm_fairseq.huggingface  # noqa: F401, I001  hides a broken torchaudio: must come before transformers

        from transformers import AutoTokenizer

        from mae_lm_fairseq.huggingface.weight_files import AS_DATA
        from mae_lm_fairseq.huggingface.tokenizer import transformers_errors
    except ImportError:
        raise UserError(
            f"{directory} is a Hugging Face model, which needs transformers; pip install transformers"
        ) from None
    with transformers_errors(directory):
        tokenizer = AutoTokenizer.from_pretrained(directory, **AS_DATA)
        model = _load_hugging_face(directory, with_head, random_weights)
    if model.config.is_encoder_decoder:
        raise UserError(f"{directory}: {model.config.model_type} is an encoder-decoder; only encoders can be measured")
    model = model.float().eval().to(device)
    opening, bos, closing, eos, pad, mask = (
        getattr(tokenizer, f"{name}_token_id") for name in ("cls", "bos", "sep", "eos", "pad", "mask")
    )
    opening, closing = bos if opening is None else opening, eos if closing is None else closing
    if None in (opening, closing, pad, mask):
        raise UserError(f"{directory}: its tokenizer lacks a token for the start, the end, padding or the mask")

    def encode(line: str, **options) -> dict:
        return tokenizer(line, add_special_tokens=False, verbose=False, **options)

    def spans(line: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = encode(line, return_offsets_mapping=True)
        return encoded["input_ids"], encoded["offset_mapping"]

    special = [token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id]
    with transformers_errors(directory):
        states = HuggingFaceStates(model.base_model, pad, mask)
        words = (token for token in range(model.config.vocab_size) if token not in {*special, pad, mask})
        ignores_padding = _ignores_padding(states, [opening, *itertools.islice(words, 6), closing])
    if not ignores_padding:
        raise UserError(
            f"{directory}: the hidden states of {model.config.model_type} depend on the padding of a batch, so that "
            "they cannot be measured in batches"
        )
    return Reader(
        states,
        HuggingFacePredictor(model, pad, mask) if with_head else None,
        encode=lambda line: encode(line)["input_ids"],
        encode_with_spans=spans,
        opening=[opening],
        line_end=[],
        closing=[closing],
        special=special,
        path=directory,
        architecture=directory,
    )


def _ignores_padding(states: HuggingFaceStates, text: list[int]) -> bool:
    """Return whether a model has a state for each token, and the same one beside a longer text.

    Models that mix all positions (FNet) or reduce them (Funnel) have not.
    """
    rows = [text, text[: len(text) // 2]]
    batch = nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=states.pad)
    alone = states(torch.tensor(rows[1:]), see_masks=True)
    for together, expected in zip(states(batch, see_masks=True), alone, strict=True):
        if len(together.states) != len(text) + len(rows[1]):
            return False
        # Float32 sums in another order differ by about 1e-6; convolutions over the padding by more than 1e-3.
        if not torch.allclose(together.states[len(text) :], expected.states, rtol=1e-3, atol=1e-4):
            return False
    return True


def _load_hugging_face(directory: Path, with_head: bool, random_weights: bool) -> nn.Module:
    from transformers import AutoModel, AutoModelForMaskedLM

    from mae_lm_fairseq.huggingface.weight_files import load_config, weights_as_data

    config = load_config(directory)
    kind, options = (AutoModelForMaskedLM, {}) if with_head else (AutoModel, _without_pooler(config))
    if random_weights:
        with torch.random.fork_rng():
            torch.manual_seed(RANDOM_SEED)
            return kind.from_config(config, **options)
    options |= weights_as_data(directory)
    model, loading = kind.from_pretrained(directory, config=config, output_loading_info=True, **options)
    if with_head and loading["missing_keys"]:
        raise UserError(f"{directory} has no language model head ({min(loading['missing_keys'])} is missing); name a "
                        "model that was saved with it")  # fmt: skip
    return model


def _without_pooler(config) -> dict[str, bool]:
    """Return the option by which a class of ``transformers`` leaves out its pooler, if it has one.

    Hidden states do not depend on the pooler, and the checkpoint of a masked language model lacks its weights.
    """
    from transformers import MODEL_MAPPING

    kind = MODEL_MAPPING.get(type(config), None)
    has_pooler = isinstance(kind, type) and "add_pooling_layer" in inspect.signature(kind).parameters
    return {"add_pooling_layer": False} if has_pooler else {}
