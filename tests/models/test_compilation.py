"""``--compile``: equal results, and no recompilation once warm."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from mae_lm_fairseq.models import mae_lm
from mae_lm_fairseq.models.backend import compiled
from tests.support.networks import MASK, PAD, batch, layout_for, network, text
from tests.support.processes import untraced
from tests.support.training import batches, set_up

pytestmark = pytest.mark.integration  # compiles


@pytest.fixture(autouse=True)
def nothing_compiled_before(tmp_path, monkeypatch):
    """Start without compiled code of this process or of a concurrent test run."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    counters.clear()
    with untraced():
        yield


def random_batch(step, full):
    generator = torch.Generator().manual_seed(step)
    rows, longest = (int(torch.randint(*span, (), generator=generator)) for span in ((2, 9), (6, 24)))
    lengths = [longest] * rows if full else torch.randint(4, longest + 1, (rows,), generator=generator).tolist()
    tokens = batch(*(text(length, step + row) for row, length in enumerate(lengths)))
    hidden = (torch.rand(tokens.shape, generator=generator) < 0.4) & tokens.ne(PAD)
    return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, PAD)


def run(net, function, seed, tokens, targets):
    net.zero_grad()
    torch.manual_seed(seed)
    states = function(tokens, layout_for(tokens, targets))
    states.square().sum().backward()
    return states.detach(), {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("preset", "checkpointing"),
    [
        ("mae_lm", True),
        ("mae_lm", False),
        ("mae_lm_roberta", False),
    ],
)
@pytest.mark.slow  # a minute each
def test_same_results_with_dropout_and_one_graph_per_kind_of_batch(preset, checkpointing):
    net = network(preset, encoder_layers=1).train()
    for stack in net.stacks():
        stack.checkpoint_activations = checkpointing
    fast = compiled(net.predicted_states, backend="aot_eager")
    kinds = set()
    for step in range(9):
        case = random_batch(step, full=step % 3 == 0)
        layout = layout_for(*case)
        kinds.add((layout.sequence.is_full, net.encoder_layouts(layout)[0].is_full))
        expected, expected_gradients = run(net, net.predicted_states, step, *case)
        states, found = run(net, fast, step, *case)
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-5)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-4, msg=name)
    # Graphs differ only in whether rows are full or ragged, in the encoder and in the decoder.
    assert counters["stats"]["unique_graphs"] == len(kinds) == 2


@pytest.mark.parametrize(
    ("backend", "setting"),
    [
        ("aot_eager", "mae_lm_tiny --decoder-layers 1"),
        *(
            pytest.param("inductor", setting, marks=pytest.mark.slow)
            for setting in (
                "mae_lm_tiny --decoder-layers 1",
                "mae_lm_exlm_tiny",
                "mae_lm_exlm_decoder_tiny --decoder-layers 1",
            )
        ),
    ],
)
def test_compile_option_compiles_only_training(data_bin, monkeypatch, backend, setting):
    if backend != "inductor":  # the default, which compiles C++ for more than a minute
        monkeypatch.setattr(mae_lm, "compiled", partial(compiled, backend=backend))
    arch, *layers = *setting.split(), "--encoder-layers", 1
    _, task, model, criterion = set_up(data_bin, *layers, "--compile", arch=arch)
    _, _, plain, _ = set_up(data_bin, *layers, arch=arch)
    plain.load_state_dict(model.state_dict())
    task.load_dataset("train")
    # Rows of unequal numbers of [MASK]: for them, inductor failed at the sizes of expanded rows.
    sample = next(sample for sample in batches(task) if sample["target"].ne(model.pad).sum(1).unique().numel() > 1)
    losses = []
    for each in (model, plain):
        torch.manual_seed(0)
        loss, _, _ = criterion(each.train(), sample)
        loss.backward()
        losses.append(loss.item())
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1 or "exlm" in setting  # whose expansion is not compiled, and lies between graphs
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for fast, eager in zip(model.parameters(), plain.parameters(), strict=True):
        scale = float(eager.grad.abs().max())
        torch.testing.assert_close(fast.grad, eager.grad, rtol=0, atol=1e-5 * scale + 1e-7)
    criterion(model.eval(), sample)
    assert counters["stats"]["unique_graphs"] == graphs
