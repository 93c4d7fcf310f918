"""The alignment loss against all alignments of small cases, against ExLM's own code, and what its head predicts.

The numbers in tests/fixtures/authors/exlm_dag_loss.safetensors are those of ``torch_dag_loss`` and its gradients in
github.com/zhengkangjie/ExLM at ad50799, in float64, for random log-probabilities of the targets and transitions of four
rows. In its graph, the first vertex was the start, which emits the first target with log-probability 0, and the last
vertex the end, likewise; states and targets of the row stood between. Impossible transitions were minus infinity.
"""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from mae_lm_fairseq.core import cross_entropy
from mae_lm_fairseq.core.alignment import NEVER, log_likelihood, target_states
from mae_lm_fairseq.core.cross_entropy import linear_log_probabilities
from tests.support.comparisons import assert_close
from tests.support.networks import PAD, batch, layout_for, masked, network, text

AUTHORS = Path(__file__).parents[1] / "fixtures/authors/exlm_dag_loss.safetensors"
PRESETS = ("mae_lm_exlm", "mae_lm_exlm_decoder")
STATES, TARGETS = torch.tensor([8, 6, 4, 0, 3]), torch.tensor([3, 2, 1, 0, 3])


def small_case() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random emissions and transitions of rows with :data:`STATES` and :data:`TARGETS`, in float64."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 9, 9, generator=generator, dtype=torch.float64)
    to = torch.arange(9)
    possible = (to > to[:, None]) & (to <= STATES[:, None, None]) | (to == 0) & (to[:, None] > 0)
    transitions = scores.masked_fill(~possible, NEVER).log_softmax(-1)
    emissions = torch.randn(5, 8, 3, generator=generator, dtype=torch.float64) - 4
    return emissions.requires_grad_(), transitions.requires_grad_()


def terms(emissions, transitions, row):
    """Return every path of a row and its log-probability, targets included."""
    count = int(TARGETS[row])
    for path in itertools.combinations(range(int(STATES[row])), count):
        vertices = [0, *(state + 1 for state in path), 0]
        score = sum(transitions[row, a, b] for a, b in itertools.pairwise(vertices))
        yield path, score + sum(emissions[row, state, target] for target, state in enumerate(path))


def test_value_and_gradients_equal_the_sum_over_all_alignments():
    emissions, transitions = small_case()
    likelihoods = log_likelihood(emissions, transitions, TARGETS)
    rows = [0, 1, 2, 4]
    expected = torch.stack(
        [torch.stack([s for _, s in terms(emissions, transitions, row)]).logsumexp(0) for row in rows]
    )
    assert_close(likelihoods[rows], expected, 1e-12)
    assert likelihoods[3] == 0
    ours, plain = (torch.autograd.grad(x.sum(), [emissions, transitions]) for x in (likelihoods, expected))
    for a, b in zip(ours, plain, strict=True):
        assert_close(a, b, 1e-12)


def test_value_and_gradients_equal_the_authors():
    numbers = load_file(AUTHORS)
    inputs = [numbers[name].requires_grad_() for name in ("emissions", "transitions")]
    loss = -log_likelihood(*inputs, numbers["targets"])
    assert_close(loss, numbers["loss"], 1e-12)
    for name, ours in zip(("emissions", "transitions"), torch.autograd.grad(loss.sum(), inputs), strict=True):
        assert_close(ours, numbers[f"gradient/{name}"], 1e-12)


def test_target_states_are_the_fraction_of_the_paths_without_emissions():
    emissions, transitions = small_case()
    fractions = target_states(transitions, TARGETS, 3)
    with torch.inference_mode():
        assert torch.equal(target_states(transitions.clone(), TARGETS.clone(), 3), fractions)
    for row in (0, 1, 2, 4):
        paths, scores = zip(*terms(torch.zeros_like(emissions), transitions, row), strict=True)
        expected = torch.zeros(8, 3, dtype=torch.float64)
        for path, weight in zip(paths, torch.stack(scores).softmax(0), strict=True):
            expected[list(path), range(len(path))] += weight
        assert_close(fractions[row], expected, 1e-12)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_log_probabilities_equal_those_of_all_logits(monkeypatch, chunk):
    """Also where a row wants the same token twice."""
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", chunk * 30)
    generator = torch.Generator().manual_seed(0)
    shapes = ((11, 8), (30, 8), (30,))
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    wanted = torch.randint(5, (11, 4), generator=generator)
    log_probabilities, best = linear_log_probabilities(*inputs, wanted)
    logits = F.linear(*inputs)
    expected = logits.log_softmax(-1).gather(1, wanted)
    assert_close(log_probabilities, expected, 1e-5)
    assert torch.equal(best, logits.argmax(-1))
    weights = torch.randn(11, 4, generator=generator)
    ours, plain = (torch.autograd.grad((x * weights).sum(), inputs) for x in (log_probabilities, expected))
    assert_close(ours, plain, 2e-5)


def loss_of(model, tokens, targets):
    layout = layout_for(tokens, targets)
    return model.lm_head.loss(model.predicted_states(tokens, layout), targets[targets.ne(PAD)], layout)


@pytest.mark.parametrize("preset", PRESETS)
def test_correct_counts_the_likely_token_of_the_likely_state(preset):
    model = network(preset).eval()
    tokens, targets = masked(batch(text(9, 1), text(6, 2), text(4, 3)), [(0, 4), (0, 5), (1, 2)])
    layout = layout_for(tokens, targets)
    states = model.predicted_states(tokens, layout)
    weights = target_states(model.lm_head._transitions(states, layout.masked), layout.masked.lengths, 2)
    best = F.linear(model.lm_head.transform(states), model.lm_head.weight, model.lm_head.bias).argmax(-1)
    likely = [best[weights[0, :, 0].argmax()], best[weights[0, :, 1].argmax()], best[8 + weights[1, :4, 0].argmax()]]
    for right in range(4):
        wanted = torch.tensor([int(token) + (number >= right) for number, token in enumerate(likely)]) % 30
        assert model.lm_head.loss(states, wanted, layout)[1] == right


@pytest.mark.parametrize("preset", PRESETS)
def test_a_loss_needs_a_target_at_every_mask_and_nowhere_else(preset):
    model = network(preset).eval()
    tokens, targets = masked(batch(text(9, 1), text(6, 2)), [(0, 4), (1, 2)])
    for changed in ((0, 4, PAD), (0, 6, 7)):
        others = targets.clone()
        others[changed[:2]] = changed[2]
        with pytest.raises(ValueError, match="mask_states 4"):
            loss_of(model, tokens, others)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_loss_of_all_targets_has_no_weights_of_single_ones(preset):
    model = network(preset).eval()
    with pytest.raises(ValueError, match="mask_states 4"):
        model.lm_head.loss(torch.zeros(4, 16), torch.zeros(1).long(), None, torch.ones(1))


def test_networks_start_from_the_weights_of_their_preset_without_expansion():
    """In everything but the expansion and the decoder, which is drawn after it."""
    for preset, plain in (("mae_lm_exlm_decoder", "mae_lm"), ("mae_lm_exlm", "mae_lm_roberta")):
        weights, others = network(preset).state_dict(), network(plain).state_dict()
        names = [name for name in others if not name.startswith("decoder.")]
        assert all(torch.equal(weights[name], others[name]) for name in names)
        added = weights.keys() - others.keys()
        part = "decoder" if preset.endswith("decoder") else "encoder"
        transitions = {f"lm_head.transitions.{name}" for name in ("query", "key", "ends")}
        assert added == {f"{part}.embed_clones.weight", *transitions}


def test_training_in_bfloat16_lowers_the_loss():
    """Over-fits one batch."""
    model = network("mae_lm_exlm_decoder", dropout=0.0, attention_dropout=0.0)
    tokens, targets = masked(batch(text(9, 1), text(12, 2)), [(0, 4), (0, 5), (1, 2)])
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    losses = []
    for _ in range(12):
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = loss_of(model, tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.7
