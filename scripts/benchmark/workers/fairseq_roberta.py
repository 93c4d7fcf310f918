"""fairseq's own RoBERTa, built with its parser, task, model and criterion."""

from collections.abc import Callable

from training import Training, fused_adamw


def build(spec: dict) -> Training:
    """Build the model of ``spec["options"]``."""
    cfg, task, model, loss = fairseq_parts(spec, "--task", "masked_lm", "--criterion", "masked_lm")
    pad, mask = task.dictionary.pad(), task.mask_idx

    def collate(tokens, masked):
        return fairseq_sample(tokens, masked, pad, mask)

    if spec["precision"] == "fp16":
        return Training(spec, model.half(), collate, loss, fp16_optimizer(cfg), autocast=False)
    return Training(spec, model, collate, loss)


def fairseq_parts(spec: dict, *options: str):
    """Return configuration, task, model and loss for a ``fairseq-train`` command line."""
    from fairseq import options as fairseq_options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    # fairseq's optimizer requires a learning rate, although it does not change the time of a step.
    command = [spec["directory"], *options, *spec["options"], "--lr", "1e-4", "--tokens-per-sample", spec["length"]]
    parser = fairseq_options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, [str(word) for word in command]))
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)

    def loss(model, sample):
        total, size, _ = criterion(model, sample)
        return total, size, size

    return cfg, task, model, loss


def fairseq_sample(tokens, masked, pad: int, mask: int) -> dict:
    """Return a batch as fairseq's data sets for masked language models make it."""
    lengths = tokens.ne(pad).sum(1)
    return {
        "net_input": {"src_tokens": tokens.masked_fill(masked, mask), "src_lengths": lengths},
        "target": tokens.masked_fill(~masked, pad),
        "nsentences": len(tokens),
        "ntokens": int(lengths.sum()),
    }


def fp16_optimizer(cfg) -> Callable:
    """Return what builds fairseq's optimizer of ``--fp16``, around torch's fused AdamW, for the weights of a model."""
    from fairseq.optim import FairseqOptimizer
    from fairseq.optim.fp16_optimizer import FP16Optimizer

    class FusedAdamW(FairseqOptimizer):
        def __init__(self, parameters: list):
            super().__init__(None)
            self._optimizer = fused_adamw(parameters)

    class Stepped(FP16Optimizer):
        def step(self, closure=None, groups=None):
            self.clip_grad_norm(0)  # looks for overflows, as the trainer does in every update
            super().step(closure, groups)

    def build_optimizer(parameters: list) -> FP16Optimizer:
        flatten = parameters[0].is_cuda  # fairseq's flat copy is for GPUs
        copies = FP16Optimizer.build_fp32_params(None, parameters, flatten)
        return Stepped(cfg, parameters, FusedAdamW([*copies.values()] if flatten else copies), copies)

    return build_optimizer
