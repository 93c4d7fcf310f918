"""The trainer's work on the host in every update: faster than in fairseq, with the same results."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, MissingMandatoryValue
from torch import nn

import mae_lm_fairseq
from mae_lm_fairseq.fairseq_patches import updates
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.optim.fused_adamw import FusedAdamW
from tests.support.comparisons import assert_equal
from tests.support.training import RECIPE, batches, parse, set_up

mae_lm_fairseq.register()

UPDATES = 20
UNPATCHED = [
    (DictConfig, "__getattr__", DictConfig.__getattr__.__wrapped__),
    (Trainer, "_set_seed", Trainer._set_seed.__wrapped__),
    (Trainer, "_reduce_and_log_stats", Trainer._reduce_and_log_stats.__wrapped__),
    (MAELMModel, "train", nn.Module.train),
    (MAELMModel, "set_num_updates", BaseFairseqModel.set_num_updates),
    (FusedAdamW, "multiply_grads", FairseqOptimizer.multiply_grads),
]
TIMES = {"wall", "train_wall", "ups", "wps", "tflops"}
"""Logged values that depend on how long an update takes."""
read_options_at_once = updates.read_options_at_once.__wrapped__
seed_generators_in_use = updates.seed_generators_in_use.__wrapped__
log_from_the_host = updates.log_from_the_host.__wrapped__


@pytest.fixture
def fairseqs_own(monkeypatch):
    """Return a function that puts back what the patches replace."""

    def put_back():
        for owner, name, original in UNPATCHED:
            monkeypatch.setattr(owner, name, original)

    return put_back


def train(data_bin, *options, arch="mae_lm_tiny", update_freq=1):
    """Return the logged numbers of every update, and at the end weights, averages, moments and a random number."""
    metrics.reset()
    cfg, task, model, criterion = set_up(data_bin, "--dropout 0.1", *options, arch=arch)
    trainer = Trainer(cfg, task, model, criterion)
    trainer.begin_epoch(1)
    texts, logged = batches(task), []
    for update in range(UPDATES):
        first = update * update_freq
        chosen = [texts[number % len(texts)] for number in range(first, first + update_freq)]
        with metrics.aggregate("train_inner"):
            logged.append(trainer.train_step(chosen))
        if update == UPDATES // 2:
            trainer.valid_step(batches(task, "valid")[0])
        averages = metrics.get_smoothed_values("train_inner")
        logged.append({name: value for name, value in averages.items() if name not in TIMES})
    trainer.consolidate_optimizer()
    state = trainer.state_dict()
    ema = state["extra_state"].get("ema", {})
    return logged, state["model"], ema, state["last_optimizer_state"]["state"], torch.rand(1)


@pytest.mark.parametrize(
    ("arch", "options", "update_freq"),
    [
        ("mae_lm_tiny", ["--optimizer fused_adamw --weight-decay 0.1 --store-ema"], 1),
        ("mae_lm_tiny", ["--optimizer fused_adamw --freeze-encoder-updates 7 --layer-lr-decay 0.8"], 2),
        ("mae_lm_tiny", ["--optimizer adam"], 2),
        ("roberta", ["--criterion masked_lm"], 2),
    ],
    ids=["moving averages", "frozen encoder, decay by layer", "adam", "fairseq's RoBERTa"],
)
def test_trains_bit_by_bit_as_before(data_bin, fairseqs_own, arch, options, update_freq):
    """Random numbers included. A frozen encoder joins after seven updates."""
    patched = train(data_bin, *options, arch=arch, update_freq=update_freq)
    fairseqs_own()
    unpatched = train(data_bin, *options, arch=arch, update_freq=update_freq)
    losses = {logged["loss"] for logged in patched[0]}
    assert len(losses) > UPDATES
    assert_equal(patched, unpatched)


class TestOptions:
    def test_every_option_is_read_as_by_omegaconf(self):
        original = DictConfig.__getattr__.__wrapped__
        cfg = parse("data-bin", *RECIPE, "--arch mae_lm_tiny")
        names = 0
        for group in cfg.values():
            if not isinstance(group, DictConfig):  # not every option is in a dataclass
                continue
            for name in group:
                value, expected = getattr(group, name), original(group, name)
                assert type(value) is type(expected)
                assert value == expected
                names += 1
        assert names > 300

    def test_a_plain_value_takes_no_detour(self):
        cfg = OmegaConf.create({"common": {"seed": 1, "name": "plain", "none": None, "flag": False}})
        assert read_options_at_once(None, cfg, "common") is cfg["common"]
        for name, value in cfg["common"].items():
            assert read_options_at_once(None, cfg["common"], name) == value

    def test_a_changed_option_is_seen(self):
        cfg = OmegaConf.create({"common": {"seed": 1}})
        assert cfg.common.seed == 1
        cfg.common.seed = 2
        assert cfg.common.seed == 2
        cfg.common = None
        assert cfg.common is None

    def test_other_values_are_left_to_omegaconf(self):
        cfg = OmegaConf.create({"seed": 1, "same": "${seed}", "part": "seed${seed}", "missing": "???", "group": "${a}"})
        OmegaConf.set_struct(cfg, True)
        assert (cfg.same, cfg.part) == (1, "seed1")
        with pytest.raises(MissingMandatoryValue):
            _ = cfg.missing
        with pytest.raises(ConfigAttributeError):
            _ = cfg.unknown
        assert not hasattr(cfg, "unknown")


def trainer_to_seed(cuda=False):
    cfg = OmegaConf.create({"common": {"seed": 5}})
    return SimpleNamespace(cfg=cfg, get_num_updates=lambda: 3, tpu=False, cuda=cuda)


def test_seeds_as_torch_does_without_other_devices(monkeypatch):
    torch.manual_seed(8)
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "manual_seed", None)
    seed_generators_in_use(None, trainer_to_seed())
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("cuda", [True, False])
def test_seeds_gpus_that_train(monkeypatch, cuda):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    seed_generators_in_use(None, trainer_to_seed(cuda))
    assert seeds == ([8] if cuda else [])


def test_numbers_to_log_come_by_one_copy_per_type(monkeypatch):
    """A CPU's tensors stand for a GPU's. Of each type one copy; other values, and tensors of several numbers, stay."""
    copied = []
    to_cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: copied.append(tensor.dtype) or to_cpu(tensor))
    several = torch.arange(3)
    logs = [
        {"loss": torch.tensor(0.1), "correct": torch.tensor(2**40 + 1), "ntokens": 5},
        {"loss": torch.tensor(0.3), "correct": torch.tensor(7), "ids": several},
    ]
    norm = torch.tensor(1e-20)
    on_host = log_from_the_host(lambda trainer, *numbers: numbers, SimpleNamespace(cuda=True), logs, 12.0, norm)
    assert_equal(on_host, (logs, 12.0, norm))
    assert on_host[0][1]["ids"] is several
    assert copied == [torch.float32, torch.int64]


def test_numbers_on_a_cpu_are_logged_as_they_are():
    logs = [{"loss": torch.tensor(0.1)}]
    [same] = log_from_the_host(lambda trainer, *numbers: numbers, SimpleNamespace(cuda=False), logs)
    assert same is logs
