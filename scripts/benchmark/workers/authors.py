"""MAE-LM in a copy of its authors' repository, which is a fork of fairseq."""

import sys
from pathlib import Path

import torch
from training import Training


def build(spec: dict) -> Training:
    """Build the model of ``spec["options"]``, whose first item is the directory of the copy."""
    directory, *options = spec["options"]
    sys.path.insert(0, directory)  # before pip's fairseq
    import fairseq

    if Path(directory).resolve() not in Path(fairseq.__file__).resolve().parents:
        raise FileNotFoundError(f"{directory} has no package fairseq")
    from fairseq import options as fairseq_options, tasks

    command = [spec["directory"], "--task", "masked_lm", "--criterion", "masked_lm", *options]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), command)
    task = tasks.setup_task(args)
    model, criterion = task.build_model(args), task.build_criterion(args)

    def loss(model, sample):
        total, size, _ = criterion(model, sample)
        return total, size, size

    def collate(tokens, masked):
        return shortened_sample(tokens, masked, task.dictionary.pad(), task.mask_idx)

    return Training(spec, model, collate, loss)


def shortened_sample(tokens, masked, pad: int, mask: int) -> dict:
    """Return a batch as their data set makes it: visible tokens with their positions, and all targets.

    A target is ``<mask>`` at visible tokens, and ``<pad>`` at padding.
    """
    visible = tokens.ne(pad) & ~masked
    shape = (len(tokens), int(visible.sum(1).max()))
    source, positions = torch.full(shape, pad), torch.full(shape, pad)
    for row, seen in enumerate(visible):
        index = seen.nonzero().squeeze(1)
        source[row, : len(index)], positions[row, : len(index)] = tokens[row, index], index
    return {
        "net_input": {"src_tokens": source, "src_lengths": visible.sum(1)},
        "pos": positions,
        "target": tokens.masked_fill(visible, mask),
        "nsentences": len(tokens),
        "ntokens": int(visible.sum()),
    }
