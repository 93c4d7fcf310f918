"""Both papers' comparison at a chosen scale: pretraining, ranks, fine-tuning; ``scripts/reproduce.py``.

Two tables of runs for the one runner: pretraining of every variant with every seed, on the same text for the same
number of updates, and fine-tuning of the checkpoints that it leaves, with one recipe. What is compared at equal time
is read off the same runs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mae_lm_fairseq.analysis.effective_rank import MEASURES
from mae_lm_fairseq.analysis.rank_profile import RankSettings, rank_profile
from mae_lm_fairseq.downstream.glue import run as glue
from mae_lm_fairseq.downstream.glue.files import read_split
from mae_lm_fairseq.downstream.glue.tasks import TASKS, Task
from mae_lm_fairseq.downstream.sweep import LAST, Origin, best_checkpoint, origin_of, tidy
from mae_lm_fairseq.experiments import inspection, quickstart
from mae_lm_fairseq.experiments.preset_comparison import COMMON_MASKING, Variant
from mae_lm_fairseq.experiments.ranks import open_model
from mae_lm_fairseq.experiments.scales import SCALES, Scale
from mae_lm_fairseq.recipes.training_command import check_data, training_command
from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.pretrained_tokenizer import open_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.runner import Run, claim, run_all, updates_done
from mae_lm_fairseq.utils.training_log import seconds_per_update
from mae_lm_fairseq.utils.versions import machine, versions

MLM, MAE_LM, THREE_ML = "RoBERTa preset", "MAE-LM", "3ML-self, 50 % masked"
HEADLINES = (MLM, MAE_LM, THREE_ML)
"""What is compared at equal updates and at equal time."""
FRACTIONS = {0.5: "MAE-LM, half of the [MASK]s in the encoder", 1.0: "MAE-LM, all [MASK]s in the encoder"}
"""Figure 4: the fraction of ``[MASK]`` that the encoder sees. Of none it is MAE-LM."""


NEIGHBOURS = Task(
    "neighbours",
    columns=("sentence1", "sentence2"),
    label_column="label",
    labels=("neighbours", "strangers"),
    hub_columns=("sentence1", "sentence2"),
    metrics=("accuracy",),
    rows={"train": 2000, "dev": 400, "test": 2},
)
"""Stands in for a task of GLUE where there is no copy of it: whether two lines stand beside each other in the text."""


@dataclass(frozen=True)
class Data:
    """What the models are trained on.

    Attributes:
        pretraining: the data-bin.
        task: that they are fine-tuned on.
        glue: directory with that task in GLUE's layout.
    """

    pretraining: Path
    task: Task
    glue: Path

    def described(self) -> dict[str, str]:
        """In words, to recognise it by."""
        places = {"data-bin": self.pretraining, "GLUE directory": self.glue}
        return {"task": self.task.name} | {name: str(path.resolve()) for name, path in places.items()}


def reproduce(name: str, out: Path, given: Data | None = None, jobs: int = 2) -> dict:
    """Do, or go on with, all runs of a scale.

    Args:
        name: of the scale.
        out: where everything goes.
        given: the user's data; made here from docstrings where it is None.
        jobs: runs at the same time, one thread each.

    Returns:
        What ``results.json`` holds.

    Raises:
        UserError: a run failed, or ``out`` was used with other options, or on another machine: times are compared.
    """
    scale = SCALES[name]
    claim(out, {"scale": name, "jobs": jobs, "machine": machine(), **(given.described() if given else {})})
    data = given or make_data(out, scale)
    first = pretraining_runs(out, data, scale)
    print(f"[1/2] Pretraining: {len(first)} runs", flush=True)
    pretrained = run_all(first, jobs=jobs)
    runs = finetuning_runs(out, data, scale)
    print(f"[2/2] Fine-tuning on {data.task.name}: {len(runs)} runs", flush=True)
    finetuned = run_all(list(runs.values()), jobs=jobs)
    tidy(list(runs.values()))
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
    """What is pretrained, by its title."""
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
    """Title and seed of every run of pretraining, the headlines first."""
    return [
        (title, seed)
        for title in variants(scale)
        for seed in range(1, 1 + (scale.rank_seeds if title in (MLM, MAE_LM) else scale.seeds))
    ]


def stops(scale: Scale, title: str = MLM) -> list[int]:
    """The numbers of updates after which a variant is measured and fine-tuned: of the fractions only the end."""
    equidistant = [scale.updates * number // scale.checkpoints for number in range(1, scale.checkpoints + 1)]
    return equidistant[-1:] if title in FRACTIONS.values() else equidistant


def pretraining_runs(out: Path, data: Data, scale: Scale) -> list[Run]:
    """One for each of :func:`trained`."""
    return [_pretraining_run(out, data, scale, variants(scale)[title], seed) for title, seed in trained(scale)]


def finetuning_runs(out: Path, data: Data, scale: Scale) -> dict[tuple[str, int, int], Run]:
    """By title, seed and updates of pretraining: all checkpoints of the headlines, the last one of the fractions.

    Of the seeds that are there for the ranks alone it is the last one, too. Fine-tuning has the seed of pretraining.
    """
    chosen = [
        (title, seed, updates)
        for title, seed in trained(scale)
        for updates in stops(scale, title)
        if seed <= scale.seeds or updates == scale.updates
    ]
    first = origin_of(_checkpoint(out, scale, *chosen[0]))
    tokenizer = open_tokenizer(data.pretraining, first.checkpoint, first.dictionary)
    prepared = glue.prepared(_finetuning(out, data, scale, first), tokenizer, first.max_positions)
    return {key: _finetuning_run(out, data, scale, prepared, *key) for key in chosen}


def make_data(out: Path, scale: Scale) -> Data:
    """Docstrings as text, and the task that stands in for GLUE's, made of the same text."""
    out.mkdir(parents=True, exist_ok=True)
    quickstart.make_text(out, scale.text, None)
    texts = ((out / "text" / name).read_text(encoding="utf-8").split("\n") for name in ("train.txt", "valid.txt"))
    rows = write_neighbours(*texts, out / "task" / NEIGHBOURS.name)
    return Data(quickstart.prepare(out, scale.text), replace(NEIGHBOURS, rows=rows), out / "task")


def write_neighbours(train: Sequence[str], valid: Sequence[str], directory: Path) -> dict[str, int]:
    """Write :data:`NEIGHBOURS` in GLUE's layout: half of the pairs are consecutive lines.

    Args:
        train: lines of the text of pretraining.
        valid: lines of other text, of which the development and the test set are made.
        directory: where the sets go.

    Returns:
        The number of rows of each set, which is lower than the task's where there are fewer lines.
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
    """Consecutive lines that a table can hold."""
    pairs = [(a, b) for a, b in pairwise(lines) if a.strip() and b.strip() and "\t" not in a + b]
    generator.shuffle(pairs)
    return pairs


def given_data(data_bin: Path, glue_dir: Path, task: str) -> Data:
    """The user's own.

    Raises:
        UserError: something that will be needed is not there.
    """
    check_data(data_bin)
    if not (data_bin / TOKENIZER).is_file():
        raise UserError(f"{data_bin} has no {TOKENIZER}, with which to prepare {task}")
    for official in TASKS[task].splits.values():
        rows = read_split(TASKS[task], glue_dir, official)
        if rows.malformed:
            raise UserError(f"{rows.path}: {len(rows.malformed)} malformed rows: {rows.describe_malformed()}; mend it")
    return Data(data_bin, TASKS[task], glue_dir)


def _folder(out: Path, title: str, seed: int) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in title)
    return out / "pretraining" / f"{name}-{seed}"


def _checkpoint(out: Path, scale: Scale, title: str, seed: int, updates: int) -> Path:
    """The checkpoint after some updates.

    Raises:
        UserError: fairseq kept none, because that was the end of an epoch.
    """
    folder = _folder(out, title, seed) / "checkpoints"
    if updates == scale.updates:
        return folder / "checkpoint_last.pt"
    for path in folder.glob(f"checkpoint_*_{updates}.pt"):
        return path
    raise UserError(f"{folder} has no checkpoint of update {updates}, the end of an epoch: give other text")


def _pretraining_run(out: Path, data: Data, scale: Scale, variant: Variant, seed: int) -> Run:
    folder = _folder(out, variant.title, seed)
    every = stops(scale)[0]
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
        for updates in stops(scale, variant.title):
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
    """The first samples of the validation text, with about so many tokens."""
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
    """The ranks of an encoder on texts, layer by layer, for some inputs or for all that differ for it."""
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
        # The last one, as the best ones of different models are fine-tuned for different times.
        last = best_checkpoint(run).with_name(LAST)
        ranks = _ranks(last, data, _texts(task, scale.rank_tokens), inputs=("clean",))
        return scored.read_result(run) | {"ranks": ranks}

    is_ranked = title in (MLM, MAE_LM) and updates == scale.updates
    name = f"{title}, seed {seed}, after {updates:,} updates"
    return replace(scored, name=name, read_result=with_ranks if is_ranked else scored.read_result)


def _by_key(keys, results: Sequence[dict]) -> list[dict]:
    """Results with what they belong to."""
    names = ("variant", "seed", "updates")
    return [dict(zip(names, key, strict=False)) | result for key, result in zip(keys, results, strict=True)]
