import pytest
import torch

from tests.support.answering import set_up_answering, write_squad, write_tokenizer
from tests.support.finetuning import save_pretrained
from tests.support.training import batches, set_up


@pytest.fixture(scope="module")
def data_bin(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("answering") / "data-bin")


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
    return write_squad(tmp_path_factory.mktemp("answering") / "squad.json", version_2=True)


@pytest.mark.parametrize("arch", ["mae_lm_tiny", "mae_lm_roberta_tiny", "mae_lm_3ml_cross_tiny"])
def test_pretrained_encoder_weights_are_loaded_and_trained(data_bin, squad, tmp_path, arch):
    saved = torch.load(save_pretrained(tmp_path / "pretrained.pt", data_bin, arch), weights_only=True)
    _, task, model, criterion = set_up_answering(data_bin, squad, "--version-2", arch=arch)
    model.check_checkpoint("pretrained.pt", saved)
    model.load_state_dict(saved["model"])
    own = model.state_dict()
    heads = {name for name in own if name.startswith("classification_heads.span.")}
    assert heads == {"classification_heads.span.qa_outputs.weight", "classification_heads.span.qa_outputs.bias"}
    assert all(torch.equal(own[name], saved["model"][name]) for name in own.keys() - heads)
    task.load_dataset("train")
    criterion(model, batches(task)[0])[0].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_ids_are_those_of_pretraining(data_bin, squad):
    """The dictionary comes from the tokenizer here, and from dict.txt in pretraining."""
    _, pretraining, _, _ = set_up(data_bin)
    _, task, _, _ = set_up_answering(data_bin, squad, "--version-2")
    assert task.source_dictionary.symbols == pretraining.source_dictionary.symbols


def test_an_epoch_has_every_window_once_for_any_number_of_workers(data_bin, squad):
    epochs = []
    for workers in (0, 1):
        _, task, _, _ = set_up_answering(data_bin, squad, "--version-2", "--tokens-per-sample", 40)
        task.load_dataset("train")
        epochs.append(batches(task, workers=workers))
    alone, helped = epochs
    assert sorted(torch.cat([batch["id"] for batch in alone]).tolist()) == list(range(len(task.dataset("train"))))
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one["net_input"]["src_tokens"], other["net_input"]["src_tokens"])
        assert torch.equal(one["target"], other["target"])
