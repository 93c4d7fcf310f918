"""Reproduction of both papers' comparisons at a chosen scale: pretraining, ranks and fine-tuning.

``mae-lm reproduce`` uses this module. There are two sets of runs: every variant is pretrained with every seed, on
the same text for the same number of updates, and the resulting checkpoints are fine-tuned with one recipe. The
comparison at equal time uses the same runs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mae_lm_fairseq.analysis.effective_rank import MEASURES
from mae_lm_fairseq.analysis.rank_profile import RankSettings, rank_profile
from mae_lm_fairseq.downstream.glue import run as glue
from mae_lm_fairseq.downstream.glue.files import fingerprints, read_split
from mae_lm_fairseq.downstream.glue.tasks import TASKS, Task
from mae_lm_fairseq.downstream.sweep import LAST, Origin, best_checkpoint, origin_of
from mae_lm_fairseq.experiments import inspection, quickstart
from mae_lm_fairseq.experiments.preset_comparison import COMMON_MASKING, Variant
from mae_lm_fairseq.experiments.readers import open_model
from mae_lm_fairseq.experiments.scales import SCALES, Scale
from mae_lm_fairseq.recipes.training_command import check_data, training_command
from mae_lm_fairseq.text.manifest import fingerprint
from mae_lm_fairseq.text.pretrained_tokenizer import open_tokenizer
from mae_lm_fairseq.text.tokenizer_files import NAMES, TOKENIZER_FILES
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.runner import Run, reserve, run_all, updates_done
from mae_lm_fairseq.utils.signals import signals_as_errors
from mae_lm_fairseq.utils.training_log import seconds_per_update
from mae_lm_fairseq.utils.versions import machine, versions

MLM, MAE_LM, THREE_ML = "RoBERTa preset", "MAE-LM", "3ML-self, 50 % masked"
HEADLINES = (MLM, MAE_LM, THREE_ML)
"""Variants that are compared at equal updates and at equal time."""
FRACTIONS = {0.5: "MAE-LM, half of the [MASK]s in the encoder", 1.0: "MAE-LM, all [MASK]s in the encoder"}
"""Figure 4: the fraction of ``[MASK]`` tokens that the encoder sees. The fraction 0 is MAE-LM."""


NEIGHBOURS = Task(
    "neighbours",
    columns=("sentence1", "sentence2"),
    label_column="label",
    labels=("neighbours", "strangers"),
    hub_columns=("sentence1", "sentence2"),
    metrics=("accuracy",),
    rows={"train": 2000, "dev": 400, "test": 2},
)
"""Substitute for a GLUE task if no copy of GLUE is given: whether two lines are consecutive in the text."""


@dataclass(frozen=True)
class Data:
    """Data for pretraining and fine-tuning.

    Attributes:
        pretraining: the data-bin.
        task: the task for fine-tuning.
        glue: directory with that task in GLUE's layout.
    """

    pretraining: Path
    task: Task
    glue: Path

    def described(self) -> dict[str, str]:
        """Return hashes that identify the data, of the data-bin's manifest and of the task's files."""
        files = {f"{name} file": content for name, content in fingerprints(self.task, self.glue).items()}
        return {"task": self.task.name, "data": fingerprint(self.pretraining), **files}


def reproduce(name: str, out: Path, given: Data | None = None, jobs: int = 2) -> dict:
    """Run, or resume, all runs of a scale.

    Args:
        name: name of the scale.
        out: output directory.
        given: the user's data; None to create data from docstrings.
        jobs: number of parallel runs, with one thread each.

    Returns:
        The content of ``results.json``.

    Raises:
        UserError: if a run failed, or ``out`` was used with other options or on another machine (times are compared).
        Interrupted: if the program receives SIGINT or SIGTERM.
    """
    scale = SCALES[name]
    options = {"scale": name, "jobs": jobs, "machine": machine(), **(given.described() if given else {})}
    reserve(out, options, owned=() if given else (*quickstart.DATA, "task"))
    with signals_as_errors():  # SIGTERM would leave unfinished data
        data = given or make_data(out, scale)
    first = pretraining_runs(out, data, scale)
    print(f"[1/2] Pretraining: {len(first)} runs", flush=True)
    pretrained = run_all(first, jobs=jobs)
    runs = finetuning_runs(out, data, scale)
    print(f"[2/2] Fine-tuning on {data.task.name}: {len(runs)} runs", flush=True)
    finetuned = run_all(list(runs.values()), jobs=jobs)
    content = {
        "scale": name,
        "task": data.task.name,
        "versions": versions(),
        "machine": machine(),
        "jobs": jobs,
        "pretraining": _by_key(trained(scale), pretrained),
        "finetuning": _by_key(runs, finetuned),
    }
    write_json(out / "results.json", content)
    return content


def variants(scale: Scale) -> dict[str, Variant]:
    """Return the variants to pretrain, by title."""
    mae_lm = f"mae_lm_{scale.size}"
    return {
        MLM: Variant(MLM, f"mae_lm_roberta_{scale.size}"),
        MAE_LM: Variant(MAE_LM, mae_lm),
        THREE_ML: Variant(THREE_ML, f"mae_lm_3ml_self_{scale.size}"),
        **{
            title: Variant(title, mae_lm, ("--mask-in-encoder", str(fraction))) for fraction, title in FRACTIONS.items()
        },
    }


def trained(scale: Scale) -> list[tuple[str, int]]:
    """Return title and seed of every pretraining run, the headlines first."""
    return [
        (title, seed)
        for title in variants(scale)
        for seed in range(1, 1 + (scale.rank_seeds if title in (MLM, MAE_LM) else scale.seeds))
    ]


def checkpoint_updates(scale: Scale, title: str = MLM) -> list[int]:
    """Return the update counts at which a variant is evaluated and fine-tuned: for :data:`FRACTIONS`, only the last."""
    equidistant = [scale.updates * number // scale.checkpoints for number in range(1, scale.checkpoints + 1)]
    return equidistant[-1:] if title in FRACTIONS.values() else equidistant


def pretraining_runs(out: Path, data: Data, scale: Scale) -> list[Run]:
    """Return a run for each item of :func:`trained`."""
    return [_pretraining_run(out, data, scale, variants(scale)[title], seed) for title, seed in trained(scale)]


def finetuning_runs(out: Path, data: Data, scale: Scale) -> dict[tuple[str, int, int], Run]:
    """Return the runs by title, seed and number of pretraining updates.

    They fine-tune all checkpoints of the headlines, and the last one of the fractions and of the seeds that are used
    only for ranks. The seed of fine-tuning is that of pretraining.
    """
    chosen = [
        (title, seed, updates)
        for title, seed in trained(scale)
        for updates in checkpoint_updates(scale, title)
        if seed <= scale.seeds or updates == scale.updates
    ]
    first = origin_of(_checkpoint(out, scale, *chosen[0]))
    tokenizer = open_tokenizer(data.pretraining, first.checkpoint, first.dictionary)
    prepared = glue.prepared(_finetuning(out, data, scale, first), tokenizer, first.max_positions)
    return {key: _finetuning_run(out, data, scale, prepared, *key) for key in chosen}


def make_data(out: Path, scale: Scale) -> Data:
    """Create text from docstrings, and the substitute for a GLUE task from the same text."""
    out.mkdir(parents=True, exist_ok=True)
    quickstart.make_text(out, scale.text, None)
    texts = ((out / "text" / name).read_text(encoding="utf-8").split("\n") for name in ("train.txt", "valid.txt"))
    rows = write_neighbours(*texts, out / "task" / NEIGHBOURS.name)
    return Data(quickstart.prepare(out, scale.text), replace(NEIGHBOURS, rows=rows), out / "task")


def write_neighbours(train: Sequence[str], valid: Sequence[str], directory: Path) -> dict[str, int]:
    """Write :data:`NEIGHBOURS` in GLUE's layout: half of the pairs are consecutive lines.

    Args:
        train: lines of the pretraining text.
        valid: lines of other text, for the development and test sets.
        directory: output directory.

    Returns:
        The number of rows of each set, which is below the task's if the text has fewer lines.
    """
    generator = random.Random(1)
    tested = _shuffled_pairs(valid, generator)
    count = NEIGHBOURS.rows["test"]
    sets = {"train": _shuffled_pairs(train, generator), "dev": tested[count:], "test": tested[:count]}
    directory.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, pairs in sets.items():
        header = ["index", *NEIGHBOURS.columns, NEIGHBOURS.label_column][: 3 if split == "test" else 4]
        rows = [header]
        for number, (first, second) in enumerate(pairs[: NEIGHBOURS.rows[split]]):
            label = generator.choice(NEIGHBOURS.labels)
            second = second if label == NEIGHBOURS.labels[0] else pairs[number - 1][1]
            rows.append([str(number), first, second, label][: len(header)])
        written[split] = len(rows) - 1
        (directory / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return written


def _shuffled_pairs(lines: Sequence[str], generator: random.Random) -> list[tuple[str, str]]:
    """Return consecutive lines that fit into a TSV file, shuffled."""
    pairs = [(a, b) for a, b in pairwise(lines) if a.strip() and b.strip() and "\t" not in a + b]
    generator.shuffle(pairs)
    return pairs


def given_data(data_bin: Path, glue_dir: Path, task: str) -> Data:
    """Return the user's own data.

    Raises:
        UserError: if a required file is missing or malformed.
    """
    check_data(data_bin)
    if not any((data_bin / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(f"{data_bin} has no {NAMES}, which is needed to prepare {task}")
    for official in TASKS[task].splits.values():
        rows = read_split(TASKS[task], glue_dir, official)
        if rows.malformed:
            raise UserError(
                f"{rows.path}: {len(rows.malformed)} malformed rows: {rows.describe_malformed()}; fix the file"
            )
    return Data(data_bin, TASKS[task], glue_dir)


def _folder(out: Path, title: str, seed: int) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in title)
    return out / "pretraining" / f"{name}-{seed}"


def _checkpoint(out: Path, scale: Scale, title: str, seed: int, updates: int) -> Path:
    """Return the checkpoint after a number of updates; raises as :func:`inspection.checkpoint_after`."""
    folder = _folder(out, title, seed) / "checkpoints"
    if updates == scale.updates:
        return folder / "checkpoint_last.pt"
    return inspection.checkpoint_after(folder, updates)


def _pretraining_run(out: Path, data: Data, scale: Scale, variant: Variant, seed: int) -> Run:
    folder = _folder(out, variant.title, seed)
    every = checkpoint_updates(scale)[0]
    options = ("--seed", str(seed), "--keep-interval-updates", "-1", "--disable-validation")
    options += ("--log-interval", str(min(10, every)))
    command = training_command(
        variant.architecture,
        data.pretraining,
        folder / "checkpoints",
        scale.updates,
        scale.warmup,
        every,
        *variant.options,
        *options,
    )

    def read_result(run: Run) -> dict:
        pace = seconds_per_update(run.log)
        found = []
        for updates in checkpoint_updates(scale, variant.title):
            checkpoint = _checkpoint(out, scale, variant.title, seed, updates)
            model, task = inspection.load(checkpoint, data.pretraining, **COMMON_MASKING)
            loss = round(inspection.masked_loss(model, task), 4)
            found.append({"updates": updates, "seconds": round(updates * pace, 1), "valid_loss": loss})
        is_ranked = variant.title in (MLM, MAE_LM)
        ranks = _ranks(checkpoint, data, _texts(task, scale.rank_tokens)) if is_ranked else None
        return {"checkpoints": found, "ranks": ranks}

    return Run(
        f"{variant.title}, seed {seed}", command, folder / "result.json", read_result, updates_done(scale.updates)
    )


def _texts(task, tokens: int) -> list[list[int]]:
    """Return the first sequences of the validation text, with about the given number of tokens."""
    pad = task.source_dictionary.pad()
    texts, count = [], 0
    for batch in inspection.clean_batches(task):
        for row in batch:
            texts.append(row[row.ne(pad)].tolist())
            count += len(texts[-1])
        if count >= tokens:
            break
    return texts


def _ranks(checkpoint: Path, data: Data, texts: list[list[int]], inputs: tuple[str, ...] | None = None) -> dict:
    """Return the ranks of an encoder by layer, for the given inputs or for all that differ for this encoder."""
    reader = open_model(checkpoint, data.pretraining)
    reader.states.inputs = inputs or reader.states.inputs
    profile = rank_profile(reader.states, texts, reader.special, RankSettings(bootstrap=2))
    rows = [{name: row[name] for name in ("layer", "input", "tokens", "count", *MEASURES)} for row in profile["ranks"]]
    return {name: profile[name] for name in ("width", "layers", "tokens")} | {"rows": rows}


def _finetuning(out: Path, data: Data, scale: Scale, origin: Origin) -> glue.Options:
    return glue.Options(
        task=data.task,
        glue_dir=data.glue,
        checkpoint=origin.checkpoint,
        tokenizer=data.pretraining,
        out=out / "finetuning",
        learning_rates=(scale.learning_rate,),
        max_updates=scale.finetuning_updates,
    )


def _finetuning_run(
    out: Path, data: Data, scale: Scale, prepared: tuple[Path, dict], title: str, seed: int, updates: int
) -> Run:
    pretrained = _checkpoint(out, scale, title, seed, updates)
    origin = origin_of(pretrained)
    sweep = glue.make_sweep(data.task, _finetuning(out, data, scale, origin), origin, *prepared)
    folder = out / "finetuning" / f"{_folder(out, title, seed).name}-{updates}"
    [scored] = replace(sweep, out=folder.resolve(), seeds=[seed]).runs()

    def with_ranks(run: Run) -> dict:
        _, task = inspection.load(pretrained, data.pretraining, **COMMON_MASKING)
        # The last checkpoint, because the best ones of different models were fine-tuned for different numbers of
        # updates.
        last = best_checkpoint(run).with_name(LAST)
        ranks = _ranks(last, data, _texts(task, scale.rank_tokens), inputs=("clean",))
        return scored.read_result(run) | {"ranks": ranks}

    is_ranked = title in (MLM, MAE_LM) and updates == scale.updates
    name = f"{title}, seed {seed}, after {updates:,} updates"
    return replace(scored, name=name, read_result=with_ranks if is_ranked else scored.read_result)


def _by_key(keys, results: Sequence[dict]) -> list[dict]:
    """Return the results together with their keys."""
    names = ("variant", "seed", "updates")
    return [dict(zip(names, key, strict=False)) | result for key, result in zip(keys, results, strict=True)]
