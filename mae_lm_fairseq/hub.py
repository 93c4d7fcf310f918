"""What MAELMModel.from_pretrained returns: a trained model to use, in the manner of fairseq's hub interfaces."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.heads import ClassificationHead, SpanHead
from mae_lm_fairseq.core.packing import batch_layout, to_device, unpack
from mae_lm_fairseq.downstream.squad.decoding import Answers, answer_all
from mae_lm_fairseq.downstream.squad.files import Paragraph, Question
from mae_lm_fairseq.downstream.squad.windows import DOC_STRIDE, TOKENS_PER_SAMPLE, SpanWindows
from mae_lm_fairseq.pretrained.reading import Pretrained, build, build_heads
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, WORD_START, Tokenizer

BATCH_TOKENS = 2048
"""Tokens in a batch, if a single text does not have more."""

Text = str | Sequence[int] | Tensor
"""A text, or its ids."""


class Filling(NamedTuple):
    """One token for one ``<mask>``."""

    text: str
    """The text with the token in the place of its ``<mask>``; other masks stay."""
    probability: float
    token: str
    """As text, with a space in front where it begins a word."""


class MAELMHubInterface(nn.Module):
    """A trained model with its tokenizer, ready for use: encode, decode, features, masked tokens, tasks.

    Texts are strings, or ids as :meth:`encode` makes them. Wherever a method takes one text it takes a list of texts of
    different lengths, too: they are computed in batches of similar length, without padding outside of attention, and
    what comes back is in the order of the list. All methods compute without gradients; to train, take :attr:`model`.
    Dropout is off until ``train()`` is called.

    Attributes:
        model: the model for fairseq, with its heads.
        symbols: the dictionary in the order of ids.
        about: what is known of the training, see :class:`~mae_lm_fairseq.pretrained.reading.Pretrained`.
    """

    def __init__(self, model: nn.Module, pretrained: Pretrained):
        super().__init__()
        self.model = model
        self.symbols = pretrained.symbols
        self.about = pretrained.about
        self.tokenizer = pretrained.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the model is; ``to`` moves it."""
        return self.model.autoencoder.encoder.embed_tokens.weight.device

    def encode(self, text: str, *more: str) -> Tensor:
        """int64 ids of ``<s> text </s>``; of a pair ``<s> text </s> </s> second text </s>``, and so on.

        ``<mask>`` in a text is that token.
        """
        ids = [BOS]
        for part in (text, *more):
            ids += [*([EOS] if len(ids) > 1 else []), *self._tokenizer().encode_masked(part), EOS]
        return torch.tensor(ids)

    def decode(self, ids: Tensor) -> str | list[str]:
        """The text of ids [T], a list of texts where there are several, as :meth:`encode` puts them together."""
        texts, previous = [[]], None
        for index in ids.tolist():
            if (previous, index) == (EOS, EOS):
                texts.append([])
            texts[-1].append(index)
            previous = index
        decoded = [self._tokenizer().decode(text) for text in texts]
        return decoded[0] if len(decoded) == 1 else decoded

    @torch.no_grad()
    def extract_features(self, texts: Text | Sequence[Text], return_all_hiddens: bool = False):
        """The encoder's states. Zero at ``<mask>`` where the encoder never sees it, as in MAE-LM.

        Args:
            texts: one text; or ids [B, T], padded on the right; or a list of texts of different lengths.
            return_all_hiddens: give the states of the embeddings and of every layer, not of the last layer alone.

        Returns:
            [1, T, dim] for one text; [B, T, dim] for ids [B, T]; for a list of texts a list of [T_i, dim]. With
            ``return_all_hiddens`` a list of as many of these as there are layers, and one: the embeddings first.

        Raises:
            ValueError: a text is longer than the model's positions.
        """
        if isinstance(texts, Tensor) and texts.dim() == 2:
            layers = self._layers(list(texts), return_all_hiddens)
            layers = [nn.utils.rnn.pad_sequence(states, batch_first=True) for states in layers]
            layers = [nn.functional.pad(x, (0, 0, 0, texts.shape[1] - x.shape[1])) for x in layers]
        elif _is_one(texts):
            layers = [states[0][None] for states in self._layers([texts], return_all_hiddens)]
        else:
            layers = self._layers(texts, return_all_hiddens)
        return layers if return_all_hiddens else layers[0]

    @torch.no_grad()
    def fill_mask(self, text: str, topk: int = 5) -> list:
        """The likeliest tokens for each ``<mask>`` of a text, from the decoder where the model has one.

        Each ``<mask>`` is filled on its own, with the others left as they are.

        Returns:
            ``topk`` :class:`Filling`, the likeliest first; for a text with several masks a list of such lists.

        Raises:
            ValueError: the text has no ``<mask>``, or the model, being fine-tuned, predicts none.
        """
        network = self.model.autoencoder
        if network.lm_head is None:
            raise ValueError("this model was fine-tuned: its decoder and language model head are gone; load the one "
                             "that it was pretrained as to fill masks")  # fmt: skip
        ids = self.encode(text)[None]
        is_mask = ids.eq(self.model.mask)
        if not is_mask.any():
            raise ValueError(f"there is no {MASK} in the text {text!r}")
        layout = to_device(batch_layout(ids, is_mask, self.model.pad, self.model.mask), self.device)
        logits, _ = self.model(ids.to(self.device), layout=layout)
        probabilities, tokens = logits.float().softmax(-1).topk(topk)
        parts = text.split(MASK)
        fillings = [
            [self._filling(parts, place, *choice) for choice in zip(*choices, strict=True)]
            for place, choices in enumerate(zip(tokens.tolist(), probabilities.tolist(), strict=True))
        ]
        return fillings[0] if len(fillings) == 1 else fillings

    @torch.no_grad()
    def predict(self, head: str, texts: Text | Sequence[Text], return_logits: bool = False) -> Tensor:
        """What a classification head says of each text.

        Args:
            head: its name; fairseq's ``sentence_prediction`` calls it ``sentence_classification_head``.
            texts: as for :meth:`extract_features`; pairs encoded by :meth:`encode`.
            return_logits: give logits and not log-probabilities.

        Returns:
            [number of texts, number of classes] float32 log-probabilities, in the order of the labels; the values
            [number of texts, 1] where the head is one for regression.

        Raises:
            ValueError: the model has no classification head of this name, or there is no text.
        """
        module = self._head(head, ClassificationHead)
        texts = list(texts) if isinstance(texts, Tensor) and texts.dim() == 2 else texts
        texts = [texts] if _is_one(texts) else texts
        if not texts:
            raise ValueError("there is no text in the list")
        [states] = self._layers(texts, all_layers=False)
        logits = module(torch.stack([text[:1] for text in states])).float()
        return logits if return_logits or logits.shape[1] == 1 else logits.log_softmax(-1)

    @torch.no_grad()
    def answer(self, question: str, context: str, head: str = "span") -> Answers:
        """Where in a context a question is answered, as ``scripts/finetune_squad.py`` finds it.

        That is with samples of its usual length and stride, and for SQuAD 2.0 without its threshold.

        Args:
            question: cut after 64 pieces, or half of the model's positions.
            context: of any length; a long one is read in windows that overlap.
            head: its name; that of the task ``question_answering`` is ``span``.

        Returns:
            ``text`` is the best answer; ``candidates`` has it and others, with where in the context they begin and end;
            ``no_answer_probability`` is that of there being none, of use after training on SQuAD 2.0.

        Raises:
            ValueError: the model has no head of this name that finds answers.
        """
        module = self._head(head, SpanHead)
        paragraph = Paragraph(context, (Question("", question, ()),))
        longest = min(TOKENS_PER_SAMPLE, self.model.max_positions())
        windows = SpanWindows([paragraph], self._tokenizer(), longest, DOC_STRIDE, seed=0)
        batch = windows.collater([windows[index] for index in range(len(windows))])
        logits = module(self.extract_features(batch["net_input"]["src_tokens"])).cpu()
        return answer_all([(batch, logits)], windows)[""]

    def _head(self, name: str, kind: type[nn.Module]) -> nn.Module:
        heads = {head: module for head, module in self.model.classification_heads.items() if isinstance(module, kind)}
        if name not in heads:
            raise ValueError(f"there is no {kind.__name__} {name!r}; the model has {', '.join(heads) or 'none'}")
        return heads[name]

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError("this model came without a tokenizer: give it ids")
        return self.tokenizer

    def _ids(self, text: Text) -> Tensor:
        """[T] int64 on the CPU, without padding."""
        if isinstance(text, str):
            return self.encode(text)
        ids = torch.as_tensor(text).cpu()
        return ids[ids.ne(self.model.pad)]

    def _layers(self, texts: Iterable[Text], all_layers: bool) -> list[list[Tensor]]:
        """For the last layer, or the embeddings and every layer, the states [T_i, dim] of each text."""
        rows = [self._ids(text) for text in texts]
        layers = [
            [None] * len(rows) for _ in range(len(self.model.autoencoder.encoder.layers) + 1 if all_layers else 1)
        ]
        for batch in batches_of_similar_length([len(row) for row in rows]):
            for layer, states in zip(layers, self._encode([rows[index] for index in batch], all_layers), strict=True):
                for index, row in zip(batch, states, strict=True):
                    layer[index] = row[: len(rows[index])]
        return layers

    def _encode(self, rows: list[Tensor], all_layers: bool) -> list[Tensor]:
        """[B, T, dim] of the last layer, or of the embeddings and every layer."""
        network, pad = self.model.autoencoder, self.model.pad
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        layout = batch_layout(tokens, torch.zeros_like(tokens, dtype=torch.bool), pad, self.model.mask)
        layout = to_device(layout, self.device)
        self.model.resolve_backend(self.device)
        layers = zip(network.encode(tokens.to(self.device), layout), network.encoder_layouts(layout), strict=True)
        return [unpack(*layer, tokens.shape[1]) for layer in (layers if all_layers else [list(layers)[-1]])]

    def _filling(self, parts: list[str], place: int, token: int, probability: float) -> Filling:
        word = self.symbols[token].replace(WORD_START, " ")
        before, after = MASK.join(parts[: place + 1]).rstrip(), MASK.join(parts[place + 1 :])
        return Filling((before + word + after).lstrip(), probability, word)


def hub_interface(model_type: type[nn.Module], pretrained: Pretrained) -> MAELMHubInterface:
    """The hub interface of a model class, :class:`~mae_lm_fairseq.models.mae_lm.MAELMModel`, for what was read."""
    fingerprint = dictionary_fingerprint(pretrained.symbols)
    model = model_type(build(pretrained), pretrained.pad, pretrained.mask, dictionary=fingerprint)
    model.classification_heads = build_heads(pretrained)
    return MAELMHubInterface(model, pretrained).eval()


def batches_of_similar_length(lengths: Sequence[int], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Places of texts in batches, the longest texts first, each batch of at most ``tokens`` with its padding."""
    batch = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _is_one(texts: Text | Sequence[Text]) -> bool:
    """Whether this is one text, and not a list of them."""
    if isinstance(texts, str | Tensor):
        return True
    return len(texts) > 0 and isinstance(texts[0], int)
