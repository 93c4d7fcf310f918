"""The model in fairseq's registries: architectures, options, outputs."""

import logging
import re
import sys
import types
from unittest.mock import Mock

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.initialize import add_defaults
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from mae_lm_fairseq.core import attention_backends
from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.config import PRESETS, MaskJoin, plain_values
from mae_lm_fairseq.models import backend as backend_module
from mae_lm_fairseq.models.architectures import architecture_values, core_config
from mae_lm_fairseq.models.mae_lm import MAELMModel
from tests.support.comparisons import assert_close, assert_equal
from tests.support.refusals import refused
from tests.support.training import batches, parse, set_up

BF16 = ["--autocast bf16"]
NAN = float("nan")
TINY = [f"{preset}_tiny" for preset in PRESETS]
ARCHITECTURES = ["mae_lm", "mae_lm_small", "mae_lm_roberta_large", *TINY]


def command_line(arch, *arguments):
    return parse("data", "--task masked_autoencoder_lm --arch", arch, *arguments).model


def hydra(arch, **values):
    """Return the model's configuration that fairseq-hydra-train derives from a YAML file with this architecture."""
    cfg = OmegaConf.create({"model": {"_name": arch, **values}})
    add_defaults(cfg)
    return cfg.model


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_architecture_is_the_same_from_the_command_line_and_from_hydra(arch):
    assert ARCH_MODEL_REGISTRY[arch] is MAELMModel
    config = core_config(command_line(arch))
    assert config == core_config(hydra(arch))
    assert plain_values(config) == architecture_values(arch)
    assert saved_values(command_line(arch)).items() >= architecture_values(arch).items()


def test_mae_lm_is_base():
    assert architecture_values("mae_lm") == architecture_values("mae_lm_base")


def saved_values(model):
    """Return the values of a model's configuration in a checkpoint."""
    return OmegaConf.to_container(OmegaConf.create({"model": model}), enum_to_str=True)["model"]


NO_DECODER = ["--decoder-layers 0 --decoder-relative-buckets 0"]
OPTIONS = {
    "mask-join": "embeddings",
    "mask-join-layer": 1,
    "encoder-layers": 3,
    "encoder-embed-dim": 32,
    "encoder-ffn-embed-dim": 48,
    "encoder-attention-heads": 2,
    "decoder-layers": 1,
    "decoder-attention": "cross",
    "decoder-embed-dim": 32,
    "decoder-ffn-embed-dim": 48,
    "decoder-attention-heads": 2,
    "decoder-share-positions": True,
    "mask-states": 2,
    "reset-mask-states": True,
    "renumber-visible": True,
    "max-positions": 80,
    "relative-buckets": 0,
    "relative-max-distance": 64,
    "relative-bucketing": "symmetric",
    "decoder-relative-buckets": 0,
    "relative-bias-init": "normal",
    "dropout": 0.3,
    "attention-dropout": 0.3,
    "decoder-dropout": 0.3,
    "init-std": 0.1,
    "layer-norm-eps": 0.01,
    "pre-norm": True,
    "untie-output-weights": True,
}
"""Values that differ from those of mae_lm_tiny."""
BESIDE = {
    "mask-join": NO_DECODER,
    "mask-join-layer": ["--arch mae_lm_mask_later_tiny --encoder-layers 3 --mask-join-layer 2"],
    "reset-mask-states": ["--mask-in-encoder 0.5"],
}
"""Further options, where the one alone is not allowed or has no effect."""


def test_the_list_above_is_complete():
    """But for ``wrapped``, with which tests/wrapped trains."""
    assert {name.replace("-", "_") for name in OPTIONS} == set(architecture_values("mae_lm")) - {"wrapped"}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_changes_the_output_and_is_saved(data_bin, option):
    value, others = OPTIONS[option], BESIDE.get(option, [])
    # A network with another --mask-join has no decoder, so it is compared with MAE-LM itself.
    _, task, model, _ = set_up(data_bin, *([] if option == "mask-join" else others))
    words = [f"--{option}"] if value is True else [f"--{option}", value]
    cfg, _, changed, _ = set_up(data_bin, *others, *words)
    assert getattr(changed.autoencoder.config, option.replace("-", "_")) == value
    assert core_config(OmegaConf.create(saved_values(cfg.model))) == changed.autoencoder.config
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (model, changed)]
    if shapes[0] == shapes[1]:
        assert not torch.allclose(*(outputs(m, task.mask_idx) for m in (model, changed)), atol=1e-6)


def outputs(model, mask):
    """Return the predictions for two masked positions, far enough apart for --relative-max-distance to matter."""
    tokens = torch.randint(4, 100, (2, 64), generator=torch.Generator().manual_seed(0))
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[:, 1] = masked[:, 40] = True
    early = masked.clone()
    early[:, 40] = False
    torch.manual_seed(0)
    return model.train()(tokens.masked_fill(masked, mask), masked_tokens=masked, early_masks=early)[0]


def test_members_are_named_like_their_values():
    """Hydra identifies a member by its name, the command line by its value."""
    assert [member.name for member in MaskJoin] == [member.value for member in MaskJoin]
    for member in MaskJoin:
        values = {"mask_join": member.name}
        if member is not MaskJoin.decoder:
            values |= {"decoder_layers": 0, "decoder_relative_buckets": 0}
        assert core_config(hydra("mae_lm_tiny", **values)).mask_join is member


def test_hydra_takes_flags_and_unset_numbers():
    config = core_config(hydra("mae_lm_tiny", decoder_share_positions=True, decoder_ffn_embed_dim=64))
    assert config.decoder_share_positions is True
    assert config.renumber_visible is False
    assert (config.decoder_embed_dim, config.decoder_ffn_embed_dim) == (None, 64)


# Parameter names in checkpoints from when only these two presets existed.
MODULES = ("attention.qkv_proj", "attention.out_proj", "attention_layer_norm", "fc1", "fc2", "final_layer_norm")
LAYER = [f"{module}.{part}" for module in MODULES for part in ("weight", "bias")]
STACK = ["embed_positions.weight", "embed_layer_norm.weight", "embed_layer_norm.bias", "relative_bias.weight"]
STACK += [f"layers.{layer}.{name}" for layer in (0, 1) for name in LAYER]
HEAD = ["weight", "bias", "dense.weight", "dense.bias", "layer_norm.weight", "layer_norm.bias"]


@pytest.mark.parametrize(
    ("arch", "stacks"), [("mae_lm_tiny", ("encoder", "decoder")), ("mae_lm_roberta_tiny", ("encoder",))]
)
def test_parameter_names_in_checkpoints_are_stable(data_bin, arch, stacks):
    model = set_up(data_bin, arch=arch).model
    names = {f"autoencoder.{stack}.{name}" for stack in stacks for name in STACK}
    names |= {"autoencoder.encoder.embed_tokens.weight", *(f"autoencoder.lm_head.{name}" for name in HEAD)}
    assert set(model.state_dict()) == names


def test_mask_join_makes_a_roberta(data_bin):
    changes = ["--mask-join embeddings --decoder-layers 0 --decoder-relative-buckets 0"]
    by_options = set_up(data_bin, *changes).model
    by_preset = set_up(data_bin, arch="mae_lm_roberta_tiny").model
    assert by_options.autoencoder.config == by_preset.autoencoder.config


REFUSED = {
    "--encoder-embed-dim 16": ["--encoder-attention-heads 3"],
    "--relative-max-distance 64": ["--relative-max-distance 64 --decoder-relative-buckets 0 --relative-buckets 0"],
    "--classifier-dropout 0.1": ["--classifier-dropout 0.1"],
    "--trained-layers 1": ["--trained-layers 1"],
    "--attention-backend sdpa": ["--compile --attention-backend sdpa"],
}


@pytest.mark.parametrize("named", REFUSED)
def test_options_that_contradict_or_have_no_effect_are_refused(data_bin, named):
    with refused(named):
        set_up(data_bin, *REFUSED[named])


@pytest.fixture(params=TINY)
def trained_on(request, data_bin):
    _, task, model, criterion = set_up(data_bin, arch=request.param)
    return task, model.eval(), criterion, batches(task)[0]


def test_shapes_with_and_without_masked_tokens(trained_on):
    task, model, _, batch = trained_on
    tokens, masked = batch["net_input"]["src_tokens"], batch["target"].ne(task.dictionary.pad())
    at_masks, _ = model(tokens, masked_tokens=masked)
    everywhere, extra = model(tokens)
    assert at_masks.shape == (int(masked.sum()), len(task.dictionary))
    assert everywhere.shape == (*tokens.shape, len(task.dictionary))
    assert_close(everywhere[masked], at_masks, 1e-5)
    assert "inner_states" not in extra
    probabilities = model.get_normalized_probs((at_masks, {}), log_probs=False)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(len(at_masks)))
    assert torch.equal(model.get_normalized_probs((at_masks, {}), log_probs=True).argmax(-1), at_masks.argmax(-1))


def test_padding_positions_may_be_requested(trained_on):
    """On a GPU, fairseq's masked_lm asks for every position if a batch has no masked token."""
    task, model, _, batch = trained_on
    tokens = batch["net_input"]["src_tokens"]
    everywhere = model(tokens, masked_tokens=torch.ones_like(tokens, dtype=torch.bool))[0]
    assert torch.equal(everywhere, model(tokens)[0].flatten(0, 1))
    assert not everywhere[tokens.flatten().eq(task.dictionary.pad())].any()


def test_two_threads_compute_the_same_every_time(data_bin):
    """Resuming bit for bit rests on it. One thread rounds some sums differently, so these networks use both."""
    options = ["--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 128 --dropout 0.1"]
    _, task, model, criterion = set_up(data_bin, *options)
    batch = batches(task, batch_size=16)[0]

    def gradients(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        model.zero_grad()
        criterion(model, batch)[0].backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    try:
        first, again = gradients(2), gradients(2)
    finally:
        of_one_thread = gradients(1)
    assert_equal(first, again)
    assert not all(torch.equal(first[name], of_one_thread[name]) for name in first)


def test_a_dictionary_without_mask_is_refused(data_bin):
    cfg, task, _, _ = set_up(data_bin)
    task.dictionary = Dictionary.load(str(data_bin / "dict.txt"))
    with refused("<mask>"):
        task.build_model(cfg.model)


def test_autocast_of_the_caller_is_kept(trained_on):
    _, model, _, batch = trained_on
    with torch.autocast("cpu", torch.bfloat16):
        assert model(batch["net_input"]["src_tokens"])[0].dtype is torch.bfloat16


@pytest.fixture
def settings_of_cuda():
    """Restore how torch multiplies matrices and attends on a GPU."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "highest"), ("cuda", "high")])
def test_training_on_a_gpu_uses_tf32_and_no_cudnn_attention(data_bin, settings_of_cuda, recwarn, device, precision):
    set_up(data_bin).model.begin_training(torch.device(device))
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cuda.cudnn_sdp_enabled() == (device == "cpu")
    assert not [warning for warning in recwarn if "TF32" in str(warning.message)]


def test_features_of_clean_text(trained_on):
    task, model, _, batch = trained_on
    pad = task.dictionary.pad()
    tokens = torch.where(batch["target"].ne(pad), batch["target"], batch["net_input"]["src_tokens"])
    features, extra = model.extract_features(tokens, return_all_hiddens=True)
    assert features.shape == (*tokens.shape, 16)
    assert len(extra["inner_states"]) == 3
    assert torch.equal(extra["inner_states"][-1], features)
    assert not features[tokens.eq(pad)].any()
    assert features[tokens.ne(pad)].any(-1).all()
    assert torch.equal(model(tokens, features_only=True)[0], features)


def test_mae_lm_has_no_features_at_masks(data_bin):
    for arch in TINY:
        _, task, model, _ = set_up(data_bin, arch=arch)
        features, _ = model.extract_features(torch.tensor([[0, 5, task.mask_idx, 6, 2]]))
        in_encoder = ("mae_lm_roberta_tiny", "mae_lm_mask_later_tiny", "mae_lm_exlm_tiny")
        assert bool(features[0, 2].any()) is (arch in in_encoder)


def test_inner_states_have_no_masks_below_the_join(data_bin):
    _, task, model, _ = set_up(data_bin, "--encoder-layers 3 --mask-join-layer 2", arch="mae_lm_mask_later_tiny")
    tokens = torch.tensor([[0, 5, task.mask_idx, 6, 2]])
    _, extra = model.eval()(tokens, return_all_hiddens=True)
    assert [bool(state[0, 2].any()) for state in extra["inner_states"]] == [False, False, False, True]
    assert all(state[0, 1].any() for state in extra["inner_states"])
    assert extra["encoder_tokens"] == pytest.approx((4 + 4 + 5) / 3)


def with_batch(data_bin, *options, **arch):
    """Return model, criterion and a batch."""
    _, task, model, criterion = set_up(data_bin, *options, **arch)
    return model, criterion, batches(task)[0]


PRECISIONS = [
    "mae_lm_roberta_tiny",
    "mae_lm_3ml_cross_tiny",
    "mae_lm_exlm_decoder_tiny",
    "mae_lm_tiny --decoder-embed-dim 32",
]


@pytest.mark.parametrize("options", PRECISIONS)
def test_autocast_computes_in_bfloat16_and_keeps_float32_weights(data_bin, options):
    arch, *options = options.split()
    fast = set_up(data_bin, *options, *BF16, arch=arch).model
    exact, criterion, batch = with_batch(data_bin, *options, arch=arch)
    assert fast(batch["net_input"]["src_tokens"])[0].dtype is torch.bfloat16
    losses = [criterion(model.eval(), batch)[0] for model in (exact, fast)]
    assert losses[0] != losses[1]
    # bfloat16 has 8 bits of mantissa; the loss averages thousands of roundings.
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=2e-3)
    losses[1].backward()
    assert all(p.dtype is p.grad.dtype is torch.float32 for p in fast.parameters())


def test_checkpoint_activations_reaches_the_network(data_bin):
    for arguments, wanted in (((), False), (("--checkpoint-activations",), True)):
        cfg, _, model, _ = set_up(data_bin, *arguments)
        assert cfg.model.checkpoint_activations is wanted
        assert {stack.checkpoint_activations for stack in model.autoencoder.stacks()} == {wanted}


@pytest.mark.parametrize("options", PRECISIONS)
def test_half_precision_weights(data_bin, options):
    """--bf16 converts the whole model to bfloat16; only position bias, softmax and loss are computed in float32."""
    arch, *options = options.split()
    model, criterion, batch = with_batch(data_bin, *options, arch=arch)
    exact = criterion(model.eval(), batch)[0]
    loss, _, _ = criterion(model.to(torch.bfloat16), batch)
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_the_attention_backend_is_chosen_once_and_logged(data_bin, caplog):
    _, task, model, criterion = set_up(data_bin)
    by_hand = set_up(data_bin, "--attention-backend sdpa").model
    with caplog.at_level(logging.INFO, logger="mae_lm_fairseq"):
        for batch in batches(task)[:2]:
            criterion(model, batch)
            criterion(by_hand, batch)
    (line,) = [record.getMessage() for record in caplog.records if "attention backend" in record.getMessage()]
    assert line == "attention backend on cpu: eager"
    assert (backends(model), backends(by_hand)) == ({AttentionBackend.eager}, {AttentionBackend.sdpa})


def test_the_fused_kernel_needs_a_gpu_and_triton(data_bin, monkeypatch):
    model = set_up(data_bin, "--attention-backend fused").model
    monkeypatch.setitem(sys.modules, KERNELS, None)
    for capability, hip, needed in ((7, None, "an NVIDIA GPU"), (8, "6.4", "an NVIDIA GPU"), (8, None, "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", Mock(return_value=(capability, 0)))
        monkeypatch.setattr(torch.version, "hip", hip)
        with refused(f"--attention-backend fused needs {needed}"):
            model.train().begin_training(torch.device("cuda"))


KERNELS, KERNEL_OF_LOSS = (f"mae_lm_fairseq.core.kernels.fused_{part}" for part in ("attention", "loss"))


@pytest.fixture
def compared(monkeypatch, settings_of_cuda):
    """Simulate a GPU with triton; return a function that sets the difference of its kernel, and what was compared."""
    calls = []
    monkeypatch.setitem(sys.modules, KERNELS, types.ModuleType(KERNELS))  # it needs triton, as does the next
    monkeypatch.setitem(sys.modules, KERNEL_OF_LOSS, types.SimpleNamespace(cross_entropy_="kernel of the loss"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def pretend(difference):
        def difference_from_eager(stack, dtype):
            calls.append((stack, dtype))
            if difference is None:
                raise RuntimeError("Failed to find C compiler\nmore")
            return difference

        monkeypatch.setattr(backend_module, "difference_from_eager", difference_from_eager)
        monkeypatch.setattr(backend_module, "difference_of_loss", lambda kernel, head, dtype: 0.0)
        return calls

    return pretend


def backends(model):
    return {stack.attention_backend for stack in model.autoencoder.stacks()}


@pytest.mark.parametrize(
    ("options", "dtype"),
    [(["--attention-backend fused"], torch.float32), (BF16, torch.bfloat16)],
    ids=["fused", "auto"],
)
def test_training_compares_the_fused_kernel_first(data_bin, compared, caplog, options, dtype):
    model = set_up(data_bin, *options).model
    calls = compared(0.001)
    with caplog.at_level(logging.INFO, logger="mae_lm_fairseq"):
        model.begin_training(torch.device("cuda"))
    assert calls == [(stack, dtype) for stack in model.autoencoder.stacks()]
    assert "equals PyTorch's operators within 0.10 %" in caplog.text
    assert backends(model) == {AttentionBackend.fused}
    assert model.autoencoder.lm_head.loss_kernel == "kernel of the loss"
    model.eval().resolve_backend(torch.device("cuda"))
    assert backends(model) == {AttentionBackend.sdpa}


@pytest.mark.parametrize(
    ("difference", "problem"),
    [(0.2, "differs .* by 20.0%"), (NAN, "differs .* by nan%"), (None, "fails .* C compiler")],
)
def test_a_fused_kernel_that_does_not_work_here(data_bin, compared, caplog, difference, problem):
    compared(difference)
    model = set_up(data_bin, "--attention-backend fused").model
    with refused(f"--attention-backend fused {problem}"):
        model.begin_training(torch.device("cuda"))
    model = set_up(data_bin, *BF16).model
    with caplog.at_level(logging.WARNING, logger="mae_lm_fairseq"):
        model.begin_training(torch.device("cuda"))
    assert re.search(f"attention backend: sdpa, because fused {problem}", caplog.text)
    for training in (False, True):
        model.train(training).resolve_backend(torch.device("cuda"))
        assert backends(model) == {AttentionBackend.sdpa}


NOT_WORKING = {
    "attention of the decoder": ({"difference_from_eager": [0.001, NAN]}, "sdpa, because fused differs", "sdpa"),
    "loss": ({"difference_of_loss": [NAN]}, "the loss is computed without its kernel", "fused"),
    "triton": ({}, "sdpa, because fused needs triton", "sdpa"),
}


@pytest.mark.parametrize("what", NOT_WORKING)
def test_training_does_without_a_kernel_that_does_not_work(data_bin, compared, caplog, monkeypatch, what):
    differences, message, backend = NOT_WORKING[what]
    compared(0.001)
    for name, values in differences.items():
        monkeypatch.setattr(backend_module, name, Mock(side_effect=values))
    if what == "triton":
        monkeypatch.setitem(sys.modules, KERNELS, None)
    model = set_up(data_bin, *BF16).model
    model.begin_training(torch.device("cuda"))
    assert message in caplog.text
    assert backends(model) == {AttentionBackend(backend)}
    assert model.autoencoder.lm_head.loss_kernel is None


def test_auto_has_no_fused_kernel_where_it_was_not_measured(data_bin, monkeypatch, settings_of_cuda):
    monkeypatch.setattr(attention_backends, "problem_of_fused", lambda device: None)
    model = set_up(data_bin).model
    model.begin_training(torch.device("cuda"))
    assert backends(model) == {AttentionBackend.sdpa}


def test_auto_has_no_fused_kernel_in_training_by_other_programs(data_bin, compared):
    """Nothing has compared it there."""
    calls = compared(0.001)
    model = set_up(data_bin, *BF16).model
    model.train().resolve_backend(torch.device("cuda"))
    assert (backends(model), calls) == ({AttentionBackend.sdpa}, [])
    model.begin_training(torch.device("cuda"))
    assert backends(model) == {AttentionBackend.fused}


class TestMode:
    def test_training_is_set_once_and_then_only_checked(self, data_bin, monkeypatch):
        model = set_up(data_bin).model
        model.eval().train()
        assert all(module.training for module in model.modules())
        monkeypatch.setattr(torch.nn.Module, "train", None)
        assert model.train() is model

    def test_a_part_in_evaluation_returns_to_training(self, data_bin):
        model = set_up(data_bin).model
        model.train()
        model.autoencoder.encoder.layers[0].eval()
        model.train()
        assert all(module.training for module in model.modules())

    def test_a_new_head_is_set_to_evaluation(self, data_bin):
        model = set_up(data_bin).model
        model.train().eval()
        model.register_classification_head("new", 2)
        model.eval()
        assert not any(module.training for module in model.modules())

    @pytest.mark.parametrize("mode", [True, False])
    def test_modules_that_count_updates_are_told(self, data_bin, mode):
        model = set_up(data_bin).model
        counter = torch.nn.Identity()
        counter.set_num_updates = Mock()
        model.autoencoder.counter = counter
        model.train(mode)
        model.set_num_updates(3)
        counter.set_num_updates.assert_called_once_with(3)
