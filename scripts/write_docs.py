#!/usr/bin/env python3
"""Write the generated pages of docs/: recipes, options, what concerns fairseq, and results of the fault injection.

scripts/write_docs.py
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mae_lm_fairseq.core.config import SIZES
from mae_lm_fairseq.training.amount import Amount
from mae_lm_fairseq.training.settings import RECIPE_OF_SIZE, RECIPES, recipe, settings
from mae_lm_fairseq.training.stated import NOT_FOUND, ROWS, SOURCES, STATED, Cell
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.output import markdown_table

ROOT = Path(__file__).resolve().parent.parent

OPTIONS = """\
# Options

The options that this package adds to `fairseq-train` and `mae-lm pretrain`. `scripts/write_docs.py` generates this page
from the classes that define them. `fairseq-train --help` lists fairseq's own options, and
[fairseq-options.md](fairseq-options.md) says which of them work. [pretraining.md](pretraining.md) and
[finetuning.md](finetuning.md) describe how to use them.

"Not set" means that the option has no value by default; its description says what happens then. An option without
choices takes a value of the type of its default, and one with the default `false` is a flag.

## Network

Defined in `mae_lm_fairseq/core/config.py`. The defaults are those of `mae_lm_base`. `--arch` selects other values, and
options on the command line override them.

{network}

### Values by size

{sizes}

[pretraining.md](pretraining.md#presets) describes the presets of each size.

## Running the network

Defined in `mae_lm_fairseq/models/architectures.py`.

{running}

## Task `masked_autoencoder_lm`

Defined in `mae_lm_fairseq/tasks/masked_autoencoder_lm.py`, which extends fairseq's `masked_lm`. The descriptions of
inherited options are fairseq's. The data2vec options `--include-target-tokens`, `--skip-masking` and `--d2v2-multi`
have no effect. The criterion of the same name has no options.

{pretraining}

## Optimizer `fused_adamw`

Defined in `mae_lm_fairseq/optim/fused_adamw.py`. Options that fairseq's `adam` also has have the same names.

{optimizer}

## Task `question_answering`

Defined in `mae_lm_fairseq/finetuning/squad/task.py`; `mae-lm finetune squad` sets these options. The criterion of the
same name has no options.

{squad}

## Task `token_classification`

Defined in `mae_lm_fairseq/finetuning/tagging/task.py`; `mae-lm finetune tagging` sets these options. The criterion of
the same name has no options.

{tagging}
"""

FAIRSEQ_OPTIONS = """\
# Options of fairseq

Which of fairseq's options work with the models of this package, and the test that shows it. Our own options are in
[options.md](options.md). Options that are in no table have no test here. `scripts/write_docs.py` generates this page.

## Options that work

On CPUs, where all tests run.

{works}

## Options that are refused

Each ends the start with one error message and exit code 1, or prints a warning: {is_refused}.
In the messages, `...` stands for the value. Data-bins of other implementations than mmap are refused, too:
{is_refused_data}.
Options of fairseq's own models, such as `--offload-activations`, are unknown to the models of this package:
{is_unknown}. On GPUs, half precision has never run.

{refused}
"""

PATCHES = """\
# Patches of fairseq

`mae_lm_fairseq/fairseq_patches/` holds all patches of fairseq, and of torch and NumPy below it.
`mae_lm_fairseq.register()` applies them; `--user-dir`, `mae-lm` and `MAELMModel` call it for you. Importing
`mae_lm_fairseq` without fairseq patches nothing.

- Each patch is one function. Its docstring says what goes wrong without it, in more detail than this table.
- A patch replaces an attribute that fairseq looks up when it calls it, so the order of imports does not matter.
- No function of fairseq is wrapped twice.
- Versions: {versions}, for every patch.

`scripts/write_docs.py` generates this page from the docstrings.

{patches}
"""

# The tests of each patch.
TESTS = {
    "restore_numpy_compat": "fairseq_patches/test_parsing.py",
    "read_checkpoints_as_data": "fairseq_patches/test_loading.py",
    "check_checkpoints_before_restoring": "fairseq_patches/test_processes.py",
    "resume_from_newest_checkpoint": "fairseq_patches/test_resuming.py",
    "save_atomically": "fairseq_patches/test_saving.py",
    "save_float32_weights": "optim/test_half_precision.py",
    "explain_unwritable_directories": "fault_injection/test_crashes.py",
    "average_each_weight_once": "fairseq_patches/test_weights.py",
    "read_moving_averages_as_data": "fairseq_patches/test_weights.py",
    "accumulate_batches_that_have_sequences": "end_to_end/test_torchrun.py",
    "check_splits": "end_to_end/test_fairseq_options.py",
    "read_options": "fairseq_patches/test_parsing.py",
    "check_options_of_the_trainer": "fairseq_patches/test_processes.py",
    "refuse_second_copy": "test_registration.py",
    "start_training_with_checks": "fairseq_patches/test_processes.py",
    "send_checkpoints_to_all_processes": "fairseq_patches/test_loading.py",
    "stop_loading_batches_at_exit": "fairseq_patches/test_processes.py",
    "limit_waiting": "fairseq_patches/test_started_processes.py",
    "use_pytorch_ddp_without_gpus": "fairseq_patches/test_started_processes.py",
    "stop_at_loss_that_is_not_finite": "fairseq_patches/test_metrics.py",
    "define_every_correlation": "fairseq_patches/test_metrics.py",
}

# The options of fairseq that work: remarks, and the test.
WORKING = {
    "`--ddp-backend pytorch_ddp`, `c10d`, `legacy_ddp`, `no_c10d`": (
        "over gloo; see [pretraining.md](pretraining.md)",
        "end_to_end/test_fairseq_options.py::test_backends_of_distributed_training",
    ),
    "`--update-freq`": (
        "equals as many processes",
        "end_to_end/test_torchrun.py::test_two_processes_that_accumulate_train_as_one",
    ),
    "`--store-ema`, `--ema-decay`, `--ema-fp32`, `--ema-update-freq`": (
        "resuming is exact; see [pretraining.md](pretraining.md#averaged-weights)",
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
        "end_to_end/test_fairseq_options.py::test_long_lines_of_fairseqs_own_task_are_named_before_training",
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
        "training ends well",
        "end_to_end/test_fairseq_options.py::test_training_ends_well",
    ),
}
TESTS_OF_REFUSALS = {
    "is_refused": "fairseq_patches/test_parsing.py::test_an_option_is_refused_in_one_message",
    "is_refused_data": "text/test_data_bin.py::test_other_formats_of_fairseq_are_refused",
    "is_unknown": "fairseq_patches/test_parsing.py::test_options_of_other_models_are_unknown",
}


# ---------------------------------------------------------------------------------------------------------- recipes.md

RECIPES_PAGE = """\
# Recipes

The pretraining settings that the papers and their public code state, and the settings that `mae-lm pretrain` uses.
[pretraining.md](pretraining.md) describes how to train with them.

`scripts/write_docs.py` generates this page from `mae_lm_fairseq/training/stated.py`; edit that file, not this page.
Every value has a source. "Not found" means that no public source states the value.
"""

RECIPES_USED = """\
## Settings of `mae-lm pretrain`

- `mae-lm pretrain PRESET DATA_BIN SAVE_DIR --recipe NAME` selects a recipe. Without it, the preset's size decides.
- Presets of one size therefore differ in `--arch` only, so a comparison compares architectures. The exception is
  `mae_lm_3ml_*`, which also uses 3ML's masking rate.
- `mae_lm_3ml_*` do not follow a recipe of 3ML's: no public source states how 3ML was optimised. Here 3ML masks with
  `<mask>` only.
- We infer that the paper's base is as long as BERT's pretraining. `base++` and `large++` are the authors' script, which
  is sixteen times as long and has no separate settings for large.
- `academic` is the budget that several papers on efficient pretraining share. Its learning rate is this project's
  choice for layer norms after the sublayers, and untested.
- `fairseq` is fairseq's recipe for RoBERTa base; [pretraining.md](pretraining.md#roberta) has the command.

Batches with one process; more processes accumulate fewer:
"""


def _in_words(cell: Cell) -> str:
    if cell.words is not None:
        return cell.words
    if cell.value is None:
        return NOT_FOUND
    if isinstance(cell.value, float) and 0 < cell.value < 0.01:
        mantissa, exponent = f"{cell.value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{cell.value:,}" if isinstance(cell.value, int) else str(cell.value)


def _stated_settings() -> str:
    numbers = {source: number for number, source in enumerate(SOURCES, start=1)}
    rows = []
    for row, description in ROWS.items():
        cells = [column[row] for column in STATED.values()]
        marks = [f" [{numbers[cell.source]}]" if cell.source else "" for cell in cells]
        rows.append([description, *(_in_words(cell) + mark for cell, mark in zip(cells, marks, strict=True))])
    sources = "\n".join(f"{number}. {SOURCES[source]}" for source, number in numbers.items())
    return f"{markdown_table(['', *STATED], rows)}\n\nSources:\n\n{sources}\n"


def _used_settings() -> str:
    rows = []
    for name in RECIPES:
        sizes = [size for size in SIZES if RECIPE_OF_SIZE[size] == name]
        architecture = f"mae_lm_{sizes[0] if sizes else 'base'}"
        value = {row: cell.value for row, cell in recipe(architecture, name).items()}
        batch_size = settings(architecture, name)["dataset"]["batch_size"]
        amount = Amount(
            batch_size=batch_size,
            accumulated=value["sequences"] // batch_size,
            processes=1,
            tokens=value["tokens"],
            updates=value["updates"],
        )
        rows.append([f"`{name}`", ", ".join(sizes), amount.describe()])
    return markdown_table(["recipe", "default of size", "per update, and in all"], rows) + "\n"


def recipes() -> str:
    """Return the content of docs/recipes.md."""
    return f"{RECIPES_PAGE}\n## Stated settings\n\n{_stated_settings()}\n{RECIPES_USED}\n{_used_settings()}"


# ---------------------------------------------------------------------------------------------------------- options.md


def options() -> str:
    """Return the text of docs/options.md."""
    import mae_lm_fairseq

    mae_lm_fairseq.register()
    from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
    from mae_lm_fairseq.finetuning.squad.task import QuestionAnsweringConfig
    from mae_lm_fairseq.finetuning.tagging.task import TokenClassificationConfig
    from mae_lm_fairseq.models.architectures import MAELMModelConfig
    from mae_lm_fairseq.optim.fused_adamw import FusedAdamWConfig
    from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMConfig

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
    )


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
    from mae_lm_fairseq.core.config import SIZES, MaskedAutoencoderConfig

    base = MaskedAutoencoderConfig()
    names = [option.name for option in fields(base) if any(option.name in values for values in SIZES.values())]
    rows = [
        [f"`--{name.replace('_', '-')}`", *(_value(values.get(name, getattr(base, name))) for values in SIZES.values())]
        for name in names
    ]
    return markdown_table(["option", *SIZES], rows)


def patches() -> str:
    """Return the text of docs/fairseq-patches.md."""
    from mae_lm_fairseq import fairseq_patches

    [versions] = re.findall(r"fairseq-fixed [\d.]+ and torch [\d.]+ to [\d.]*\d", fairseq_patches.__doc__)
    rows = [_patch_row(patch) for patch in _patches(fairseq_patches.apply)]
    table = markdown_table(["patch", "purpose", "replaces", "test"], rows)
    return PATCHES.format(versions=versions, patches=table)


def _patches(apply: Callable) -> list[FunctionType]:
    """Return the patches in the order in which ``apply`` lists them."""
    [loop] = [node for node in ast.walk(_syntax(apply)) if isinstance(node, ast.For)]
    names = [(element.value.id, element.attr) for element in loop.iter.elts]
    return [getattr(importlib.import_module(f"{apply.__module__}.{module}"), patch) for module, patch in names]


def _patch_row(patch: FunctionType) -> list[str]:
    file, test = f"{patch.__module__.replace('.', '/')}.py", TESTS[patch.__name__]
    targets = [f"`{target}`" for target in _targets(patch)]
    purpose = inspect.cleandoc(patch.__doc__).split("\n\n")[0]
    return [
        f"[{patch.__name__}](../{file})",
        " ".join(purpose.replace("``", "`").split()),
        ", ".join(targets) or "nothing; it registers a function to run at exit",
        f"[{test}](../tests/{test})",
    ]


def _targets(patch: FunctionType) -> list[str]:
    """Return the names that a patch replaces: ``wrap(owner, "name", ...)`` and ``owner.name = ...``."""
    targets = []
    for node in ast.walk(_syntax(patch)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "wrap":
            targets.append(f"{_owner(patch, node.args[0])}.{node.args[1].value}")
        elif isinstance(node, ast.Assign):
            targets += [f"{_owner(patch, to.value)}.{to.attr}" for to in node.targets if isinstance(to, ast.Attribute)]
    return targets


def _owner(patch: FunctionType, node: ast.expr) -> str:
    owner = eval(ast.unparse(node), patch.__globals__)
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _syntax(function: Callable) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def fairseq_options() -> str:
    """Return the text of docs/fairseq-options.md."""
    import mae_lm_fairseq

    mae_lm_fairseq.register()
    from mae_lm_fairseq.fairseq_patches.option_checks import CHECKS

    works = [[option, remark, _test(name)] for option, (remark, name) in WORKING.items()]
    refused = [[f"`{check.option}`", re.sub(r"\{.*?\}", "...", check.reason)] for check in CHECKS]
    return FAIRSEQ_OPTIONS.format(
        works=markdown_table(["option", "remark", "test"], works),
        refused=markdown_table(["option", "message"], refused),
        **{name: _test(test) for name, test in TESTS_OF_REFUSALS.items()},
    )


def _test(name: str) -> str:
    """Return a link to a test, given as ``FILE::NAME``.

    Raises:
        ValueError: if it does not exist.
    """
    path, function = name.split("::")
    if f"def {function}(" not in (ROOT / "tests" / path).read_text(encoding="utf-8"):
        raise ValueError(f"tests/{path} has no test {function}")
    return f"[{function}](../tests/{path})"


# ---------------------------------------------------------------------------------------------------------------- pages


def pages() -> dict[str, str]:
    """Return the text of every generated page by its path in docs/."""
    sys.path.insert(0, str(ROOT))  # tests/ is not installed
    from tests.fault_injection import report as robustness

    return {
        "recipes.md": recipes(),
        "options.md": options(),
        "fairseq-options.md": fairseq_options(),
        "fairseq-patches.md": patches(),
        "results/robustness.md": robustness.document(),
    }


def main() -> None:
    """Write all of them."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
