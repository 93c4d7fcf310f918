"""Splits of a data-bin as sequences before masking, checked to belong together."""

import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fairseq import utils
from fairseq.data import Dictionary, FairseqDataset, PrependTokenDataset, TokenBlockDataset, data_utils
from fairseq.data.shorten_dataset import maybe_shorten_dataset

from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig
from mae_lm_fairseq.tasks.sequences import RepeatedTokensDataset, SplitLongLinesDataset
from mae_lm_fairseq.text.data_bin import (
    DICTIONARY,
    check_data_bin,
    check_dictionary,
    count_tokens,
    dictionary_fingerprint,
)
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, check_files
from mae_lm_fairseq.text.tokenizer_files import NAMES, find_tokenizer
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)

LARGEST_COMPARED = 1_500_000_000
"""Size in bytes of the largest data-bin that the start of a training compares with its hashes, about 1 s of work."""


def first_directory(cfg: MaskedAutoencoderLMConfig) -> str:
    """Return the (first) data directory, which has the dictionary and the tokenizer.

    Raises:
        UserError: if the name of a shard is empty.
    """
    directories = utils.split_paths(cfg.data)
    if "" in directories:
        raise UserError(f"the data {cfg.data!r} has an empty name; a {os.pathsep!r} separates two directories")
    return directories[0]


def load_dictionary(cfg: MaskedAutoencoderLMConfig) -> Dictionary:
    """Load the dictionary of the (first) data directory, and log what is known of its tokenizer.

    Raises:
        UserError: if it is missing or damaged, or the manifest beside it names another dictionary.
    """
    directory = first_directory(cfg)
    path = os.path.join(directory, DICTIONARY)
    dictionary = _read_dictionary(path)
    check_dictionary(directory, dictionary.symbols)
    logger.info("dictionary: %d types", len(dictionary))
    tokenizer = find_tokenizer(directory)
    if tokenizer is None:
        logger.warning(
            "%s has no tokenizer. Training does not need one, but mae-lm bundle, rank and fine-tuning do: copy it "
            "there (%s)",
            directory,
            NAMES,
        )
    return dictionary


def _read_dictionary(path: str) -> Dictionary:
    read_symbols(path)  # refuses what a bundle and all after it would refuse
    return Dictionary.load(path)


def check_token_ids(cfg: MaskedAutoencoderLMConfig) -> None:
    """Compare the data-bins, each of up to :data:`LARGEST_COMPARED`, with the hashes in their manifests.

    Raises:
        UserError: if a file is damaged.
    """
    for directory in filter(None, utils.split_paths(cfg.data)):
        if not check_files(Path(directory), LARGEST_COMPARED):
            logger.info("%s is not compared with hashes; mae-lm doctor %s does, if there are any", directory, directory)


def load_sequences(
    cfg: MaskedAutoencoderLMConfig, dictionary: Dictionary, split: str, epoch: int, combine: bool
) -> FairseqDataset:
    """Load the sequences of a split before masking: ``<s>`` and a block of lines.

    Args:
        epoch: of sharded data, the epoch whose shard is loaded.
        combine: also load the further parts of the split (train1, train2, ...), as for training.

    Raises:
        UserError: if the split is missing or truncated, or a shard is of another dictionary.
    """
    directories = utils.split_paths(cfg.data)
    directory = directories[(epoch - 1) % len(directories)]
    shards = directories if combine else [directory]  # of training, those of later epochs, too
    for shard in shards:
        if shard != directories[0]:
            _check_shard(shard, directories[0], dictionary)
            count_tokens(os.path.join(shard, split))
    prefix = os.path.join(directory, split)
    for part in _parts(prefix, combine):
        check_data_bin(part, dictionary.index("<mask>"))

    # The kind that was checked: fairseq prefers a file of text without an ending, and passes the names of others to a
    # shell.
    lines = data_utils.load_indexed_dataset(prefix, dictionary, dataset_impl="mmap", combine=combine)
    block_size = (cfg.tokens_per_sample - 1) // cfg.repeat_tokens  # one less for <s>
    lines = maybe_shorten_dataset(lines, split, cfg.shorten_data_split_list, cfg.shorten_method, block_size, cfg.seed)
    longest = np.max(lines.sizes, initial=0)
    if cfg.sample_break_mode != "none" and longest > block_size:
        lines = SplitLongLinesDataset(lines, block_size)

    blocks = TokenBlockDataset(
        lines,
        lines.sizes,
        block_size,
        pad=dictionary.pad(),
        eos=dictionary.eos(),
        break_mode=cfg.sample_break_mode,
    )
    logger.info("loaded %d blocks from: %s", len(blocks), prefix)
    sequences = PrependTokenDataset(blocks, dictionary.bos())
    if cfg.repeat_tokens == 1:
        return sequences
    return RepeatedTokensDataset(sequences, cfg.repeat_tokens, [dictionary.bos(), dictionary.eos()])


def _parts(prefix: str, combine: bool) -> Iterator[str]:
    """Yield the paths of a split and, if they are combined, of its further parts (train1, train2, ...)."""
    yield prefix
    if combine:
        for number in itertools.count(1):
            part = f"{prefix}{number}"
            if not os.path.exists(f"{part}.idx"):
                return
            yield part


def _check_shard(directory: str, first: str, dictionary: Dictionary) -> None:
    manifest = os.path.join(directory, MANIFEST)
    path = os.path.join(directory, DICTIONARY)
    if os.path.exists(manifest):
        fingerprint = Manifest.read(manifest).dictionary_sha256
    elif os.path.exists(path):
        fingerprint = dictionary_fingerprint(_read_dictionary(path).symbols)
    else:
        return
    if fingerprint != dictionary_fingerprint(dictionary.symbols):
        raise UserError(
            f"{directory} was prepared with another dictionary than {first}; prepare all shards with one tokenizer "
            f"(mae-lm prepare --tokenizer {first})"
        )
