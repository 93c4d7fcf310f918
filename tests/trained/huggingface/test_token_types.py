"""A tokenizer that gives a single text another token type than the first, which is the only one here."""

import json

import pytest
import tokenizers

from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.utils.errors import UserError
from tests.support.huggingface import save_model

WORDS = ["One.", "a", "b"]


@pytest.mark.parametrize("template", ["[CLS]:1 $A:1 [SEP]:1", "[CLS] $A [SEP]:1"])
def test_other_token_types_are_refused(template, tmp_path):
    directory = save_model(tmp_path / "bert", "bert", WORDS)
    settings = directory / "tokenizer_config.json"
    inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | inputs))
    import_foreign(directory, "mae_lm")
    path = str(directory / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    specials = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=specials)
    tokenizer.save(path)
    with pytest.raises(UserError, match="its tokenizer makes"):
        import_foreign(directory, "mae_lm")
