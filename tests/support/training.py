"""fairseq training in this process, for tests that inspect its state."""

import argparse
import copy
import functools
import shlex
from typing import NamedTuple

import torch
from fairseq import options, tasks
from fairseq.criterions import FairseqCriterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig

import mae_lm_fairseq  # noqa: F401  it registers what the recipe names
from tests.support import words_of

# Mild enough for a model with two layers and hidden size 16 to train in a second.
RECIPE = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --cpu --optimizer adam --lr 1e-3 "
    "--lr-scheduler polynomial_decay --warmup-updates 2 --total-num-update 40 --clip-norm 2.0 --batch-size 8 "
    "--tokens-per-sample 32 --sample-break-mode complete_doc --encoder-layers 2 --encoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --encoder-attention-heads 4 --max-positions 64 --log-format simple --log-interval 1"
)


class Setting(NamedTuple):
    """A training: its configuration, and the objects that fairseq builds from it."""

    cfg: DictConfig
    task: FairseqTask
    model: BaseFairseqModel
    criterion: FairseqCriterion


def parse(*arguments) -> DictConfig:
    """Return the configuration for a ``fairseq-train`` command line; parsing takes 0.1 s and is cached."""
    return copy.deepcopy(_parse(*words_of(*arguments)))


@functools.cache
def _parse(*arguments: str) -> DictConfig:
    args: argparse.Namespace = options.parse_args_and_arch(options.get_training_parser(), list(arguments))
    return convert_namespace_to_omegaconf(args)


def set_up(data, *arguments, arch: str = "mae_lm_tiny") -> Setting:
    """Return what pretrains on a data-bin with further options."""
    return built(parse(data, *RECIPE, "--arch", arch, *arguments))


def built(cfg: DictConfig) -> Setting:
    """Return what fairseq builds from a configuration."""
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    return Setting(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def make_update(model, criterion, optimizer, batch) -> float:
    """Make an update as fairseq's trainer does, with gradients of a norm of at most 2; return the mean loss."""
    optimizer.zero_grad()
    loss, size, _ = criterion(model, batch)
    optimizer.backward(loss)
    optimizer.multiply_grads(1 / size)
    optimizer.clip_grad_norm(2.0)
    optimizer.step()
    return loss.item() / size


def batches(task, split: str = "train", epoch: int = 1, workers: int = 0, batch_size: int = 8) -> list[dict]:
    """Return all batches of one epoch, in training order; the split is loaded if it is not there."""
    if split not in task.datasets:
        task.load_dataset(split)
    iterator = task.get_batch_iterator(
        task.dataset(split),
        max_sentences=batch_size,
        epoch=epoch,
        num_workers=workers,
        data_buffer_size=10,
        max_positions=task.max_positions(),
    )
    return list(iterator.next_epoch_itr(shuffle=True))
