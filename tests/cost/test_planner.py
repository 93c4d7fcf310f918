"""Cost plans, against hand calculations and the documented figures."""

import json
import re
from dataclasses import replace

import pytest

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.cost.flops import TRAINING, Positions, forward_flops
from mae_lm_fairseq.cost.memory import PRECISIONS, FakeTrainingStep, training_memory
from mae_lm_fairseq.cost.planned_run import DEVICES, PlannedRun
from mae_lm_fairseq.cost.planner import count_parameters, flops_per_token, plan_cost
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT
from tests.support.commands import run_verb

pytestmark = pytest.mark.integration  # measures steps of all architectures
TINY = PlannedRun("mae_lm_tiny", vocab_size=300, tokens_per_sample=40, batch_size=2, tokens=10**9)
ABSTRACT = {"base": 0.78, "large": 0.68}
GPT2_VOCABULARY = 50_265


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name.endswith("tiny")])
def test_every_architecture(architecture):
    run = replace(TINY, preset=architecture)
    parameters = count_parameters(run.config, TINY.vocab_size)
    network = MaskedAutoencoder(run.config, TINY.vocab_size, 1, 2)
    assert parameters.total == sum(parameter.numel() for parameter in network.parameters())
    assert parameters.encoder == sum(parameter.numel() for parameter in network.encoder.parameters())
    assert run.roberta().preset == "mae_lm_roberta_tiny"


def test_parameters_by_hand():
    parameters = count_parameters(PlannedRun("mae_lm_roberta_base").config, GPT2_VOCABULARY)
    layer = 12 * 768**2 + 13 * 768
    embeddings = (GPT2_VOCABULARY + 514) * 768 + 2 * 768
    assert (parameters.encoder, parameters.decoder) == (embeddings + 12 * layer + 32 * 12, 0)
    assert parameters.head == 768**2 + 3 * 768 + GPT2_VOCABULARY


def test_flops_of_a_token():
    """Checkpointed layers are computed twice in the backward pass, and so are the logits of expanded masks."""
    expanded = replace(TINY, preset="mae_lm_exlm_decoder_tiny")
    passes = {TINY: (3, 3, 3), replace(TINY, checkpoint_activations=True): (4, 4, 3), expanded: (3, 3, 4)}
    for run, times in passes.items():
        forward = forward_flops(run.config, TINY.vocab_size, [Positions(40, 34, 6)])
        assert flops_per_token(run) == pytest.approx([n * part / 40 for n, part in zip(times, forward, strict=True)])
    assert flops_per_token(expanded).encoder == flops_per_token(TINY).encoder


def test_training_time_and_gradient_exchange():
    planned = plan_cost(TINY)
    assert planned.hours * 3600 * 8 * 312e12 * 0.23 == pytest.approx(10**9 * planned.flops.total)
    assert planned.run.updates == -(-(10**9) // (40 * 2 * 8 * 8))
    gradients = 2 * planned.parameters.total
    assert planned.exchanged == pytest.approx(2 * 7 / 8 * gradients)
    assert planned.memory_total == planned.memory.total + gradients
    assert plan_cost(replace(TINY, precision="fp32")).hours == pytest.approx(planned.hours * 312 / 156)  # TF32
    alone = plan_cost(replace(TINY, devices=1))
    assert (alone.exchanged, alone.exchange_buffer) == (0, 0)
    assert alone.hours == pytest.approx(8 * planned.hours)


@pytest.mark.parametrize("kind", DEVICES)
def test_rates_of_devices(kind):
    """Tensor cores multiply half-precision numbers twice as fast as TF32."""
    device = DEVICES[kind]
    assert device.half == pytest.approx(2 * device.tf32, rel=0.03)  # data sheets round
    assert 1e10 < device.memory < 2e11


def test_plans_that_exceed_device_memory():
    run = PlannedRun("mae_lm_base", device_kind="rtx4090", batch_size=128)
    assert not plan_cost(run).fits
    assert plan_cost(replace(run, checkpoint_activations=True)).fits


@pytest.mark.parametrize(("precision", "planned"), [("fp16", True), ("fp32", False)])
def test_plans_have_the_memory_of_the_fused_kernel_unless_in_float32(precision, planned):
    run = replace(TINY, tokens_per_sample=400, precision=precision)
    batch = run.config, run.vocab_size, run.positions, run.batch_size, PRECISIONS[precision]
    memory = {fused: training_memory(FakeTrainingStep(*batch, fused=fused), True).total for fused in (False, True)}
    assert plan_cost(run).memory.total == memory[planned]
    assert memory[True] < 0.6 * memory[False]


def test_longer_sequences_raise_max_positions():
    assert plan_cost(replace(TINY, tokens_per_sample=600)).run.config.max_positions == 600


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mask_prob": 0.01}, "mask_prob 0.01 .*--tokens-per-sample 40"),
        ({"mask_in_encoder": 1.5}, "mask_in_encoder 1.5"),
    ],
)
def test_errors_name_the_field(changes, named):
    with pytest.raises(ValueError, match=named):
        replace(TINY, **changes)


def test_command(capsys):
    command = ["mae_lm_tiny", "--mask-prob 0.5 --tokens 1e9 --batch-size 2 --vocab-size 300"]
    run_verb("plan", *command)
    text = capsys.readouterr().out
    run_verb("plan", *command, "--json")
    figures = json.loads(capsys.readouterr().out)
    first, second = figures["plans"]
    assert (first["preset"], second["preset"]) == ("mae_lm_tiny", "mae_lm_roberta_tiny")
    assert (first["mask_prob"], second["mask_prob"]) == (0.5, 0.15)
    assert first["tokens"] == 10**9
    ratio = first["flops_per_token"]["total"] / second["flops_per_token"]["total"]
    assert figures["relative_compute"] == pytest.approx(ratio)
    assert f"relative compute: {ratio:.1%} of mae_lm_roberta_tiny" in text


def test_default_masking_rate_is_that_of_the_recipe(capsys):
    run_verb("plan", "mae_lm_3ml_self_tiny", "--batch-size 2 --vocab-size 300 --json")
    assert [made["mask_prob"] for made in json.loads(capsys.readouterr().out)["plans"]] == [0.5, 0.15]


@pytest.mark.parametrize("tokens", ["many", "1.5", "inf", "nan"])
def test_token_counts_must_be_integers(capsys, tokens):
    with pytest.raises(SystemExit) as stop:
        run_verb("plan", "mae_lm_tiny", "--tokens", tokens)
    assert stop.value.code != 0
    assert f"--tokens: {tokens} is not an integer" in capsys.readouterr().err


def relative(size: str, preset: str = "mae_lm_3ml_self", **changes) -> float:
    run = PlannedRun(f"{preset}_{size}", mask_prob=0.5, **{"vocab_size": GPT2_VOCABULARY, **changes})
    return flops_per_token(run).total / flops_per_token(run.roberta()).total


def changed(size: str, positions: Positions | None = None, **changes) -> float:
    """Return the relative cost of 3ML-self for other positions or another network."""
    run = PlannedRun(f"mae_lm_3ml_self_{size}", mask_prob=0.5, vocab_size=GPT2_VOCABULARY)
    flops = forward_flops(replace(run.config, **changes), GPT2_VOCABULARY, [positions or run.positions])
    return TRAINING * flops.total / 512 / flops_per_token(run.roberta()).total


def measured(size: str) -> float:
    """Return the ratio measured by scripts/benchmark.py."""
    return read_json(ROOT / "scripts/results" / f"cpu-{size}.json")["ratios"]["three_ml_step_cost"]


DOCUMENTED = {
    "3ML's abstract": ABSTRACT.get,
    "`mae_lm_3ml_self_{base,large}`": relative,
    "`mae_lm_3ml_cross_{base,large}`": lambda size: relative(size, "mae_lm_3ml_cross"),
    "3 decoder layers": lambda size: changed(size, decoder_layers=3),
    "4 decoder layers": lambda size: changed(size, decoder_layers=4),
    "the last decoder layer computed at all positions": lambda size: changed(size, Positions(512, 256, 256, 512)),
    "10 % of the predicted tokens replaced": lambda size: changed(size, Positions(512, 512 - 230, 256)),
    "80/10/10": lambda size: changed(size, Positions(512, 512 - 205, 256)),
    "sequences of 128 tokens": lambda size: relative(size, tokens_per_sample=128),
    "a vocabulary of 32,000": lambda size: relative(size, vocab_size=32_000),
    "by formula": lambda size: relative(size, vocab_size=32_000),
    "as measured": measured,
}


def test_documented_figures():
    text = (ROOT / "scripts/results/compute-3ml/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| ([\d.]+) % \| ([\d.]+) % \|$", text, flags=re.MULTILINE)
    assert len(rows) == len(DOCUMENTED)
    for (label, *figures), (start, compute) in zip(rows, DOCUMENTED.items(), strict=True):
        assert label.startswith(start)
        for figure, size in zip(figures, ABSTRACT, strict=True):
            assert 100 * compute(size) == pytest.approx(float(figure), abs=0.05), (label, size)
