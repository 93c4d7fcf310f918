"""Our models, built with fairseq's parser as ``fairseq-train --user-dir`` does."""

from fairseq_roberta import fairseq_parts, fairseq_sample, fp16_optimizer
from training import Training


class _Given:
    """Stub of a data set that returns a ready batch."""

    def collater(self, samples: list) -> dict:
        return samples[0]


def build(spec: dict) -> Training:
    """Build the model of ``spec["options"]``."""
    import mae_lm_fairseq
    from mae_lm_fairseq.tasks.masking import LayoutDataset

    mae_lm_fairseq.register()
    name = "masked_autoencoder_lm"
    cfg, task, model, loss = fairseq_parts(spec, "--task", name, "--criterion", name, "--optimizer", "adam")
    pad, mask = task.dictionary.pad(), task.mask_idx
    layouts = LayoutDataset(_Given(), pad, mask, model.autoencoder.needs())

    def collate(tokens, masked):
        return layouts.collater([fairseq_sample(tokens, masked, pad, mask)])

    def fairseq_adam(parameters):
        from fairseq import optim

        return optim.build_optimizer(cfg.optimizer, parameters)

    optimizer = fairseq_adam if spec["optimizer"] == "fairseq" else None
    if spec["precision"] == "fp16":
        model, optimizer = model.half(), fp16_optimizer(cfg)
    training = Training(spec, model, collate, loss, optimizer, autocast=False)
    model.begin_training(training.device)
    return training
