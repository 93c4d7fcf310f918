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
    weights = model.state_dict()
    heads = {name for name in weights if name.startswith("classification_heads.span.")}
    assert heads == {"classification_heads.span.qa_outputs.weight", "classification_heads.span.qa_outputs.bias"}
    assert all(torch.equal(weights[name], saved["model"][name]) for name in weights.keys() - heads)
    criterion(model, batches(task)[0])[0].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_ids_are_those_of_pretraining(data_bin, squad):
    """The dictionary comes from the tokenizer here, and from dict.txt in pretraining."""
    pretraining = set_up(data_bin).task
    task = set_up_answering(data_bin, squad, "--version-2").task
    assert task.source_dictionary.symbols == pretraining.source_dictionary.symbols


def test_an_epoch_has_every_window_once_for_any_number_of_workers(data_bin, squad):
    epochs = []
    for workers in (0, 1):
        task = set_up_answering(data_bin, squad, "--version-2", "--tokens-per-sample", 40).task
        task.load_dataset("train")
        epochs.append(batches(task, workers=workers))
    alone, helped = epochs
    assert sorted(torch.cat([batch["id"] for batch in alone]).tolist()) == list(range(len(task.dataset("train"))))
    for of_one_process, of_worker in zip(alone, helped, strict=True):
        assert torch.equal(of_one_process["net_input"]["src_tokens"], of_worker["net_input"]["src_tokens"])
        assert torch.equal(of_one_process["target"], of_worker["target"])
