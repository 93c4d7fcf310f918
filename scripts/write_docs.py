#!/usr/bin/env python3
"""Write the generated pages: options, recipes, treatments, patches of fairseq, and results of the fault injection.

scripts/write_docs.py
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import partial
from pathlib import Path
from textwrap import fill
from types import FunctionType, SimpleNamespace
from typing import Any

from mae_lm_fairseq.core.config import SIZES, MaskedAutoencoderConfig
from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.training.command import merge
from mae_lm_fairseq.training.published import PUBLISHED, ROWS, SOURCES, Setting
from mae_lm_fairseq.training.settings import RECIPE_OF_SIZE, RECIPES, describe_amount, recipe, settings
from mae_lm_fairseq.utils import output
from mae_lm_fairseq.utils.errors import errors_end_the_program

ROOT = Path(__file__).resolve().parent.parent
markdown_table = partial(output.markdown_table, is_markdown=True)

OPTIONS = """\
# Options

For people who look up an option of `fairseq-train` or `mae-lm pretrain`: those that this package
adds, and which of [fairseq's own](#options-of-fairseq) work. [Pretraining](../pretraining.md) and
[fine-tuning](../finetuning.md) describe how to use them. `scripts/write_docs.py` generates this
page.

"Not set" means that the option has no value by default. Its description says what happens then. An
option without choices takes a value of the type of its default. An option with the default `false`
is a flag.

## Network

Defined in `mae_lm_fairseq/core/config.py`. The defaults are those of `mae_lm_base`; `--arch`
selects other values.

{network}

### Values by size

{sizes}

[Treatments](treatments.md) describes the presets of each size.

## Running the network

Defined in `mae_lm_fairseq/models/architectures.py`.

{running}

## Task `masked_autoencoder_lm`

Defined in `mae_lm_fairseq/tasks/options.py`, which extends fairseq's `masked_lm`. The descriptions
of inherited options are fairseq's. The data2vec options `--include-target-tokens`, `--skip-masking`
and `--d2v2-multi` have no effect. The criterion of the same name has no options.

{pretraining}

## Optimizer `fused_adamw`

Defined in `mae_lm_fairseq/optim/fused_adamw.py`. Options that fairseq's `adam` shares have the same
names.

{optimizer}

## Task `question_answering`

Defined in `mae_lm_fairseq/tasks/squad.py`. `mae-lm finetune squad` sets these options.

{squad}

## Task `token_classification`

Defined in `mae_lm_fairseq/tasks/tagging.py`. `mae-lm finetune tagging` sets these options.

{tagging}

## Options of fairseq

Options of fairseq that work with the models of this package, and the test that shows it, on CPUs.
Options that are in no table have no test here.

{works}

### Options of `--arch roberta` that differ

The other options of fairseq's RoBERTa have the same name here. An unknown option ends the start
with what this table says of it:
{is_unknown}.

{roberta}

### Options that are refused

Each ends the start with one error message and exit code 1, or prints a warning, as tested by
{is_refused}.
In the messages, `...` stands for the value. Data-bins of other implementations than mmap are also
refused: {is_refused_data}.

{refused}
"""

TREATMENTS_PAGE = """\
# Presets and treatments of `[MASK]`

For people who choose a preset or compare treatments: what the network sees at the positions that it
predicts. [Choosing](../choosing.md) is the shorter guide. `mae-lm study treatments --out OUT`
compares most treatments at size tiny ([results](../../scripts/results/treatments/README.md)).
`scripts/write_docs.py` generates this page.

- The column *preset or options* names a preset, to which a [size](options.md#values-by-size) is
  added, or options for one, such as `mae_lm_roberta`, the MLM. `mae_lm` alone is `mae_lm_base`.
- 15 % are predicted unless the row states another rate. `mae-lm pretrain` masks 50 % for
  `mae_lm_3ml_*`.
- Encoder and decoder see all other tokens as well. The loss covers the predicted positions alone,
  after the decoder, or after the encoder of a model without one.
- *Cost* is FLOPs of matrix products in training, relative to the MLM, for sequences of 512 tokens
  at size base and 32,000 subwords, by the formula of `mae-lm plan`. ExLM's loss computes its logits
  twice, which is counted. Its dynamic programming is not counted, so it takes longer than the FLOPs
  say.

{table}

- The decoder of `mae_lm` and `mae_lm_exlm_decoder` has 4 layers (tiny: 2). The decoder of
  `mae_lm_3ml_*` has 2. `--mask-join-layer` says where `[MASK]` joins the encoder of
  `mae_lm_mask_later`. `--mask-states` says how many states ExLM has per `[MASK]`.
- Random and kept tokens are not `[MASK]`: the encoder of MAE-LM and 3ML sees them, and the decoder
  predicts the original ones. `mae_lm_exlm*` refuses them.
- In masked diffusion, the loss of each sequence is divided by its masking rate
  ([pretraining](../pretraining.md#masked-diffusion)). The options work with every preset but
  `mae_lm_exlm*`, which refuses them. With `mae_lm`, the encoder does not see the `[MASK]` tokens.
- ExLM's loss is a sum over alignments of targets to states. All other losses are cross-entropies.
  `mae-lm evaluate` measures each target's probability under its marginal distribution over the
  alignments, which can be compared with other presets.
  [core/expansion.py](../../mae_lm_fairseq/core/expansion.py) expands `[MASK]`, and
  [core/alignment.py](../../mae_lm_fairseq/core/alignment.py) computes the loss. Both say what
  differs from the paper.
- [Spans and whole words](options.md#task-masked_autoencoder_lm) change which tokens are predicted,
  in most rows.
- [Hugging Face](../hugging-face.md#export) states which encoders can be exported.
- A new treatment is [a decoder of your own](../own-ideas.md#a-decoder), or [an
  option](../developers/new-treatment.md).
"""
_MENG = "[Meng et al., 2024](https://arxiv.org/abs/2302.02060)"
_LIAO = "[Liao et al., 2022](https://arxiv.org/abs/2211.04898)"
_DEVLIN = "[Devlin et al., 2019](https://arxiv.org/abs/1810.04805)"
_ZHENG = "[Zheng et al., 2025](https://arxiv.org/abs/2501.13397)"
_SAHOO = "[Sahoo et al., 2024](https://arxiv.org/abs/2406.07524)"
_NIE = "[Nie et al., 2025](https://arxiv.org/abs/2502.09992)"
_WETTIG = "[Wettig et al., 2023](https://arxiv.org/abs/2202.08005)"
# Treatment; what the encoder and the decoder see at predicted positions; who proposed it; preset or options; for its
# cost, preset, masking rate and the fraction of the predicted tokens that are masked.
TREATMENTS = [
    ("all `[MASK]`", "`[MASK]`", "none", _DEVLIN, "`mae_lm_roberta`", "mae_lm_roberta", 0.15, 1),
    ("80/10/10", "80 % `[MASK]`, 10 % random, 10 % kept", "none", _DEVLIN,
     "`--leave-unmasked-prob 0.1 --random-token-prob 0.1`", "mae_lm_roberta", 0.15, 0.8),
    ("random tokens only", "a random token", "none", _DEVLIN, "`--random-token-prob 1`", "mae_lm_roberta", 0.15, 0),
    ("kept tokens only", "the token itself: trivial", "none", "", "`--leave-unmasked-prob 1`", "mae_lm_roberta", 0.15,
     0),
    ("later", "nothing in the lower half of the layers, then `[MASK]`", "none", _LIAO, "`mae_lm_mask_later`",
     "mae_lm_mask_later", 0.15, 1),
    ("never", "nothing", "`[MASK]`", _MENG, "`mae_lm`", "mae_lm", 0.15, 1),
    ("never, 50 % predicted", "nothing", "`[MASK]`", _LIAO, "`mae_lm_3ml_self --mask-prob 0.5`", "mae_lm_3ml_self",
     0.5, 1),
    ("never, 50 % predicted", "nothing", "`[MASK]`; they attend to each other, then to the encoder's output",
     _LIAO, "`mae_lm_3ml_cross --mask-prob 0.5`", "mae_lm_3ml_cross", 0.5, 1),
    ("some in the encoder", "`[MASK]` at half of the positions", "`[MASK]`", _MENG, "`mae_lm --mask-in-encoder 0.5`",
     "mae_lm", 0.15, 0.5),
    ("some in the encoder, reset", "`[MASK]` at half of the positions", "`[MASK]`, without their states", _MENG,
     "`mae_lm --mask-in-encoder 0.5 --reset-mask-states`", "mae_lm", 0.15, 0.5),
    ("expanded", "4 states of each `[MASK]`", "none", _ZHENG, "`mae_lm_exlm`", "mae_lm_exlm", 0.15, 1),
    ("expanded in the decoder", "nothing", "4 states of each `[MASK]`", "this project", "`mae_lm_exlm_decoder`",
     "mae_lm_exlm_decoder", 0.15, 1),
    ("repeated", "tokens twice, each copy masked on its own; a sequence has half the text and the same cost", "none",
     _ZHENG, "`--repeat-tokens 2`", "mae_lm_roberta", 0.15, 1),
    ("falling rate, 30 to 5 %", "`[MASK]`", "none",
     "[Ankner et al., 2024](https://arxiv.org/abs/2305.15096), from 30 to 15 %",
     "`--mask-prob 0.3 --mask-prob-end 0.05`", "mae_lm_roberta", 0.175, 1),
    ("rate drawn from 15 to 50 %", "`[MASK]`", "none", "[R2MAE, 2025](https://arxiv.org/abs/2509.21650), per sequence",
     "`--mask-prob-range 0.15,0.5`", "mae_lm_roberta", 0.325, 1),
    ("masked diffusion: rate drawn from 0 to 1", "`[MASK]`", "none", f"{_SAHOO}; {_NIE}",
     "`--mask-prob-range 0.001,0.999 --loss-weight inverse-rate`", "mae_lm_roberta", 0.5, 1),
    ("higher rate, 40 %", "`[MASK]`", "none", _WETTIG, "`--mask-prob 0.4`", "mae_lm_roberta", 0.4, 1),
]  # fmt: skip

PATCHES = """\
# Patches of fairseq

For developers. `mae_lm_fairseq/fairseq_patches/` holds all patches of fairseq, and of torch,
NumPy and OmegaConf below it. `mae_lm_fairseq.register()` applies them; `--user-dir`, `mae-lm` and
`MAELMModel` call it for you. Importing `mae_lm_fairseq` without fairseq patches nothing.

- Each patch is one function. Its docstring says what goes wrong without it, in more detail than
  this table.
- A patch replaces an attribute that fairseq looks up when it calls it, so the order of imports does
  not matter.
- No function of fairseq is wrapped twice.
- What fairseq builds from the configuration in a checkpoint is checked first, for every program
  that loads one:
  [saved_configurations.py](../../mae_lm_fairseq/fairseq_patches/saved_configurations.py) and
  [security](../security.md).
- Versions: {versions}, for every patch.

`scripts/write_docs.py` generates this page from the docstrings.

{patches}
"""

# The tests of each patch.
TESTS = {
    "restore_numpy_compat": "fairseq_patches/test_parsing.py",
    "read_checkpoints_as_data": "fairseq_patches/test_loading.py",
    "check_checkpoints_before_restoring": "models/test_finetuning.py",
    "resume_from_newest_checkpoint": "fairseq_patches/test_resuming.py",
    "keep_counts": "end_to_end/test_resuming_with_options.py",
    "save_atomically": "fairseq_patches/test_saving.py",
    "keep_as_many_as_asked": "end_to_end/test_fairseq_options.py",
    "save_float32_weights": "optim/test_half_precision.py",
    "average_each_weight_once": "fairseq_patches/test_weights.py",
    "read_moving_averages_as_data": "fairseq_patches/test_weights.py",
    "accumulate_batches_that_have_sequences": "end_to_end/test_torchrun.py",
    "check_splits": "end_to_end/test_fairseq_options.py",
    "report_splits_without_validation": "end_to_end/test_fairseq_options.py",
    "name_missing_files_of_gpt2": "fairseq_patches/test_data.py",
    "read_options": "fairseq_patches/test_parsing.py",
    "suppress_warnings": "end_to_end/test_pretrain.py",
    "check_options_of_the_trainer": "fairseq_patches/test_processes.py",
    "refuse_second_copy": "test_registration.py",
    "refuse_taken_tasks": "training/test_user_directory.py",
    "start_training_with_checks": "fairseq_patches/test_processes.py",
    "send_checkpoints_to_all_processes": "fairseq_patches/test_loading.py",
    "stop_loading_batches_at_exit": "fairseq_patches/test_processes.py",
    "save_before_ending": "end_to_end/test_preemption.py",
    "need_a_job_step": "fairseq_patches/test_started_processes.py",
    "limit_waiting": "fairseq_patches/test_started_processes.py",
    "use_pytorch_ddp_without_gpus": "fairseq_patches/test_started_processes.py",
    "stop_at_updates_that_fail": "fairseq_patches/test_metrics.py",
    "define_every_correlation": "fairseq_patches/test_metrics.py",
    "read_options_at_once": "fairseq_patches/test_updates.py",
    "seed_generators_in_use": "fairseq_patches/test_updates.py",
    "log_from_the_host": "fairseq_patches/test_updates.py",
}

# The options of fairseq that work: remarks, and the test.
WORKING = {
    "`--ddp-backend pytorch_ddp`, `c10d`, `legacy_ddp`, `no_c10d`": (
        "over gloo; see [distributed](../distributed.md)",
        "end_to_end/test_fairseq_options.py::test_backends_of_distributed_training",
    ),
    "`--update-freq`": (
        "equals as many processes",
        "end_to_end/test_torchrun.py::test_two_processes_that_accumulate_train_as_one",
    ),
    "`--store-ema`, `--ema-decay`, `--ema-fp32`, `--ema-update-freq`": (
        "resuming is exact; see [pretraining](../pretraining.md#averaged-weights)",
        "fairseq_patches/test_weights.py::test_resuming_ends_with_the_averages_of_one_run",
    ),
    "`--ema-seed-model`": (
        "",
        "fairseq_patches/test_weights.py::test_averages_can_begin_with_a_checkpoint_that_has_none",
    ),
    "`--tensorboard-logdir`": (
        "with tensorboardX or tensorboard",
        "end_to_end/test_pretrain.py::test_learns_validates_and_keeps_the_best",
    ),
    "`--wandb-project`": (
        "with wandb; without an account, `WANDB_MODE=offline`. The test is skipped where wandb is not installed",
        "end_to_end/test_fairseq_options.py::test_wandb_offline",
    ),
    "`data-bin1:data-bin2`": (
        "one shard per epoch",
        "tasks/test_masked_autoencoder_lm.py::test_shards_are_taken_in_turn",
    ),
    "`--valid-subset valid,valid1`": (
        "the first one selects the best checkpoint",
        "end_to_end/test_fairseq_options.py::test_several_validation_splits",
    ),
    "`fairseq-validate`": ("", "end_to_end/test_fairseq_options.py::test_fairseq_validate"),
    "`fairseq-hydra-train`": (
        "the name of an architecture sets all values of the network",
        "models/test_mae_lm.py::test_each_architecture_is_the_same_from_the_command_line_and_from_hydra",
    ),
    "`fairseq-hydra-train -m`": (
        "with a relative `checkpoint.save_dir`, which is in the directory of each run",
        "end_to_end/test_fairseq_options.py::test_hydra_multirun",
    ),
    "`--lr-scheduler fixed`, `inverse_sqrt`, `cosine`, `polynomial_decay`, `tri_stage`, `reduce_lr_on_plateau`, "
    "`triangular`, `manual`, `step`": (
        "the period of `step` is spelt `--lr-deacy-period` in fairseq",
        "end_to_end/test_fairseq_options.py::test_learning_rates",
    ),
    "`--task masked_lm`": (
        "drops lines longer than `--tokens-per-sample` with a log message, and needs "
        "`--skip-invalid-size-inputs-valid-test` to drop them in validation; `masked_autoencoder_lm` splits them",
        "end_to_end/test_fairseq_options.py::test_validation_splits_are_loaded_before_training",
    ),
    "`--criterion masked_lm`": ("", "end_to_end/test_pretrain.py::test_fairseqs_own_criterion_gives_the_same_training"),
    "`--task sentence_prediction`": (
        "",
        "models/test_finetuning.py::test_training_starts_from_a_pretraining_checkpoint",
    ),
    "`--task sentence_ranking`": ("", "end_to_end/test_fairseq_options.py::test_sentence_ranking"),
    "`--checkpoint-activations`": (
        "",
        "core/test_autoencoder.py::test_activation_checkpointing_only_changes_memory",
    ),
    "`--dataset-impl mmap`": ("", "text/test_data_bin.py::test_files_equal_those_of_fairseq"),
    "`--num-workers`": ("", "end_to_end/test_pretrain.py::test_training_does_not_depend_on_data_workers"),
    "`--restore-file`, `--finetune-from-model`, `--reset-optimizer`, `--reset-dataloader`, `--reset-meters`": (
        "",
        "models/test_finetuning.py::test_training_starts_from_a_pretraining_checkpoint",
    ),
    "`--best-checkpoint-metric`, `--maximize-best-checkpoint-metric`": (
        "",
        "end_to_end/test_pretrain.py::test_learns_validates_and_keeps_the_best",
    ),
    "`--patience`, `--save-interval-updates`, `--keep-interval-updates`, `--keep-best-checkpoints`": (
        "",
        "end_to_end/test_fairseq_options.py::test_checkpoints_to_keep_and_patience",
    ),
    "`--keep-last-epochs`, `--keep-interval-updates-pattern`, `--max-tokens`, `--max-valid-steps`, `--curriculum`, "
    "`--fixed-validation-seed`, `--skip-remainder-batch`, `--stop-time-hours`, `--ema-start-update`": (
        "an interrupted run ends as one run does, as with a schedule of `--update-freq`, with all schedules of the "
        "learning rate and masking, and with the options in the row above",
        "end_to_end/test_resuming_with_options.py::test_interruptions_change_nothing",
    ),
}
TESTS_OF_REFUSALS = {
    "is_refused": "fairseq_patches/test_parsing.py::test_an_option_is_refused_in_one_message",
    "is_refused_data": "text/test_data_bin.py::test_damage_is_found_and_named",
    "is_unknown": "fairseq_patches/test_parsing.py::test_options_of_other_models_are_unknown",
}


# ---------------------------------------------------------------------------------------------------------- recipes.md

RECIPES_PAGE = """\
# Recipes

For people who check a setting: what the papers and their public code state, and what
`mae-lm pretrain` uses. [Pretraining](../pretraining.md) describes how to train with them.

`scripts/write_docs.py` generates this page from `mae_lm_fairseq/training/published.toml`. Edit that
file instead. Every value has a source. "Not found" means that no public source states the value.
"""

RECIPES_USED = """\
## Settings of `mae-lm pretrain`

- `mae-lm pretrain PRESET DATA_BIN SAVE_DIR --recipe NAME` selects a recipe. Without it, the
  preset's size decides.
- Presets of one size therefore differ in `--arch` only, so a comparison compares architectures. The
  exception is `mae_lm_3ml_*`, which also uses 3ML's masking rate.
- `mae_lm_3ml_*` do not follow a recipe of 3ML's, because no public source states how 3ML was
  optimised. Here 3ML masks with `<mask>` only.
- `mae_lm_exlm_*` follow the recipe of their size, not the one of ExLM's paper. The paper also uses
  4 states per `[MASK]`.
- We infer that the paper's base is as long as BERT's pretraining. `base++` and `large++` are the
  authors' script, which is sixteen times as long and has no separate settings for large.
- `academic` is the budget that several papers on efficient pretraining share. Its learning rate and
  its layer norms (`--pre-norm`) are those of its source. At size tiny they trained better [at high
  rates](../../scripts/results/pre-norm/README.md). To [export](../hugging-face.md#export) its
  encoder, add `--relative-buckets 0`.
- `fairseq` is fairseq's recipe for RoBERTa base. [With fairseq](../with-fairseq.md#roberta) shows
  the command.

Batches with one process; more processes accumulate fewer:
"""


def _in_words(cell: Setting) -> str:
    if cell.words is not None:
        return cell.words
    if cell.value is None:
        return "not found in a public source"
    if isinstance(cell.value, float) and 0 < cell.value < 0.01:
        mantissa, exponent = f"{cell.value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{cell.value:,}" if isinstance(cell.value, int) else str(cell.value)


def _stated_settings() -> str:
    numbers = {source: number for number, source in enumerate(SOURCES, start=1)}
    rows = []
    for row, description in ROWS.items():
        cells = [column[row] for column in PUBLISHED.values()]
        marks = [f" [{numbers[cell.source]}]" if cell.source else "" for cell in cells]
        rows.append([description, *(_in_words(cell) + mark for cell, mark in zip(cells, marks, strict=True))])
    sources = "\n".join(_numbered(number, SOURCES[source]) for source, number in numbers.items())
    return f"{markdown_table(['', *PUBLISHED], rows)}\n\nSources:\n\n{sources}\n"


def _numbered(number: int, text: str) -> str:
    """Return an item of a numbered list, in lines of the length of prose."""
    marker = f"{number}. "
    return fill(marker + text, 100, subsequent_indent=" " * len(marker), break_long_words=False, break_on_hyphens=False)


def _used_settings() -> str:
    rows = []
    for name in RECIPES:
        sizes = [size for size in SIZES if RECIPE_OF_SIZE[size] == name]
        architecture = f"mae_lm_{sizes[0] if sizes else 'base'}"
        chosen = settings(architecture, name)
        accumulated = recipe(architecture, name)["sequences"].value // chosen["dataset"]["batch_size"]
        chosen = merge(chosen, {"dataset": {"max_tokens": None}, "optimization": {"update_freq": [accumulated]}})
        cfg = SimpleNamespace(**{group: SimpleNamespace(**options) for group, options in chosen.items()})
        rows.append([f"`{name}`", ", ".join(sizes), describe_amount(cfg, processes=1)])
    return markdown_table(["recipe", "default of size", "per update, and in all"], rows) + "\n"


def recipes() -> str:
    """Return the content of docs/reference/recipes.md."""
    return f"{RECIPES_PAGE}\n## Stated settings\n\n{_stated_settings()}\n{RECIPES_USED}\n{_used_settings()}"


# ------------------------------------------------------------------------------------------------------- treatments.md


def treatments() -> str:
    """Return the text of docs/reference/treatments.md."""
    header = ["treatment", "the encoder sees", "the decoder sees", "proposed by", "preset or options", "cost"]
    usual = _treatment_flops("mae_lm_roberta", 0.15, 1)
    rows = [
        [*words, f"{_treatment_flops(preset, rate, masked) / usual:.0%}"] for *words, preset, rate, masked in TREATMENTS
    ]
    return TREATMENTS_PAGE.format(table=markdown_table(header, rows))


def _treatment_flops(preset: str, rate: float, masked: float) -> float:
    """Return the FLOPs of a training step at size base, per token of the sequence.

    A fraction ``rate`` of the tokens is predicted, and of these a fraction ``masked`` hidden.
    """
    from mae_lm_fairseq.cost.planner import flops_per_token  # imports torch

    return flops_per_token(PlannedRun(preset=f"{preset}_base", mask_prob=rate, mask_in_encoder=1 - masked)).total


# ---------------------------------------------------------------------------------------------------------- options.md


def options() -> str:
    """Return the text of docs/reference/options.md."""
    import mae_lm_fairseq

    mae_lm_fairseq.register()
    from mae_lm_fairseq.fairseq_patches.option_checks import CHECKS
    from mae_lm_fairseq.fairseq_patches.parsing import OF_ROBERTA
    from mae_lm_fairseq.models.architectures import MAELMModelConfig
    from mae_lm_fairseq.optim.fused_adamw import FusedAdamWConfig
    from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig
    from mae_lm_fairseq.tasks.squad import QuestionAnsweringConfig
    from mae_lm_fairseq.tasks.tagging import TokenClassificationConfig

    network = fields(MaskedAutoencoderConfig)
    names = {option.name for option in network}
    return OPTIONS.format(
        network=_option_table(network),
        sizes=_sizes(),
        running=_option_table(option for option in fields(MAELMModelConfig) if option.name not in names),
        pretraining=_option_table(fields(MaskedAutoencoderLMConfig)),
        optimizer=_option_table(fields(FusedAdamWConfig)),
        squad=_option_table(fields(QuestionAnsweringConfig)),
        tagging=_option_table(fields(TokenClassificationConfig)),
        roberta=markdown_table(["option", "here"], _grouped((f"`{name}`", why) for name, why in OF_ROBERTA.items())),
        works=markdown_table(["option", "remark", "test"], _working_rows()),
        refused=markdown_table(["option", "message"], _refused_rows(CHECKS)),
        **{name: _test(test) for name, test in TESTS_OF_REFUSALS.items()},
    )


def _working_rows() -> list[list[str]]:
    return [[option, remark, _test(name)] for option, (remark, name) in WORKING.items()]


def _refused_rows(checks: Iterable[Any]) -> list[list[str]]:
    return _grouped((f"`{check.option}`", re.sub(r"\{.*?\}", "...", check.reason)) for check in checks)


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    options = {}
    for name, reason in pairs:
        options.setdefault(reason, []).append(name)
    return [[", ".join(names), reason] for reason, names in options.items()]


def _option_table(options: Iterable[Field]) -> str:
    rows = [
        [_option(option.name), _value(_default(option)), _choices(option), _description(option)]
        for option in options
        if option.name != "_name" and not str(_default(option)).startswith("${")  # an option of fairseq's, by reference
    ]
    return markdown_table(["option", "default", "choices", "description"], rows)


def _option(name: str) -> str:
    return "`DATA`, the first argument" if name == "data" else f"`--{name.replace('_', '-')}`"


def _default(option: Field) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def _value(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    if value == "???":  # OmegaConf's mark
        return "required"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _choices(option: Field) -> str:
    is_choice = isinstance(option.type, type) and issubclass(option.type, Enum)
    return ", ".join(f"`{member.value}`" for member in option.type) if is_choice else ""


def _description(option: Field) -> str:
    return " ".join(option.metadata.get("help", "").split()).replace("|", "\\|").replace("<", "\\<")


def _sizes() -> str:
    base = MaskedAutoencoderConfig()
    names = [option.name for option in fields(base) if any(option.name in values for values in SIZES.values())]
    rows = [
        [f"`--{name.replace('_', '-')}`", *(_value(values.get(name, getattr(base, name))) for values in SIZES.values())]
        for name in names
    ]
    return markdown_table(["option", *SIZES], rows)


def patches() -> str:
    """Return the text of docs/developers/fairseq-patches.md."""
    from mae_lm_fairseq import fairseq_patches

    [versions] = re.findall(r"fairseq-fixed [\d.]+ and torch [\d.]+ to [\d.]*\d", fairseq_patches.__doc__)
    rows = [_patch_row(patch) for patch in fairseq_patches.patches()]
    table = markdown_table(["patch", "purpose", "test"], rows)
    return PATCHES.format(versions=versions, patches=table)


def _patch_row(patch: FunctionType) -> list[str]:
    file, test = f"{patch.__module__.replace('.', '/')}.py", TESTS[patch.__name__]
    purpose = inspect.cleandoc(patch.__doc__).split("\n\n")[0]
    return [
        f"[{patch.__name__}](../../{file})",
        " ".join(purpose.replace("``", "`").split()),
        f"[{test}](../../tests/{test})",
    ]


def _test(name: str) -> str:
    """Return a link to a test, given as ``FILE::NAME``.

    Raises:
        ValueError: if it does not exist.
    """
    path, function = name.split("::")
    if f"def {function}(" not in (ROOT / "tests" / path).read_text(encoding="utf-8"):
        raise ValueError(f"tests/{path} has no test {function}")
    return f"[{function}](../../tests/{path})"


# ---------------------------------------------------------------------------------------------------------------- pages


def pages() -> dict[str, str]:
    """Return the text of every generated page by its path in the repository."""
    sys.path.insert(0, str(ROOT))  # tests/ is not installed
    from tests.fault_injection import report as robustness

    return {
        "docs/reference/recipes.md": recipes(),
        "docs/reference/options.md": options(),
        "docs/reference/treatments.md": treatments(),
        "docs/developers/fairseq-patches.md": patches(),
        "scripts/results/robustness/README.md": robustness.document(),
    }


def main() -> None:
    """Write all of them."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
