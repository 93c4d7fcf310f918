"""The main-sentence experiment: its clock, its analysis of known results, and a rehearsal, killed and resumed."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from experiments import analyse_main_sentence, main_sentence
from experiments.analyse_main_sentence import analyse, read_rows
from experiments.main_sentence import (
    Experiment,
    MainSentenceOptions,
    Member,
    chosen_rates,
    remaining_seconds,
    updates_that_fit,
)
from experiments.metrics import METRICS
from experiments.one_model import (
    ARMS,
    PRETRAINING,
    PRIMARY,
    PRIMARY_TASKS,
    SECONDARY,
    TASKS,
    Job,
    OneModel,
    draw_masks,
    fine_tunings,
    order,
    train,
)
from experiments.sentence_data import PAD, load, save, smoke_data
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.utils.files import read_json, write_json
from tests.support.comparisons import assert_close
from tests.support.processes import wait_for
from tests.support.refusals import refused

NOISE = (-0.4, 0.3, -0.1, 0.5, -0.2, -0.1)
"""Differences between the pairs, with a mean of 0 and a standard deviation of 0.35."""


def slot(path, effect, noise=NOISE, first=1, cola=15.0, dropped=()):
    """Write the results of a slot in which MAE-LM is better by ``effect`` on average."""
    rows = []
    for number, difference in enumerate(noise):
        for arm, gain in (("MLM", 0.0), ("MAE-LM", effect + difference)):
            model = {"arm": arm, "seed": first + number, "rate": 1e-3}
            rows.append(model | {"name": "pretraining", "loss": 3.0, "seconds": 100.0})
            scores = {"SST-2": 80.0, "CoLA": cola, "STS-B": 60.0}
            rows += [
                model | {"name": name, "value": value + gain, "seconds": 5.0}
                for task, value in scores.items()
                for name in fine_tunings(task)
            ]
    rows = [row for row in rows if (row["arm"], row["seed"], row["name"]) not in dropped]
    settings = {"size": "main", "slot": 1 + first // 7, "updates": None, "rates": {}, "data": ""}
    write_json(path, {"settings": settings, "updates": 3000, "rows": rows})
    return path


def primary(*paths):
    return analyse(read_rows(paths))["primary"]


@pytest.mark.parametrize(
    ("effect", "scale", "verdict"),
    [
        (1.0, 1, "shown"),
        (-1.0, 1, "contradicted"),
        (0.2, 1, "equivalent"),
        (0.2, 5, "cannot tell"),
        (0.45, 1, "shown"),  # although the 90 % interval lies within the margin, too
    ],
)
def test_verdicts(tmp_path, effect, scale, verdict):
    result = primary(slot(tmp_path / "a", effect, [scale * x for x in NOISE]))
    assert (result["verdict"], result["pairs"]) == (verdict, 6)
    assert result["mean"] == pytest.approx(effect)


def test_intervals_and_p_values(tmp_path):
    result = primary(slot(tmp_path / "a", 0.5))
    half = 2.5706 * np.std(NOISE, ddof=1) / 6**0.5  # Student's quantile with five degrees of freedom
    assert result["interval_95"] == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)
    assert result["interval_90"] == pytest.approx(tuple(0.5 + x * half * 2.0150 / 2.5706 for x in (-1, 1)), abs=1e-4)
    # All differences but none are positive: only all signs equal give a mean as large.
    assert result["sign_flip"] == pytest.approx(2 / 64)
    assert result["p"] < 0.05


def test_two_slots_are_pooled_and_must_be_alike(tmp_path):
    slots = slot(tmp_path / "a", 1.0), slot(tmp_path / "b", 1.0, first=7)
    assert primary(*slots)["pairs"] == 12
    with refused("in two slots"):
        primary(slots[0], slots[0])
    write_json(slots[1], {**read_json(slots[1]), "updates": 2000})
    with refused("cannot be analysed together"):
        primary(*slots)


def test_a_seed_that_is_incomplete_in_one_arm_is_dropped_in_both(tmp_path):
    result = primary(slot(tmp_path / "a", 1.0, dropped={("MAE-LM", 2, fine_tunings("CoLA")[0])}))
    assert [*result["by_seed"]] == [1, 3, 4, 5, 6]


def test_the_gate_drops_a_task_in_both_arms(tmp_path):
    path = slot(tmp_path / "a", 1.0, cola=7.9)
    assert [*analyse(read_rows([path]))["kept_tasks"]] == ["SST-2", "STS-B"]
    result = analyse(read_rows([slot(tmp_path / "b", 1.0, cola=8.0)]))
    assert [*result["kept_tasks"]] == [*PRIMARY_TASKS]


def test_a_diverged_model_counts_as_missing(tmp_path):
    path = slot(tmp_path / "a", 1.0)
    record = read_json(path)
    record["rows"][0]["loss"] = float("nan")
    write_json(path, record)
    assert [*primary(path)["by_seed"]] == [2, 3, 4, 5, 6]


def test_the_number_of_updates_fits_the_time():
    assert updates_that_fit(240, 20, 0.03, 100, 7000) == 4000
    assert updates_that_fit(240, 20, 0.001, 100, 7000) == 7000
    assert updates_that_fit(150, 20, 0.03, 100, 7000) == main_sentence.FEWEST_UPDATES  # and fewer pairs


def test_remaining_time_is_that_of_the_slowest():
    rows = [{"arm": "MLM", "name": name, "seconds": s} for name, s in (("a", 2.0), ("a", 3.0), ("b", 1.0))]
    assert remaining_seconds(rows, "MLM", ["a", "b"]) == 4.0
    assert remaining_seconds(rows, "MLM", ["a", "c"]) is None
    assert remaining_seconds(rows, "MAE-LM", ["a"]) is None


@pytest.mark.parametrize(("left", "starts"), [(119, False), (121, True)])
def test_a_pair_is_started_only_if_it_ends_in_time(tmp_path, left, starts):
    experiment = Experiment(MainSentenceOptions(out=tmp_path, device="cpu", smoke=True))
    experiment.record["planned_seconds"] = 100.0
    experiment.left = lambda: left
    launched = []
    experiment.launch = lambda group, member, names: launched.append(member.arm)
    waiting = experiment.groups()[:1]
    experiment.start(waiting)
    assert launched == (["MLM", "MAE-LM"] if starts else [])
    assert waiting == []


def test_a_model_whose_weights_were_lost_is_trained_again(tmp_path):
    experiment = Experiment(MainSentenceOptions(out=tmp_path, device="cpu", smoke=True))
    member = Member("MLM", 1, 1e-3)
    rows = [{"arm": "MLM", "seed": seed, "rate": 1e-3, "name": "pretraining"} for seed in (1, 2)]
    experiment.record["rows"] = rows.copy()
    experiment.weights(member).touch()
    assert experiment.missing_of(member, PRIMARY) == [*PRIMARY[1:]]
    experiment.weights(member).unlink()
    assert experiment.missing_of(member, PRIMARY) == [*PRIMARY]
    assert experiment.record["rows"] == rows[1:]


@pytest.mark.parametrize(("last", "rate"), [(80.4, 1e-3), (80.6, 5e-4)])
def test_the_rate_is_that_of_the_loss_unless_the_probe_is_damaged(last, rate):
    rows = []
    for arm in ("MLM", "MAE-LM"):
        for tried, loss, probed in ((5e-4, 3.1, last), (1e-3, 3.0, 80.0)):
            model = {"arm": arm, "rate": tried}
            rows += [model | {"name": "pretraining", "loss": loss}, model | {"name": "probe", "last": probed}]
    assert chosen_rates(rows) == {"MLM": rate, "MAE-LM": rate}


def test_metrics_agree_with_other_libraries():
    from scipy.stats import spearmanr
    from sklearn.metrics import matthews_corrcoef

    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 6, (2, 200)).astype(float)
    assert METRICS["spearman"](x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert METRICS["matthews"](x % 2, y % 2) == pytest.approx(matthews_corrcoef(x % 2, y % 2))
    assert METRICS["matthews"](np.zeros(200), y % 2) == 0


def test_masks_have_fairseqs_number_of_positions():
    masks = draw_masks((1000, 128), np.random.default_rng(0))
    counts = masks.sum(1)
    assert {*counts} == {19, 20}
    assert counts.mean() == pytest.approx(0.15 * 128, abs=0.05)
    assert masks.mean(0) == pytest.approx(np.full(128, 0.15), abs=0.05)


def test_an_epoch_has_every_row_once():
    batches = order(1, 10, 5)
    epochs = [np.concatenate([next(batches), next(batches)]) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[*range(10)]] * 2
    assert [*epochs[0]] != [*epochs[1]]


def one_model(arm, graphs=False):
    return OneModel(Job(arm, 1, 1e-3, 2, "smoke", "cpu", "", "", (), graphs), smoke_data())


def test_the_models_of_a_seed_start_from_the_same_weights():
    ours, theirs = (one_model(arm).network() for arm in ("MLM", "MAE-LM"))
    for part in ("encoder", "lm_head"):
        weights = getattr(theirs, part).state_dict()
        assert all((value == weights[name]).all() for name, value in getattr(ours, part).state_dict().items())


@torch.no_grad()
def test_every_arm_is_fine_tuned_with_its_own_encoder():
    model = one_model("MAE-LM")
    network = model.network().eval()
    tokens, layout, *_ = model.batch(model.data.tasks["RTE"]["test"], range(5))
    full = batch_layout(tokens, torch.zeros_like(tokens).bool(), PAD, model.data.mask)
    plain = model.plain_encoder(network.encoder.state_dict(), 0.0).eval()
    assert torch.equal(plain(tokens, layout)[-1], network.encode(tokens, full)[-1])


def pretrained(arm, graphs, monkeypatch):
    """Return the losses of some updates, the gradients of the first one, and the sizes of its batches."""
    model = one_model(arm, graphs)
    network = model.network()
    losses = []
    gradients = []
    sizes = set()
    masked_loss = OneModel.masked_loss

    def recorded(self, network, batch):
        leaves = torch.utils._pytree.tree_leaves(batch)
        sizes.add(tuple(leaf.shape if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves))
        return masked_loss(self, network, batch)

    def steps():
        for loss in model.pretraining_steps(network):
            if not gradients:
                gradients.extend(parameter.grad.clone() for parameter in network.parameters())
            losses.append(loss.item())
            yield loss

    with monkeypatch.context() as patch:
        patch.setattr(OneModel, "masked_loss", recorded)
        train(network, steps(), 1e-3, 6, PRETRAINING)
    return losses, gradients, sizes


@pytest.mark.parametrize("arm", ARMS)
def test_graphs_pretrain_as_without(arm, monkeypatch):
    """Batches of one size have the gradients of the batches of several sizes, also where the encoder sees masks."""
    losses, gradients, sizes = pretrained(arm, False, monkeypatch)
    fixed_losses, fixed_gradients, fixed_sizes = pretrained(arm, True, monkeypatch)
    assert len(losses) == len(fixed_losses) == 6
    assert len(sizes) > 1 == len(fixed_sizes)
    # Sums in another order.
    assert fixed_losses == pytest.approx(losses, rel=1e-5)
    for fixed, gradient in zip(fixed_gradients, gradients, strict=True):
        assert_close(fixed, gradient, 1e-5 * float(gradient.abs().max()) + 1e-9)


def test_results_with_graphs_are_not_mixed_with_others(tmp_path):
    def experiment(cuda_graphs):
        return Experiment(MainSentenceOptions(out=tmp_path, device="cpu", smoke=True, cuda_graphs=cuda_graphs))

    without = experiment(False)
    without.write()
    assert "cuda_graphs" not in without.record["settings"]  # as in the results of before
    experiment(False)
    with refused("other settings"):
        experiment(True)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_models_are_started_with_graphs(tmp_path, monkeypatch, cuda_graphs):
    experiment = Experiment(MainSentenceOptions(out=tmp_path, device="cpu", smoke=True, cuda_graphs=cuda_graphs))
    started = []

    class Started:
        stdout = ()

        def __init__(self, command, **kwargs):
            started.append(Job(**json.loads(command[-1])))

        def wait(self):
            pass

    monkeypatch.setattr(subprocess, "Popen", Started)
    [group, *_] = experiment.groups()
    experiment.launch(group, group.members[0], ["pretraining"])
    assert [job.graphs for job in started] == [cuda_graphs]


def test_no_loss_waits_inside_autocast():
    model = one_model("MLM")
    model.autocast = lambda: torch.autocast("cpu", torch.bfloat16)
    classifier = model.classifier(model.network().encoder.state_dict(), "CoLA", 1)
    steps = (
        model.pretraining_steps(model.network()),
        model.fine_tuning_steps(classifier, model.data.tasks["CoLA"]["train"], TASKS["CoLA"], 1),
    )
    for losses in steps:
        assert next(losses).dtype is torch.float32
        assert not torch.is_autocast_enabled("cpu")


def test_data_are_read_as_they_were_written(tmp_path):
    data = smoke_data()
    save(tmp_path, data)
    loaded = load(tmp_path)
    assert (loaded.train == data.train).all()
    for row in (0, 5):
        for ours, theirs in zip(
            loaded.tasks["UPOS"]["dev"].text(row), data.tasks["UPOS"]["dev"].text(row), strict=True
        ):
            assert ours.tolist() == theirs.tolist()


@pytest.mark.slow  # trains three models, several times
def test_the_rehearsal_is_killed_and_resumed(tmp_path):
    out, path = tmp_path / "out", tmp_path / "out" / main_sentence.RESULTS
    command = [sys.executable, main_sentence.__file__, "--out", out, "--device", "cpu", "--smoke"]
    first = subprocess.Popen(command)
    wait_for(lambda: path.exists() and len(read_json(path)["rows"]) > 8)
    first.kill()
    first.wait()
    before = read_json(path)["rows"]
    subprocess.run(command, check=True, timeout=550)
    record = read_json(path)
    assert record["rows"][: len(before)] == before
    assert (record["errors"], record["starts"]) == ([], 2)
    names = {(row["arm"], row["name"]) for row in record["rows"]}
    assert names == {(arm, name) for arm in ("MLM", "MAE-LM") for name in (*PRIMARY, *SECONDARY)} | {
        ("reset", name) for name in PRIMARY
    }
    assert len(names) == len(record["rows"])
    report = tmp_path / "report.json"
    subprocess.run([sys.executable, analyse_main_sentence.__file__, path, "--out", report], check=True)
    assert read_json(report)["primary"]["pairs"] == 1


@pytest.mark.slow  # trains four models
def test_the_choice_of_rates_is_rehearsed(tmp_path):
    command = [
        sys.executable,
        main_sentence.__file__,
        "--out",
        tmp_path,
        "--device",
        "cpu",
        "--smoke",
        "--choose-rates",
    ]
    subprocess.run([*command, "--updates", "20"], check=True, timeout=550)
    record = read_json(tmp_path / main_sentence.RESULTS)
    assert len(record["rows"]) == 8
    assert {*record["rates"]} == {"MLM", "MAE-LM"}
    assert {*record["rates"].values()} <= {*main_sentence.TRIED_RATES}
