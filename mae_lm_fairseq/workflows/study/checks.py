"""Checks of a plan against its files and against fairseq, before anything is trained."""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mae_lm_fairseq.checkpoints.reading import read
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskJoin
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.models.architectures import core_config
from mae_lm_fairseq.tasks.masked_autoencoder_lm import check_mask_in_encoder, check_options
from mae_lm_fairseq.training.pretrain import parse_configuration
from mae_lm_fairseq.training.training_command import check_data
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.workflows.study.measures import Finetune, MinimalPairs, Probe, Seconds, Tagging
from mae_lm_fairseq.workflows.study.plan import Plan
from mae_lm_fairseq.workflows.study.results import Training
from mae_lm_fairseq.workflows.study.training import OF_THE_ENGINE, command


def check(plan: Plan, needs_files: bool = True) -> list[Any]:
    """Check a plan, and return fairseq's configuration of every model.

    Args:
        plan: the plan.
        needs_files: whether the files of ``[data]`` must exist.

    Raises:
        UserError: if a file is missing or damaged, or fairseq-train would refuse an option; names key and line.
    """
    if needs_files:
        _check_files(plan)
    return [_configuration(plan, number, needs_files) for number in range(len(plan.models))]


def _check_files(plan: Plan) -> None:
    """Check that all files exist, and read those of measures, hours before they are needed.

    Raises:
        UserError: if a file is missing or damaged.
    """
    for key, item in [(("data",), plan.data), *((("measure", i), one.options) for i, one in enumerate(plan.measures))]:
        for name in (field.name for field in fields(item)):
            path = getattr(item, name)
            if isinstance(path, Path) and not path.exists():
                raise plan.document.error((*key, name), f"{path} does not exist")
    with _located(plan, ("data", "data_bin")):
        check_data(plan.data.data_bin)
    for number, measure in enumerate(plan.measures):
        with _located(plan, ("measure", number)):
            _read_files(plan, measure.options)


def _read_files(plan: Plan, options: Any) -> None:
    """Read what a measure reads.

    Raises:
        UserError: if it cannot be read.
    """
    data = plan.data
    if isinstance(options, Probe):
        from mae_lm_fairseq.measures.probing import check_sklearn
        from mae_lm_fairseq.text.conllu import read_conllu

        check_sklearn()
        for path in (data.probe_train, data.probe_dev, data.probe_test):
            if path is not None:
                read_conllu(path, options.column)
    elif isinstance(options, MinimalPairs):
        from mae_lm_fairseq.measures.minimal_pairs.files import read_paradigms

        read_paradigms(options.pairs or data.pairs, options.limit)
    elif isinstance(options, Finetune):
        from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles
        from mae_lm_fairseq.finetuning.sentences.tasks import TASKS

        if options.task not in TASKS:
            raise UserError(f"task {options.task} is not one of {', '.join(TASKS)}")
        sets = GlueFiles(TASKS[options.task], data.glue_dir)
        for split in sets.splits:
            sets.read(split)
    elif isinstance(options, Tagging):
        from mae_lm_fairseq.finetuning.tagging.files import read_words

        for path in (options.train, options.dev):
            read_words(path, options.column)
    elif not isinstance(options, Seconds):
        from mae_lm_fairseq.text.tokenizer_files import find_tokenizer

        if find_tokenizer(data.data_bin) is None:
            raise UserError(f"{data.data_bin} has no tokenizer, which is needed to read text")


def _configuration(plan: Plan, number: int, needs_files: bool) -> Any:
    """Return fairseq's configuration of a model.

    Raises:
        UserError: if fairseq-train, or the engine, would refuse an option.
    """
    model, key, error = plan.models[number], ("model", number), plan.document.error
    if model.arch not in ARCHITECTURES:
        raise error((*key, "arch"), f"{model.arch!r} is not one of {', '.join(ARCHITECTURES)}")
    for place, options in ((("options",), plan.options), ((*key, "options"), model.options)):
        for name in options:
            if name in OF_THE_ENGINE:
                raise error((*place, name), f"the engine sets --{name}; {_instead(OF_THE_ENGINE[name])}")
            if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
                written = name.strip("-").replace("_", "-")
                raise error((*place, name), f"options have the names of fairseq-train without the dashes: {written}")
        if "lr" in options and model.learning_rates:
            raise error((*place, "lr"), "contradicts learning_rates of the model; remove one")
    rate = model.learning_rates[0] if model.learning_rates else None
    with _located(plan, key):
        trained = model if needs_files else replace(model, start=None)
        cfg = _parsed(command(plan, Training(trained, rate, 1, Path()), plan.train.updates, Path("checkpoints"))[3:])
        check_settings(cfg)
        network = core_config(cfg.model)
        check_options(cfg.task)
        check_mask_in_encoder(cfg.task.mask_in_encoder, network)
    if model.masks in ("encoder", "decoder") and network.mask_join is not MaskJoin.decoder:
        raise error((*key, "masks"), f"{model.masks!r} is for models whose [MASK]s join in the decoder")
    if model.start is not None and needs_files:
        with _located(plan, (*key, "start")):
            found = read(model.start, None if model.start.is_dir() else plan.data.data_bin).config
            options = [name for name in vars(network) if name.startswith(("encoder_", "relative_", "max_positions"))]
            if differing := [name for name in options if getattr(found, name) != getattr(network, name)]:
                raise UserError(f"{model.start} has another encoder than {model.arch}: {', '.join(differing)}")
    return cfg


def _instead(advice: str) -> str:
    return f"use {advice}" if advice else "remove it"


def _parsed(words: list[str]) -> Any:
    """Return fairseq's configuration of a command line.

    Raises:
        UserError: with argparse's message, if it refuses the command line.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse_configuration(words)
    except SystemExit:
        raise UserError(printed.getvalue().strip().rpartition("error: ")[2]) from None


@contextlib.contextmanager
def _located(plan: Plan, key: tuple) -> Iterator[None]:
    """Add key and line to errors: those of the first option that the message names and the plan has, or of ``key``."""
    try:
        yield
    except UserError as problem:
        model = plan.models[key[1]].options if key[0] == "model" else {}
        named = re.findall(r"--([a-z0-9-]+)", str(problem))
        places = [(*key, "options", name) for name in named if name in model]
        places += [("options", name) for name in named if name in plan.options]
        raise plan.document.error(next(iter(places), key), str(problem)) from None
