"""Masked language models of Hugging Face's transformers, with their own loss."""

from training import Training

PAD = 1


def build(spec: dict) -> Training:
    """Build the class named in ``spec["options"]``, with torch's fused attention if supported."""
    import mae_lm_fairseq.huggingface  # noqa: F401, I001  hides a broken torchaudio: must come before transformers

    import transformers

    model_class = getattr(transformers, spec["options"][0])
    config = model_class.config_class(
        vocab_size=spec["vocab_size"],
        num_hidden_layers=spec["encoder_layers"],
        hidden_size=spec["dim"],
        intermediate_size=4 * spec["dim"],
        num_attention_heads=spec["heads"],
        max_position_embeddings=spec["length"] + PAD + 1,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=PAD,
        bos_token_id=0,
        eos_token_id=2,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        # MPNet supports only its own attention.
        attn_implementation="eager" if spec["options"][0] == "MPNetForMaskedLM" else "sdpa",
    )

    def collate(tokens, masked):
        return {
            "input_ids": tokens.masked_fill(masked, spec["vocab_size"] - 1),
            "attention_mask": tokens.ne(PAD).long(),
            "labels": tokens.masked_fill(~masked, -100),
        }

    def loss(model, sample):
        return model(**sample).loss, 1, sample["labels"].ne(-100).sum()

    return Training(spec, model_class(config), collate, loss)
