"""Alignment loss of expanded ``[MASK]`` tokens (ExLM, Zheng et al., ICML 2025, arXiv 2501.13397).

The states of all ``[MASK]`` tokens of a row (:mod:`~mae_lm_fairseq.core.expansion`), in their order, are the vertices
of a graph with a *transition* from each to every later one. An alignment is a path with one state for each target, in
the order of the text; which ``[MASK]`` a state belongs to does not matter. The loss is minus the logarithm of the sum
over all paths of P(path) P(targets | path), computed by dynamic programming over the targets as in DA-Transformer
(Huang et al., ICML 2022, arXiv 2205.07459).

What differs from the paper and its code (github.com/zhengkangjie/ExLM at ad50799):

- There, a path begins at the first state of ``<s>``, ends at the last one of ``</s>``, which are targets as well, and
  may pass through their other states. Here, a learned *start* and *end* take their place: vertices without a token.
  The sum over paths is that of the authors' ``torch_dag_loss`` for this graph. The start does not lead to the end.
- Transitions are one softmax over query and key projections of the hidden states, the paper's equation. The code mixes
  the softmaxes of several heads, whose features also include an embedding of the state's number in the row.
- The loss of a batch is the sum over its rows, divided by the number of targets. The code averages the rows' means.

Log-probabilities are float32, of scores in the precision of all matrix products. Impossible transitions have
:data:`NEVER` in place of minus infinity, whose gradients would be NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.cross_entropy import linear_log_probabilities
from mae_lm_fairseq.core.expansion import expand
from mae_lm_fairseq.core.heads import LMHead
from mae_lm_fairseq.core.packing import BatchLayout, Layout, from_rows, indices_in, to_rows

NEVER = -1e30
"""Logarithm of a probability that is zero; hundreds of them can be added in float32."""


class Transitions(nn.Module):
    """Probability that a later state, or the end, is the next vertex of a path.

    Args:
        dim: hidden size.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.query = nn.Parameter(torch.empty(dim, dim))
        self.key = nn.Parameter(torch.empty(dim, dim))
        self.ends = nn.Parameter(torch.empty(2, dim))  # query of the start, key of the end

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return log-probabilities [B, 1 + S, 1 + S] of transitions from row to column.

        Args:
            states: [B, S, dim], in rows.
            lengths: [B] int64, number of states of each row.

        Returns:
            Row 0 is the start, and column 0 the end; the others are the states.
        """
        ends = self.ends[:, None].expand(-1, len(states), -1).unsqueeze(2)
        start, end = ends.to(states.dtype)
        scale = states.shape[-1] ** -0.5
        queries = torch.cat([start, F.linear(states, self.query)], 1) * scale
        keys = torch.cat([end, F.linear(states, self.key)], 1)
        scores = (queries @ keys.mT).float()

        to = torch.arange(keys.shape[1], device=states.device)
        vertex = to[:, None]
        is_state = to <= lengths[:, None, None]
        is_later = (to > vertex) & is_state
        is_end = (to == 0) & (vertex > 0)
        is_possible = is_later | is_end
        return scores.masked_fill(~is_possible, NEVER).log_softmax(-1)


def log_likelihood(emissions: Tensor, transitions: Tensor, targets: Tensor) -> Tensor:
    """Return the logarithm of the sum over all alignments, [B]; zero for a row without targets.

    A row has at least as many states as targets; with fewer, there is no path, and the result is about :data:`NEVER`.

    Args:
        emissions: [B, S, J], log-probability of the J targets of each row at each of its S states.
        transitions: [B, 1 + S, 1 + S], see :class:`Transitions`.
        targets: [B] int64, number of targets of each row; the others are ignored.
    """
    if not emissions.shape[2]:
        return emissions.sum() * transitions.sum() * targets  # zeros, with gradients
    start = transitions[:, 0, 1:]
    between = transitions[:, 1:, 1:]
    end = transitions[:, 1:, 0]
    first, *others = emissions.unbind(2)
    paths = start + first  # [B, S]: sum over the paths that have reached each state with the last target
    for number, emission in enumerate(others, 1):
        longer = _LogProduct.apply(paths, between) + emission
        paths = torch.where(number < targets[:, None], longer, paths)
    total = (paths + end).logsumexp(1)
    return total.where(targets > 0, 0.0)


def target_states(transitions: Tensor, targets: Tensor, count: int) -> Tensor:
    """Return the probability [B, S, ``count``] that each state is the one of each target, before the targets are seen.

    It follows from the transitions and from the number of targets, which is that of the ``[MASK]`` tokens: it is the
    derivative of the log-likelihood by the log-probabilities of targets that all states emit alike.
    """
    with torch.inference_mode(False), torch.enable_grad():
        if transitions.is_inference():
            transitions = transitions.clone()
        rows, vertices, _ = transitions.shape
        emissions = transitions.new_zeros(rows, vertices - 1, count).requires_grad_()
        total = log_likelihood(emissions, transitions, targets).sum()
    [probabilities] = torch.autograd.grad(total, emissions, create_graph=torch.is_grad_enabled())
    return probabilities


class _LogProduct(torch.autograd.Function):
    """Vector [B, S] times matrix [B, S, S] of logarithms, which keeps no further [B, S, S] for the backward pass."""

    @staticmethod
    def forward(ctx, vector: Tensor, matrix: Tensor) -> Tensor:
        product = (vector[:, :, None] + matrix).logsumexp(1)
        ctx.save_for_backward(vector, matrix, product)
        return product

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        vector, matrix, product = ctx.saved_tensors
        fractions = (vector[:, :, None] + matrix - product[:, None]).exp()
        parts = fractions * gradient[:, None]
        return parts.sum(2), parts


class AlignmentHead(LMHead):
    """Language model head whose predictions are the states of expanded ``[MASK]`` tokens.

    At a ``[MASK]``, the probability of a token is the mean of its probabilities at all states of the row, weighted by
    :func:`target_states`: the marginal over the alignments, given that they have one state for each ``[MASK]``. The
    loss is that of all targets together, and of their number, so that it cannot be compared with a cross-entropy.
    """

    def __init__(self, config: MaskedAutoencoderConfig, embed_tokens: nn.Embedding):
        super().__init__(config, embed_tokens)
        self.clones = config.mask_states
        self.transitions = Transitions(config.encoder_embed_dim)

    def loss(
        self, states: Tensor, targets: Tensor, layout: BatchLayout, loss_weights: None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the summed loss, and the number of correct predictions; in training None, as it costs as much.

        A prediction is correct if its target is the most likely token at the state that is the most likely one of the
        target in :func:`target_states`.

        Beside one chunk of logits, the forward pass holds [number of states, J] and a few [B, S, S] of float32, where J
        and S = k J are the most targets and states of a row, and keeps two [B, S] for each of the J steps.

        Args:
            states: [number of states, dim] of all ``[MASK]`` tokens.
            targets: [number predicted] int64.
            layout: layout of the batch.
            loss_weights: None, as there is no loss of single positions.

        Raises:
            ValueError: if the predicted positions are not those of the ``[MASK]`` tokens, or there are weights.
        """
        if loss_weights is not None:
            raise ValueError(f"the alignment loss of mask_states {self.clones} cannot weight positions")
        masked = layout.masked
        is_expanded = len(states) == self.clones * len(targets)
        if len(targets) != masked.index.numel() or not is_expanded:
            raise ValueError(
                f"the alignment loss of mask_states {self.clones} needs a target at every [MASK], and nowhere else"
            )
        wanted = to_rows(targets, masked)
        wanted_of_masks = wanted.index_select(0, masked.packed_rows())
        wanted_of_states = wanted_of_masks.repeat_interleave(self.clones, 0)
        emissions, best = linear_log_probabilities(self.transform(states), self.weight, self.bias, wanted_of_states)
        transitions = self._transitions(states, masked)
        likelihoods = log_likelihood(self._rows(emissions, masked), transitions, masked.lengths)
        loss = -likelihoods.sum()
        if self.training:
            return loss, None
        return loss, self._count_correct(best, wanted, transitions, masked)

    @torch.no_grad()
    def _count_correct(self, best: Tensor, wanted: Tensor, transitions: Tensor, masked: Layout) -> Tensor:
        """Return how many targets are the most likely token at their most likely state.

        Args:
            best: [number of states] int64, the most likely token at each.
            wanted: [B, J] int64, the targets.
            transitions: see :class:`Transitions`.
            masked: layout of the ``[MASK]`` tokens.
        """
        chosen = target_states(transitions.detach(), masked.lengths, masked.width)
        chosen = chosen.argmax(1, keepdim=True) if masked.width else chosen.long()
        is_target = self._rows(best[:, None], masked).eq(wanted[:, None])
        is_correct = is_target.gather(1, chosen) & masked.occupied()[:, None]
        return is_correct.sum()

    def forward(self, states: Tensor, layout: BatchLayout) -> Tensor:
        """Return log-probabilities [number predicted, vocabulary] as logits; holds those of all states.

        Args:
            states: [number of states, dim] of the decoded positions: those of the ``[MASK]`` tokens, and one of each
                other predicted position, which is read as it is in :class:`~mae_lm_fairseq.core.heads.LMHead`.
            layout: layout of the batch.
        """
        masked, decoded = layout.masked, layout.decoded
        logits = super().forward(states)
        log_probs = logits.float().log_softmax(-1)
        first = expand(decoded, masked, self.clones).layout.first
        masks = indices_in(masked, decoded)
        clones = torch.arange(self.clones, device=first.device)
        of_masks = (first[masks][:, None] + clones).flatten()
        transitions = self._transitions(states[of_masks], masked)
        weights = target_states(transitions, masked.lengths, masked.width)
        # float64 has room for small probabilities, and autocast leaves it alone.
        probabilities = self._rows(log_probs[of_masks], masked).double().exp()
        marginals = from_rows(weights.double().mT @ probabilities, masked)
        mixed = marginals.clamp_min(1e-300).log()
        log_probs = log_probs[first].index_copy(0, masks, mixed.to(log_probs.dtype))
        predicted = log_probs.index_select(0, indices_in(layout.predicted, decoded))
        return predicted.to(logits.dtype)

    def _transitions(self, states: Tensor, masked: Layout) -> Tensor:
        return self.transitions(self._rows(states, masked), self.clones * masked.lengths)

    def _rows(self, states: Tensor, masked: Layout) -> Tensor:
        """Convert [number of states, ...] of the ``[MASK]`` tokens to [B, S, ...]."""
        by_mask = states.unflatten(0, (-1, self.clones))
        return to_rows(by_mask, masked).flatten(1, 2)
