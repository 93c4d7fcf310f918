"""Weights that fine-tuning takes from a pretraining checkpoint, and checkpoints that it refuses."""

import logging

import pytest
import torch

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, RelativeBucketing, preset_config
from mae_lm_fairseq.models.finetuning import HEADS, check_origin
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.reading import read_checkpoint
from tests.support.comparisons import assert_equal
from tests.support.finetuning import HEAD, finetune, save_pretrained, set_up_finetuning, write_sentences
from tests.support.refusals import refused
from tests.support.training import batches, set_up
from tests.support.weights import encoder_of

pytestmark = pytest.mark.integration  # trains

ARCHITECTURES = ["mae_lm_tiny", "mae_lm_roberta_tiny", "mae_lm_3ml_self_tiny", "mae_lm_3ml_cross_tiny"]
ARCHITECTURES += ["mae_lm_mask_later_tiny"]


@pytest.fixture(scope="module")
def sentences(tmp_path_factory, data_bin):
    return write_sentences(tmp_path_factory.mktemp("sentences"), data_bin / "dict.txt")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, data_bin):
    """Save a randomly initialised pretraining checkpoint of each architecture."""
    directory = tmp_path_factory.mktemp("pretrained")
    return {arch: save_pretrained(directory / f"{arch}.pt", data_bin, arch) for arch in ARCHITECTURES}


def weights(path):
    return torch.load(path, weights_only=True)["model"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_encoder_weights_are_loaded_and_all_parameters_train(sentences, pretrained, arch, caplog):
    _, task, model, criterion = set_up_finetuning(sentences, arch=arch)
    with caplog.at_level(logging.INFO, "mae_lm_fairseq.models.finetuning"):
        model.load_state_dict(saved := weights(pretrained[arch]))
    loaded, new, left = (record.message for record in caplog.records[-3:])
    encoder = encoder_of(saved).keys()
    assert loaded.endswith(": " + ", ".join(sorted(encoder)))
    assert left.endswith(": " + ", ".join(sorted(saved.keys() - encoder)))
    of_head = [f"{layer}.{part}" for layer in ("dense", "out_proj") for part in ("bias", "weight")]
    assert new.endswith(", ".join(f"{HEADS}{HEAD}.{name}" for name in of_head))
    after = model.state_dict()
    assert set(after) == encoder | {name for name in after if name.startswith(HEADS)}
    assert all(torch.equal(after[name], saved[name]) for name in encoder)
    loss, *_ = criterion(model, batches(task)[0])
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_features_of_clean_text_are_those_of_pretraining(sentences, pretrained, data_bin):
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 9, 2, 1, 1]])
    for arch in ARCHITECTURES:
        before = set_up(data_bin, arch=arch).model
        before.load_state_dict(weights(pretrained[arch]))
        after = set_up_finetuning(sentences, arch=arch).model
        after.load_state_dict(weights(pretrained[arch]))
        assert torch.equal(before.eval()(tokens, features_only=True)[0], after.eval()(tokens, features_only=True)[0])


def test_heads_depend_on_the_seed_alone(sentences):
    """So that models with other decoders, or none, are fine-tuned from the same start."""
    heads = []
    for arch in ARCHITECTURES:
        model = set_up_finetuning(sentences, arch=arch).model
        heads.append({name: weight for name, weight in model.state_dict().items() if name.startswith(HEADS)})
    for other in heads[1:]:
        assert_equal(other, heads[0])

    drawn = f"{HEADS}{HEAD}.dense.weight"
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    model.register_classification_head(HEAD, 2)
    assert torch.equal(model.state_dict()[drawn], heads[0][drawn])
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    model.register_classification_head(HEAD, 2)
    assert not torch.equal(model.state_dict()[drawn], heads[0][drawn])


def test_head_equals_hugging_face(sentences):
    transformers = pytest.importorskip("transformers")
    from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

    model = set_up_finetuning(sentences, "--classifier-dropout 0.25", classes=3).model
    config = transformers.RobertaConfig(hidden_size=16, num_labels=3, classifier_dropout=0.25)
    theirs = RobertaClassificationHead(config).eval()
    theirs.load_state_dict(model.classification_heads[HEAD].state_dict())
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 9, 2, 1, 1]])
    features, _ = model.eval()(tokens, features_only=True)
    logits, _ = model(tokens, features_only=True, classification_head_name=HEAD)
    # The same products and sums in the same order.
    assert_equal(logits, theirs(features))
    assert model.classification_heads[HEAD].dropout.p == 0.25


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_only_the_last_layers_are_trained(sentences, layers):
    """The tiny encoder has two; embeddings and position bias are below both."""
    model = set_up_finetuning(sentences, "--trained-layers", layers, classes=3).model
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    frozen = model.state_dict().keys() - trained
    last = tuple(f"autoencoder.encoder.layers.{index}." for index in range(2 - layers, 2))
    assert trained == {name for name in model.state_dict() if name.startswith((*last, "classification_heads."))}
    assert "autoencoder.encoder.embed_tokens.weight" in frozen


def test_training_leaves_frozen_weights_as_they_are(sentences, pretrained, tmp_path):
    """Weight decay does not change them either."""
    start = ["--finetune-from-model", pretrained["mae_lm_tiny"], "--weight-decay 0.1"]
    before, after = (
        finetune(sentences, tmp_path / str(updates), *start, "--trained-layers 1 --max-update", updates)["model"]
        for updates in (1, 3)
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.split(".")[0] for name in changed} == {"autoencoder", "classification_heads"}
    assert all(name.startswith(("autoencoder.encoder.layers.1.", "classification_heads.")) for name in changed)


def test_classifier_dropout_is_the_encoders_unless_given(sentences):
    for arguments, wanted in (((), 0.1), (("--dropout 0.3",), 0.3), (("--classifier-dropout 0.0",), 0.0)):
        model = set_up_finetuning(sentences, *arguments).model
        assert model.classification_heads[HEAD].dropout.p == wanted


@pytest.mark.parametrize("name", ["autoencoder.encoder.relative_bias.weight", "autoencoder.encoder.layers.1.fc1.bias"])
def test_missing_and_unexpected_encoder_weights_are_named(sentences, pretrained, name):
    model = set_up_finetuning(sentences).model
    saved = weights(pretrained["mae_lm_tiny"])
    with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: "{name}"'):
        model.load_state_dict({key: value for key, value in saved.items() if key != name})
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "autoencoder\.encoder\.extra"'):
        model.load_state_dict(saved | {"autoencoder.encoder.extra": saved[name]})


def test_heads_of_another_shape_are_not_loaded(sentences, pretrained):
    mnli = set_up_finetuning(sentences, classes=3).model
    same = set_up_finetuning(sentences, classes=3).model
    rte = set_up_finetuning(sentences, classes=2).model
    fresh = {name: weight.clone() for name, weight in rte.state_dict().items() if name.startswith(HEADS)}
    for weight in mnli.parameters():
        torch.nn.init.normal_(weight)
    for model in (same, rte):
        model.load_state_dict(mnli.state_dict())
    assert_equal(mnli.state_dict(), same.state_dict())
    assert_equal(fresh, {name: rte.state_dict()[name] for name in fresh})


START = {
    "finetune-from": lambda path: ["--finetune-from-model", path],
    "restore": lambda path: ["--restore-file", path, "--reset-optimizer", "--reset-dataloader", "--reset-meters"],
}


@pytest.mark.parametrize("start", START)
def test_training_starts_from_a_pretraining_checkpoint(sentences, pretrained, tmp_path, start):
    begin = START[start](pretrained["mae_lm_tiny"])
    after = finetune(sentences, tmp_path, *begin, "--lr 0 --max-update 2")
    saved = weights(pretrained["mae_lm_tiny"])
    encoder = {name: weight for name, weight in after["model"].items() if not name.startswith(HEADS)}
    assert encoder
    assert_equal(encoder, {name: saved[name] for name in encoder})
    assert after["task_state"]["dictionary"] == torch.load(pretrained["mae_lm_tiny"])["task_state"]["dictionary"]


METRICS = {"mcc": ["--report-mcc"], "pearson": ["--report-pearson-and-spearman", "--regression-target"]}


@pytest.mark.parametrize("metric", METRICS)
def test_an_interrupted_run_resumes_with_any_best_checkpoint_metric(data_bin, pretrained, tmp_path, metric):
    classes = 1 if "--regression-target" in METRICS[metric] else 2
    data = write_sentences(tmp_path / "data", data_bin / "dict.txt", classes)
    options = ["--finetune-from-model", pretrained["mae_lm_tiny"], *METRICS[metric], "--best-checkpoint-metric", metric]
    options += ["--maximize-best-checkpoint-metric --save-interval-updates 3 --layer-lr-decay 0.5"]
    straight = finetune(data, tmp_path / "straight", *options, "--max-update 6", classes=classes)
    finetune(data, tmp_path / "broken", *options, "--max-update 3", classes=classes)
    resumed = finetune(data, tmp_path / "broken", *options, "--max-update 6", classes=classes)
    assert resumed["extra_state"]["best"] == straight["extra_state"]["best"]
    assert_equal(straight["model"], resumed["model"])


def test_another_dictionary_is_refused(sentences, pretrained, data_bin, tmp_path):
    words = (data_bin / "dict.txt").read_text(encoding="utf-8").splitlines()
    other = tmp_path / "dict.txt"
    other.write_text("\n".join([*words[1:], words[0], ""]), encoding="utf-8")
    data = write_sentences(tmp_path / "data", other)
    begin = ["--finetune-from-model", pretrained["mae_lm_tiny"], "--max-update 1"]
    with refused("trained with another dictionary"):
        finetune(data, tmp_path / "save", *begin)
    assert not list((tmp_path / "save").glob("*.pt"))
    finetune(sentences, tmp_path / "right", *begin)
    begin = ["--finetune-from-model", tmp_path / "right/checkpoint_last.pt", "--max-update 1"]
    with refused("trained with another dictionary"):
        finetune(data, tmp_path / "save", *begin)


OTHER_NETWORKS = {
    "--encoder-attention-heads is 4": ["--encoder-attention-heads 2"],
    "--relative-max-distance is 128": ["--relative-max-distance 64"],
    "does not fit this model: Missing key": ["--encoder-layers 3"],
}


def test_a_bundle_is_a_starting_point_like_its_checkpoint(sentences, pretrained, data_bin, tmp_path):
    write_bundle(read_checkpoint(pretrained["mae_lm_tiny"], data_bin), tmp_path / "bundle")
    starts = {"checkpoint": pretrained["mae_lm_tiny"], "directory": tmp_path / "bundle"}
    expected, weights = (
        finetune(sentences, tmp_path / name, "--finetune-from-model", start, "--max-update 2")["model"]
        for name, start in starts.items()
    )
    assert_equal(weights, expected)
    with refused(r"data-bin/model\.safetensors"):
        finetune(sentences, tmp_path / "neither", "--finetune-from-model", data_bin, "--max-update 2")


@pytest.mark.parametrize("message", OTHER_NETWORKS)
def test_another_network_is_refused(sentences, pretrained, tmp_path, message):
    begin = ["--finetune-from-model", pretrained["mae_lm_tiny"], "--max-update 1"]
    with pytest.raises(Exception, match=message):
        finetune(sentences, tmp_path, *begin, *OTHER_NETWORKS[message])


@pytest.mark.parametrize("option", ["untie-output-weights", "decoder-share-positions"])
def test_weights_that_differ_are_not_loaded_into_a_network_that_ties_them(data_bin, option):
    models = [set_up(data_bin, *options).model for options in ([], [f"--{option}"])]
    ties, separate = models if option == "untie-output-weights" else reversed(models)
    with refused(rf"a\.pt: .*--{option}"):
        ties.check_checkpoint("a.pt", {"model": separate.state_dict()})
    separate.check_checkpoint("a.pt", {"model": ties.state_dict()})


BASE = vars(MaskedAutoencoderConfig())
MASK_LATER = vars(preset_config("mae_lm_mask_later", "base"))


def origin(saved, config, **kind):
    check_origin("a.pt", {"cfg": {"model": saved}}, config, "fingerprint", **kind)


@pytest.mark.parametrize(
    ("option", "value", "text", "decodes"),
    [
        ("relative_bucketing", RelativeBucketing.symmetric, "symmetric", False),
        ("decoder_attention", "cross", "cross", True),
        ("reset_mask_states", True, "True", True),
        ("renumber_visible", True, "True", True),
    ],
)
def test_weights_of_another_meaning_are_refused(option, value, text, decodes):
    """Also those of checkpoints that are older than the option, and have its default."""
    default = getattr(BASE[option], "value", BASE[option])
    older = {name: saved for name, saved in BASE.items() if name != option}
    message = f"--{option.replace('_', '-')} is {default} in the checkpoint and {text} here"
    for saved in (BASE, older):
        origin(saved, BASE, decodes=decodes)
        with refused(message):
            origin(saved, BASE | {option: value}, decodes=decodes)
    origin(BASE | {option: text if value is not True else value}, BASE | {option: value}, decodes=decodes)
    if decodes:
        origin(BASE, BASE | {option: value}, decodes=False)


def test_a_decoder_of_other_heads_is_refused():
    """The number of its attention heads is the encoder's by default."""
    heads = BASE["encoder_attention_heads"]
    origin(BASE, BASE | {"decoder_attention_heads": heads}, decodes=True)
    origin(BASE, BASE | {"decoder_attention_heads": 2}, decodes=False)
    with refused(f"--decoder-attention-heads is {heads} in the checkpoint and 2 here"):
        origin(BASE, BASE | {"decoder_attention_heads": 2}, decodes=True)


def test_bucketing_has_no_meaning_without_a_bias():
    other = {"relative_max_distance": 64, "relative_bucketing": RelativeBucketing.symmetric}
    origin(BASE | {"relative_buckets": 0}, BASE | other | {"relative_buckets": 0}, decodes=True)
    of_decoder = {"relative_buckets": 0, "decoder_relative_buckets": 32}
    with refused("--relative-max-distance"):
        origin(BASE | of_decoder, BASE | other | of_decoder, decodes=True)


@pytest.mark.parametrize("change", [{"mask_join": "embeddings"}, {"mask_join_layer": 3}])
def test_another_objective_is_refused_when_a_run_resumes(change):
    """A new run may start from the weights of another objective."""
    origin(MASK_LATER | change, MASK_LATER, decodes=False)
    with refused("--mask-join"):
        origin(MASK_LATER | change, MASK_LATER, decodes=False, resumes=True)


@pytest.mark.parametrize("words", [["--trained-layers 3"], ["--compile"]])
def test_options_that_fine_tuning_cannot_have_are_refused(sentences, words):
    with refused(words[0]):
        set_up_finetuning(sentences, *words, classes=3)


def test_layer_lr_decay_without_layers_is_refused(data_bin):
    from fairseq import optim

    cfg = set_up(data_bin, "--optimizer fused_adamw --layer-lr-decay 0.5").cfg
    with refused(r"--layer-lr-decay 0\.5"):
        optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(2))])
