import pytest
import sentencepiece
import torch

from mae_lm_fairseq.measures.inspection import (
    _marginal_loss,
    clean_batches,
    encoder_rank,
    find_gap,
    load,
    masked_loss,
)
from mae_lm_fairseq.measures.masked_prediction import NetworkPredictor
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from tests.support import networks
from tests.support.finetuning import save_pretrained
from tests.support.networks import masked, network, text

PAD = 1
TEXT = [
    "Returns the values of the array.",
    "Numbers: 1, 2, 3 and 4 and 5 and 6!",
    "These are many other values of another array, and of the others.",
    "The array holds values, and other values are in another array.",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Create a data directory with a tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").write_text("\n".join(TEXT) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "sentencepiece.bpe"),
        model_type="bpe",
        vocab_size=110,
        minloglevel=2,
    )
    return folder


@pytest.fixture(scope="module")
def tokenizer(data):
    return find_tokenizer(data)


class TableModel(torch.nn.Module):
    """Model whose hidden state of a token, including padding, is the token's row of a table."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def extract_features(self, tokens, return_all_hiddens):
        assert return_all_hiddens
        return None, {"inner_states": [torch.zeros(*tokens.shape, 3), self.table[tokens]]}


def test_encoder_rank_takes_the_last_layer_without_padding():
    table = torch.zeros(6, 3)
    table[2], table[3], table[PAD] = torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0]), torch.tensor([0, 0, 100.0])
    batches = [torch.tensor([[2, 3, PAD, PAD]]), torch.tensor([[3, 2, 2, 3]])]
    assert encoder_rank(TableModel(table), batches, PAD) == (2, 3)
    table[3] = table[2]
    assert encoder_rank(TableModel(table), batches, PAD) == (1, 3)


def test_gap_is_a_common_word_inside_a_sentence(tmp_path, tokenizer):
    text = tmp_path / "valid.txt"
    text.write_text("\n".join(TEXT) + "\n")
    gap = find_gap(text, tokenizer)
    assert gap.sentence.count("<mask>") == 1
    assert gap.sentence.replace("<mask>", gap.true_word) in TEXT
    assert gap.true_word in ("values", "other", "array", "another")
    assert not gap.sentence.startswith("<mask>")
    assert find_gap(text, tokenizer) == gap


def test_gap_without_words_is_in_the_middle(tmp_path, tokenizer):
    text = tmp_path / "valid.txt"
    text.write_text("1 2 3\n1 2 3 4 5 6 4 3 2 1 3\n")
    gap = find_gap(text, tokenizer)
    assert gap.sentence.count("<mask>") == 1
    assert len(gap.sentence.split()) > 8


def test_losses_are_of_the_same_masked_positions(data_bin, tmp_path):
    """Whatever was masked in training; the seeds of the trainings differ, too."""
    masking = {"mask_prob": 0.15, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, "seed": 1}
    targets, texts = [], []
    for name, options in {"usual": (), "more": ("--mask-prob", "0.5", "--seed", "2")}.items():
        path = save_pretrained(tmp_path / f"{name}.pt", data_bin, "mae_lm_tiny", *options)
        model, task = load(path, data_bin, **masking)
        targets.append([sample["target"].tolist() for sample in map(task.dataset("valid").__getitem__, range(5))])
        texts.append([batch.tolist() for batch in clean_batches(task)])
        # An untrained model of about 200 tokens: ln 200 = 5.3, and more where it is confidently wrong.
        assert 5 < masked_loss(model, task) < 7
    assert targets[0] == targets[1]
    assert texts[0] == texts[1]


def test_the_loss_of_expanded_masks_is_that_of_each_target_on_its_own():
    """In a row with two targets, where it differs from that of both."""
    model = MAELMModel(network("mae_lm_exlm_decoder"), networks.PAD, networks.MASK).eval()
    tokens, targets = masked(networks.batch(text(9, 1), text(6, 2)), [(0, 4), (0, 5), (1, 2)])
    layout = networks.layout_for(tokens, targets)
    batch = {"net_input": {"src_tokens": tokens}, "target": targets, "layout": layout}
    wanted = targets[targets.ne(networks.PAD)]
    with torch.no_grad():
        loss, predicted = _marginal_loss(model, batch)
        log_probs = NetworkPredictor(model.autoencoder, networks.PAD, networks.MASK)(tokens, targets.ne(networks.PAD))
        joint = model(tokens, layout=layout, targets=wanted)[0]
    assert predicted == 3
    torch.testing.assert_close(loss, -log_probs[range(3), wanted].sum())
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
    assert abs(joint - loss) > 0.1
