"""Configurations of ``transformers`` as options of a network that starts from random weights."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from fairseq import utils

from mae_lm_fairseq.core.config import ARCHITECTURES, PRESETS, preset_config
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.tokenizer import PAD
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.trained.huggingface.from_scratch import encoder_options
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.wrapped.encoder import KINDS
from mae_lm_fairseq.wrapped.network import build_network, stock_config
from tests.support.families import change_json
from tests.support.refusals import refused
from tests.support.tokenizers import write
from tests.support.wrapped import stock


def save_config(directory: Path, kind: str, **changes) -> Path:
    """Save the configuration of a tiny model, with ids of special tokens that no data-bin here has."""
    stock(kind, pad=50, initializer_range=0.02, **changes).config.save_pretrained(directory)
    return directory


def network_of(options: dict, architecture: str, symbols: int):
    config = preset_config(*ARCHITECTURES[architecture], **options)
    return config, build_network(config, symbols, PAD, symbols - 1)


@pytest.fixture(scope="module")
def bert_tokens(tmp_path_factory) -> Path:
    """Dictionary and tokenizer of a data-bin, whose special tokens have other ids than here."""
    return write(tmp_path_factory.mktemp("bert"), "bert")


def test_sizes_are_the_configurations_and_tokens_the_data_bins(text_data, bert_tokens, tmp_path):
    directory = save_config(tmp_path, "modernbert", hidden_size=24, num_hidden_layers=5)
    for data_bin in (text_data, bert_tokens):
        options = encoder_options(directory / "config.json", "mae_lm_tiny", data_bin)
        assert options == encoder_options(directory, "mae_lm_tiny", data_bin)
        sizes = {"encoder_layers": 5, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 32, "max_positions": 80}
        assert options | sizes == options
        described = json.loads(options["wrapped"])
        assert described["vocab_size"] == len(read_symbols(data_bin / "dict.txt"))
        tokenizer = find_tokenizer(data_bin)
        roles = zip(("bos", "pad", "eos"), tokenizer.exported_ids.tolist(), strict=False)
        assert all(described[f"{role}_token_id"] == token for role, token in roles)
        assert (described["cls_token_id"], described["sep_token_id"]) == (
            described["bos_token_id"],
            described["eos_token_id"],
        )


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta-v2"])
def test_weights_are_those_that_the_stock_class_draws(kind, text_data, bert_tokens, tmp_path):
    """With rows of tokens in the order of our ids, where the token for padding keeps its row."""
    directory = save_config(tmp_path, kind)
    for data_bin in (text_data, bert_tokens):
        symbols = len(read_symbols(data_bin / "dict.txt"))
        options = encoder_options(directory, "mae_lm_tiny", data_bin)
        utils.set_torch_seed(5)
        _, network = network_of(options, "mae_lm_tiny", symbols)
        utils.set_torch_seed(5)
        drawn = transformers.AutoModelForMaskedLM.from_config(stock_config(options["wrapped"]))
        theirs = drawn.base_model.state_dict()
        table = network.encoder.embed_tokens
        [name] = (name for name, module in network.encoder.model.named_modules() if module is table)
        rows = theirs[f"{name}.weight"]
        pad = drawn.config.pad_token_id
        assert torch.equal(table.weight[PAD], rows[pad])
        assert torch.equal(table.weight[pad], rows[PAD])
        for weight_name, weight in network.encoder.model.state_dict().items():
            if weight_name != f"{name}.weight":
                assert torch.equal(weight, theirs[weight_name]), weight_name
        utils.set_torch_seed(6)
        _, other = network_of(options, "mae_lm_tiny", symbols)
        assert not torch.equal(other.encoder.embed_tokens.weight, table.weight)


def test_a_decoder_is_of_the_encoders_type_or_has_a_position_bias(text_data, tmp_path):
    """Also where the preset has none; a preset without a decoder gets none."""
    buckets = {}
    for kind in ("modernbert", "bert"):
        directory = save_config(tmp_path / kind, kind, num_hidden_layers=4)
        for architecture in ("mae_lm_base", "mae_lm_tiny", "mae_lm_roberta_tiny"):
            options = encoder_options(directory, architecture, text_data)
            buckets[kind, architecture] = options["decoder_relative_buckets"]
    assert buckets == {
        ("modernbert", "mae_lm_base"): 0,
        ("modernbert", "mae_lm_tiny"): 0,
        ("modernbert", "mae_lm_roberta_tiny"): 0,
        ("bert", "mae_lm_base"): 32,
        ("bert", "mae_lm_tiny"): 32,
        ("bert", "mae_lm_roberta_tiny"): 0,
    }


@pytest.mark.slow  # loads every type
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_type_can_be_built(kind, text_data, tmp_path):
    options = encoder_options(save_config(tmp_path, kind), "mae_lm_tiny", text_data)
    _, network = network_of(options, "mae_lm_tiny", len(read_symbols(text_data / "dict.txt")))
    assert network.encoder.embed_tokens.padding_idx == PAD


REFUSED = [
    ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map leads to code"),
    ({"inner": [{"_attn_implementation": "someone/kernel"}]}, "inner leads to code"),
    ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config leads to code"),
    ({"model_type": "gpt2"}, "'gpt2'"),
    ({"model_type": "mae_lm"}, "'mae_lm'"),
    ({"is_decoder": True}, "decoder"),
    ({"num_attention_heads": 3}, "16"),
    ({"hidden_size": 0}, ""),
    ({"hidden_size": "wide"}, "transformers does not take"),
    ({"num_hidden_layers": 20_000}, "20,000 layers"),
    ({"max_position_embeddings": 1}, "max_positions 1"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=[str(changes) for changes, _ in REFUSED])
def test_what_cannot_be_trained_is_refused(changes, named, text_data, tmp_path):
    path = save_config(tmp_path, "bert") / "config.json"
    change_json(path, **changes)
    with refused(rf"^{re.escape(str(path))}: .*{re.escape(named)}"):
        encoder_options(path, "mae_lm_tiny", text_data)
    assert [child.name for child in tmp_path.iterdir()] == ["config.json"]


def test_presets_that_need_our_layers_are_refused(text_data, tmp_path):
    """The message has the presets that work."""
    directory = save_config(tmp_path, "bert")
    usable = ["mae_lm", "mae_lm_roberta", "mae_lm_3ml_self", "mae_lm_3ml_cross"]
    for preset in usable:
        assert encoder_options(directory, f"{preset}_tiny", text_data)
    assert len(PRESETS) == 7
    for preset in PRESETS.keys() - usable:
        with pytest.raises(UserError) as caught:
            encoder_options(directory, f"{preset}_tiny", text_data)
        assert str(caught.value) == (
            f"--encoder does not work with the preset {preset}_tiny; choose one of {', '.join(usable)} and its size"
        )


def test_a_type_with_its_own_token_for_padding_needs_a_tokenizer_with_it(text_data, bert_tokens, tmp_path):
    directory = save_config(tmp_path, "mpnet")
    assert encoder_options(directory, "mae_lm_tiny", text_data)
    with refused("id 1.* with 0"):
        encoder_options(directory, "mae_lm_tiny", bert_tokens)


def test_files_that_are_missing_or_no_configuration_are_named(text_data, tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with refused(r"config\.json"):
        encoder_options(tmp_path, "mae_lm_tiny", text_data)
    (tmp_path / "config.json").write_text('{"model_type": "bert",\n"hidden_size": 8,}')
    with refused(r"config\.json .*line 2, column 1[78]"):
        encoder_options(tmp_path, "mae_lm_tiny", text_data)
    with refused(r"none\.json"):
        encoder_options(tmp_path / "none.json", "mae_lm_tiny", text_data)
    with refused("hf download someone/model"):
        encoder_options(Path("someone/model"), "mae_lm_tiny", text_data)
    save_config(tmp_path, "bert")
    with refused(r"empty/dict\.txt"):
        encoder_options(tmp_path, "mae_lm_tiny", tmp_path / "empty")
