"""Masked language models of Hugging Face's transformers, with their own loss."""

from training import Training

PAD = 1


def build(spec: dict) -> Training:
    """Build the class named in ``spec["options"]``, with torch's fused attention if supported."""
    import mae_lm_fairseq.trained.huggingface  # noqa: F401, I001  hides a broken torchaudio: must come before transformers

    import transformers

    name, dim = spec["options"][0], spec["dim"]
    model_class = getattr(transformers, name)
    if name == "ModernBertForMaskedLM":
        dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), 0.1)
        # A feed-forward block of three matrices, so that it has as many weights as two of 4 x dim; a multiple of 8.
        own = dropout | {"intermediate_size": 8 * round(dim / 3), "sparse_prediction": True}
    else:
        dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1)
        own = dropout | {"intermediate_size": 4 * dim, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    config = model_class.config_class(
        vocab_size=spec["vocab_size"],
        num_hidden_layers=spec["encoder_layers"],
        hidden_size=dim,
        num_attention_heads=spec["heads"],
        max_position_embeddings=spec["length"] + PAD + 1,
        pad_token_id=PAD,
        bos_token_id=0,
        eos_token_id=2,
        # MPNet supports only its own attention.
        attn_implementation="eager" if name == "MPNetForMaskedLM" else "sdpa",
        **own,
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
