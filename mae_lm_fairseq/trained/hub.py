"""Hub interface: use a trained model, like the hub interfaces of fairseq. This is what ``load`` returns."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.heads import ClassificationHead, SpanHead
from mae_lm_fairseq.core.packing import batch_layout, to_device, unpack
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.text.span_windows import DOC_STRIDE, TOKENS_PER_SAMPLE, SpanWindows
from mae_lm_fairseq.text.squad import Paragraph, Question
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import NAMES, missing_tokenizer
from mae_lm_fairseq.trained.answers import Answers, answer_all
from mae_lm_fairseq.trained.conversion import why_no_predictions
from mae_lm_fairseq.trained.info import MULTI_LABEL
from mae_lm_fairseq.trained.masked_prediction import (
    NetworkPredictor,
    as_words,
    batches_of_similar_length,
    pseudo_log_likelihoods,
)
from mae_lm_fairseq.trained.model import TrainedModel
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import Pretrained, build_all
from mae_lm_fairseq.trained.tags import Tagged, Tagger
from mae_lm_fairseq.trained.validation import ANSWER_HEAD
from mae_lm_fairseq.utils.errors import UserError

Text = str | Sequence[int] | np.ndarray | Tensor
"""A text as a string or as token ids."""


class Filling(NamedTuple):
    """One candidate token for one ``<mask>``."""

    text: str
    """The text with the token in place of its ``<mask>``; other masks are kept."""
    probability: float
    token: str
    """The token as text, with a leading space if it begins a word."""


class MAELMHubInterface(nn.Module):
    """A trained model with its tokenizer: encodes and decodes text, extracts features, fills masks, runs task heads.

    Texts are strings, or token ids as returned by :meth:`encode`. Methods that take one text also take a list of texts
    of different lengths. These are computed in batches of similar length, with padding in attention only, and results
    are in the order of the list. No method computes gradients; use :attr:`model` for training. Dropout is disabled
    until ``train()`` is called.

    Attributes:
        symbols: the dictionary in the order of ids.
        about: facts about the training, a :class:`~mae_lm_fairseq.trained.info.ModelInfo`.
    """

    def __init__(self, model: nn.Module, pretrained: Pretrained):
        super().__init__()
        self.model = model
        self.symbols = pretrained.symbols
        self.about = pretrained.about
        self.tokenizer = pretrained.tokenizer
        self.mask_in_encoder = pretrained.mask_in_encoder
        self._why_no_predictions = why_no_predictions(pretrained)

    @property
    def device(self) -> torch.device:
        """Device of the model; ``to`` moves it."""
        return self.model.autoencoder.encoder.embed_tokens.weight.device

    def encode(self, text: str, *more: str) -> Tensor:
        """Return the int64 ids of ``<s> text </s>``.

        A pair becomes ``<s> text </s> </s> second text </s>``, and so on. ``<mask>`` in a text is encoded as the mask
        token.

        Raises:
            TypeError: if a text is not a string.
        """
        ids = []
        for part in (text, *more):
            if not isinstance(part, str):
                raise TypeError(f"a text is a string, not {part!r:.80}")
            start = EOS if ids else BOS
            ids += [start, *self._tokenizer().encode_masked(part), EOS]
        return torch.tensor(ids)

    def decode(self, ids: Sequence[int] | np.ndarray | Tensor) -> str | list[str]:
        """Return the text of ids [T], or a list of texts if the ids hold several, as combined by :meth:`encode`."""
        texts, previous = [[]], None
        for index in self._checked_ids(ids).tolist():
            if (previous, index) == (EOS, EOS):
                texts.append([])
            texts[-1].append(index)
            previous = index
        decoded = [self._tokenizer().decode(text) for text in texts]
        return decoded[0] if len(decoded) == 1 else decoded

    @torch.no_grad()
    def extract_features(
        self, texts: Text | Sequence[Text], return_all_hiddens: bool = False, truncate: bool = False
    ) -> Tensor | list:
        """Return the encoder's hidden states. They are zero at ``<mask>`` if the encoder never sees it, as in MAE-LM.

        Args:
            texts: one text; or ids [B, T], padded on the right; or a list of texts of different lengths. Padding at the
                end of the ids [T] of one text is dropped.
            return_all_hiddens: return the hidden states of the embeddings and of every layer, not only of the last
                layer.
            truncate: shorten texts to the model's maximum number of positions; their last token, ``</s>``, stays.

        Returns:
            [1, T, dim] for one text; [B, T, dim] for ids [B, T]; a list of [T_i, dim] for a list of texts. With
            ``return_all_hiddens``, a list with one of these for the embeddings, followed by one for each layer.

        Raises:
            ValueError: if a text is longer than the model's maximum number of positions, or ids are padded on the left.
        """
        layers = self._layers(_listed(texts), return_all_hiddens, truncate)
        if _is_one(texts):
            layers = [states[0][None] for states in layers]
        elif _is_batch(texts):
            width = texts.shape[1]
            if truncate:
                width = min(width, self.model.max_positions())
            layers = [_padded(states, width) for states in layers]
        return layers if return_all_hiddens else layers[0]

    @torch.no_grad()
    def fill_mask(self, text: str, topk: int = 5) -> list:
        """Return the most likely tokens for each ``<mask>`` of a text, from the decoder if the model has one.

        If the encoder saw ``<mask>`` tokens in pretraining (``--mask-in-encoder``), it sees them here.

        ``<mask>`` is written in this way for every tokenizer, also for one that calls it ``[MASK]``. Each ``<mask>`` is
        filled independently; the others stay in the text.

        Returns:
            ``topk`` :class:`Filling`, most likely first; for a text with several masks, a list of such lists.

        Raises:
            ValueError: if the text has no ``<mask>``, ``topk`` is not from 1 to the number of tokens, or the model was
                fine-tuned and has no language model head.
        """
        if not 1 <= topk <= len(self.symbols):
            raise ValueError(f"topk is from 1 to {len(self.symbols)}, the number of tokens, not {topk}")
        predictor = self._predictor()
        ids = self.encode(text)[None]
        is_mask = ids.eq(self.model.mask)
        if not is_mask.any():
            raise ValueError(f"the text {text!r} has no {MASK}, which stands for the mask token of every tokenizer")
        probabilities = predictor(ids, is_mask).softmax(-1)[:, : len(self.symbols)]
        best = probabilities.topk(topk)
        parts = text.split(MASK)
        fillings = []
        for place, tokens in enumerate(best.indices.tolist(), start=1):
            before = MASK.join(parts[:place]).rstrip()
            after = MASK.join(parts[place:])
            words = [self._tokenizer().token_text(token) for token in tokens]
            filled = [f"{before}{word}{after}".lstrip() for word in words]
            candidates = zip(filled, best.values[place - 1].tolist(), words, strict=True)
            fillings.append([Filling(*candidate) for candidate in candidates])
        return fillings[0] if len(fillings) == 1 else fillings

    def score(self, sentences: str | Sequence[str], mask_words: bool = False) -> Tensor:
        """Return the pseudo-log-likelihood of each sentence: the sum of its tokens' log-probabilities, in nats.

        Each token is masked once, and predicted from all others through the decoder if the model has one. If the
        encoder saw ``<mask>`` tokens in pretraining (``--mask-in-encoder``), it sees them here.

        Args:
            mask_words: while a token is predicted, also mask the later subwords of its word (Kauf and Ivanova, 2023).

        Returns:
            float64 [number of sentences].

        Raises:
            ValueError: if a sentence is longer than the model's maximum number of positions, or the model was
                fine-tuned and has no language model head.
        """
        predictor = self._predictor()
        tokenizer = self._tokenizer()
        if isinstance(sentences, str):
            sentences = [sentences]
        words = [as_words(tokenizer, text) for text in sentences]
        return torch.from_numpy(pseudo_log_likelihoods(predictor, words, mask_words))

    @torch.no_grad()
    def predict(
        self, head: str, texts: Text | Sequence[Text], return_logits: bool = False, truncate: bool = False
    ) -> Tensor:
        """Return the output of a classification head for each text.

        Args:
            head: name of the head; fairseq's ``sentence_prediction`` uses ``sentence_classification_head``.
            texts: as for :meth:`extract_features`; encode pairs with :meth:`encode`.
            truncate: as for :meth:`extract_features`.

        Returns:
            [number of texts, number of classes] float32 log-probabilities, in the order of the labels. For a regression
            head, the scores [number of texts, 1], in the range of the training file if the model knows it. Models are
            trained on scores from 0 to 1, which are the logits.

        Raises:
            ValueError: if the model has no classification head of this name, or the head gives a text several labels at
                once, which have logits only.
        """
        module = self._head(head, ClassificationHead)
        if self.about.problem_type == MULTI_LABEL and not return_logits:
            raise ValueError(f"the head {head} gives a text several labels at once; pass return_logits=True")
        [states] = self._layers(_listed(texts), all_layers=False, truncate=truncate)
        first = torch.stack([text[:1] for text in states])
        logits = module(first).float()
        if return_logits:
            return logits
        if logits.shape[1] > 1:
            return logits.log_softmax(-1)
        low, high = self.about.score_range_of(head) or (0.0, 1.0)
        return low + logits * (high - low)

    @torch.no_grad()
    def answer(self, question: str, context: str, head: str = ANSWER_HEAD) -> Answers:
        """Find the answer to a question in a context, in the same way as ``mae-lm finetune squad``.

        Uses the script's default sequence length and stride, and no threshold for SQuAD 2.0.

        Args:
            question: truncated to 64 subwords, or fewer if the model has few positions.
            context: of any length; a long one is split into overlapping windows.
            head: name of the head; the task ``question_answering`` uses ``span``.

        Returns:
            ``text`` is the best answer. ``candidates`` lists it and other answers, with their offsets in the context.
            ``no_answer_probability`` is the probability that the context has no answer; it is meaningful after training
            on SQuAD 2.0.

        Raises:
            ValueError: if the model has no question answering head of this name.
        """
        module = self._head(head, SpanHead)
        paragraph = Paragraph(context, (Question("", question, ()),))
        longest = min(TOKENS_PER_SAMPLE, self.model.max_positions())
        windows = SpanWindows([paragraph], self._tokenizer(), longest, DOC_STRIDE, seed=0)
        batch = windows.batch([windows[index] for index in range(len(windows))])
        logits = module(self.extract_features(batch["net_input"]["src_tokens"])).cpu()
        return answer_all([(batch, logits)], windows)[""]

    def tag(self, text: str | Sequence[str]) -> list[Tagged]:
        """Label the words of a text, with a model that was fine-tuned on token classification.

        Args:
            text: a text of any length, which :func:`~mae_lm_fairseq.text.offsets.split_words` splits at white space and
                punctuation; or a list of words, split as in the training file.

        Returns:
            The words with their labels, probabilities and offsets in the text, or in the words joined with spaces.

        Raises:
            ValueError: if the model does not label words.
        """
        self._tokenizer()
        return Tagger(self).tag(text if isinstance(text, str) else list(text))

    def _head(self, name: str, kind: type[nn.Module]) -> nn.Module:
        heads = {}
        for other, head in self.model.classification_heads.items():
            if kind in (type(head), getattr(head, "replaces", None)):
                heads[other] = head
        if name not in heads:
            raise ValueError(f"the model has no {kind.__name__} {name!r}; it has {', '.join(heads) or 'none'}")
        return heads[name]

    def _predictor(self) -> NetworkPredictor:
        if self._why_no_predictions:
            raise ValueError(f"this model {self._why_no_predictions}")
        model = self.model
        model.resolve_backend(self.device)
        return NetworkPredictor(model.autoencoder, model.pad, model.mask, self.mask_in_encoder)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(
                f"this model has no tokenizer; pass token ids, or put the files of its tokenizer ({NAMES}) into its "
                "data_bin and load it again"
            )
        return self.tokenizer

    def _ids(self, text: Text) -> Tensor:
        if isinstance(text, str | bytes):
            return self.encode(text)
        ids = self._checked_ids(text)
        tokens = ids[ids.ne(self.model.pad)]
        if not torch.equal(tokens, ids[: len(tokens)]):
            raise ValueError("a token follows padding in the ids; pad on the right, or pass a list without padding")
        return tokens

    def _checked_ids(self, ids: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        ids = torch.as_tensor(ids).cpu()
        if ids.dim() != 1 or (ids.is_floating_point() and ids.numel()):
            raise ValueError(f"the token ids of one text are integers [T], not {ids.dtype} {list(ids.shape)}")
        ids = ids.long()
        largest = len(self.symbols) - 1
        wrong = ids[(ids < 0) | (ids > largest)]
        if len(wrong):
            raise ValueError(f"the token id {wrong[0]} is not in the dictionary, whose ids are 0 to {largest}")
        return ids

    def _layers(self, texts: Iterable[Text], all_layers: bool, truncate: bool) -> list[list[Tensor]]:
        rows = [self._ids(text) for text in texts]
        if truncate:
            rows = [_truncated(row, self.model.max_positions()) for row in rows]
        lengths = [len(row) for row in rows]
        count = len(self.model.autoencoder.encoder.layers) + 1 if all_layers else 1
        layers = [[None] * len(rows) for _ in range(count)]
        for batch in batches_of_similar_length(lengths):
            encoded = self._encode([rows[index] for index in batch], all_layers)
            for layer, states in zip(layers, encoded, strict=True):
                for index, row in zip(batch, states, strict=True):
                    layer[index] = row[: lengths[index]]
        return layers

    def _encode(self, rows: list[Tensor], all_layers: bool) -> list[Tensor]:
        network, pad = self.model.autoencoder, self.model.pad
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        nowhere = torch.zeros_like(tokens, dtype=torch.bool)
        layout = to_device(batch_layout(tokens, nowhere, pad, self.model.mask), self.device)
        self.model.resolve_backend(self.device)
        states = network.encode(tokens.to(self.device), layout)
        if all_layers:
            return network.unpack_states(states, layout, tokens.shape[1])
        return [unpack(states[-1], network.encoder_layouts(layout)[-1], tokens.shape[1])]


def load(path: str | Path, data_bin: str | Path | None = None, ema: bool = False) -> MAELMHubInterface:
    """Load a trained model. This is ``mae_lm_fairseq.load``; fairseq is not needed.

    Args:
        path: a bundle, written by ``mae-lm bundle`` or ``mae-lm import``; a directory of ``transformers``, which is
            imported; or a checkpoint of fairseq-train.
        data_bin: for a checkpoint, the directory of its ``dict.txt`` and tokenizer.
        ema: for a checkpoint, use the moving average of the weights, which ``--store-ema`` adds.

    Raises:
        UserError: if a file is missing, damaged, could run code, or does not match the others.
    """
    return hub_interface(open_pretrained(path, data_bin, ema))


def open_finetuned(path: Path, data_bin: Path | None = None) -> MAELMHubInterface:
    """Return the hub interface of a fine-tuned model, on the GPU if there is one.

    Args:
        path: a bundle, such as ``model/`` in the directory of a fine-tuning; or a checkpoint.
        data_bin: for a checkpoint, the data-bin of its fine-tuning.

    Raises:
        UserError: if the files are not valid, as for ``load``, or the model was not fine-tuned.
    """
    model = load(path, data_bin)
    if not model.model.classification_heads:
        raise UserError(
            f"{path} is a pretrained model, which has no task yet; fine-tune it with mae-lm finetune, and name the "
            "model/ in its --out"
        )
    if model.tokenizer is None:
        raise missing_tokenizer(data_bin or path)
    # The precision of evaluation, also for weights that were trained in half precision.
    return model.float().to("cuda" if torch.cuda.is_available() else "cpu")


def from_pretrained(
    model_type: type[TrainedModel],
    path: str | Path | None = None,
    data_bin: str | Path | None = None,
    ema: bool | str | Path = False,
    *,
    model_name_or_path: str | Path | None = None,
    checkpoint_file: str | Path | None = None,
    data_name_or_path: str | Path | None = None,
) -> MAELMHubInterface:
    """Load a trained model as one of fairseq's.

    This is the class method ``MAELMModel.from_pretrained``. It takes the arguments of :func:`load`, and fairseq's:
    ``from_pretrained(model_name_or_path, checkpoint_file="checkpoint_last.pt", data_name_or_path=".")``, if one of them
    is named, or if ``path`` is a directory and ``data_bin`` none. Data that begin with a dot are below the first
    directory, as in fairseq, which has further arguments, such as ``bpe``: here, model and tokenizer say it all.

    Raises:
        UserError: see :func:`load`.
    """
    is_named = model_name_or_path or checkpoint_file or data_name_or_path
    if is_named or (data_bin is not None and os.path.isdir(path) and not os.path.isdir(data_bin)):
        # fairseq's arguments by position, of those that are not named.
        by_position = iter([value for value in (data_bin, ema) if not isinstance(value, bool | None)])
        directory = Path(model_name_or_path or path)
        path = directory / (checkpoint_file or next(by_position, "checkpoint_last.pt"))
        data = str(data_name_or_path or next(by_position, "."))
        data_bin = directory / data if data.startswith(".") else data
        ema = ema is True
    return hub_interface(open_pretrained(path, data_bin, bool(ema)), model_type)


def hub_interface(pretrained: Pretrained, model_type: type[TrainedModel] = TrainedModel) -> MAELMHubInterface:
    """Return the hub interface of a pretrained network, with a model of a class."""
    network, heads = build_all(pretrained)
    fingerprint = dictionary_fingerprint(pretrained.symbols)
    model = model_type(network, pretrained.pad, pretrained.mask, dictionary=fingerprint)
    model.classification_heads = heads
    return MAELMHubInterface(model, pretrained).eval()


def _is_batch(texts: Text | Sequence[Text]) -> bool:
    """Return whether these are ids [B, T]."""
    return isinstance(texts, np.ndarray | Tensor) and texts.ndim == 2


def _is_one(texts: Text | Sequence[Text]) -> bool:
    """Return whether this is one text: a string, or ids [T]."""
    if isinstance(texts, str | bytes | np.ndarray | Tensor):
        return not _is_batch(texts)
    first = next(iter(texts), "")
    return not isinstance(first, str | bytes) and np.ndim(first) == 0


def _listed(texts: Text | Sequence[Text]) -> list[Text]:
    return [texts] if _is_one(texts) else list(texts)


def _truncated(ids: Tensor, longest: int) -> Tensor:
    if len(ids) <= longest:
        return ids
    return torch.cat((ids[: longest - 1], ids[-1:]))


def _padded(rows: list[Tensor], width: int) -> Tensor:
    """Return rows [T_i, dim] as [B, width, dim]."""
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return nn.functional.pad(padded, (0, 0, 0, width - padded.shape[1]))
