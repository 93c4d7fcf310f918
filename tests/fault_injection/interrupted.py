"""Commands that are killed at each call that renames, removes or creates a name, or waits for the disk.

After a kill, what is visible must be complete, old or new, and the same command must end as if nothing had happened,
with nothing left over.
"""

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib.backends.backend_agg  # noqa: F401  once, not in each child
import torch

from mae_lm_fairseq.finetuning import sweep
from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import TaggingOptions
from mae_lm_fairseq.study.engine import begin, collect
from mae_lm_fairseq.study.report import write_report
from mae_lm_fairseq.study.run_files import read_training, remove_checkpoints
from mae_lm_fairseq.text import parts
from mae_lm_fairseq.text.data_bin import TOKENIZER, check_data_bin
from mae_lm_fairseq.text.manifest import MANIFEST
from mae_lm_fairseq.text.preparation import prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.trained.averaging import average
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.checkpoint_file import save_checkpoint
from mae_lm_fairseq.trained.conversion import read_training_state
from mae_lm_fairseq.trained.file_checks import compared_files
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.reading import read_bundle
from mae_lm_fairseq.training.keys import MADE, Products
from mae_lm_fairseq.training.runner import Run, _execute
from mae_lm_fairseq.utils.directories import write_results
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json, read_record, write_json, write_record, write_text
from mae_lm_fairseq.utils.locks import LOCK
from tests.fault_injection.models import small_model
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.studies import finish_training, plan_of_two_models
from tests.fault_injection.training import Workplace, prepare_to_fork
from tests.support import tagging
from tests.support.exports import WITHOUT_BIAS
from tests.support.finetuning import SHAPE, run_here

CALLS = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "fsync")
"""Functions of ``os`` before whose calls a process is killed."""
SECONDS = 300


@dataclass(frozen=True)
class Case:
    """A command to kill.

    Attributes:
        name: what is killed.
        run: the command; the working directory is a new one.
        prepare: writes what is there before.
        problem: returns what is wrong with what is visible after a kill, or None.
        ignored: endings of names whose content may differ, such as of logs.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    problem: Callable[[], str | None] = lambda: None
    ignored: tuple[str, ...] = ()

    def tree(self) -> dict[str, str]:
        """Return the hashes of the files in the working directory by name, and the names of its directories."""
        hashes = {}
        for path in Path().rglob("*"):
            if path.name == LOCK:  # it may stay behind, and does no harm
                continue
            content = b"" if path.is_dir() or path.name.endswith(self.ignored) else path.read_bytes()
            hashes[str(path)] = hashlib.sha256(content).hexdigest()
        return hashes


def killed_commands(place: Workplace, times: int) -> Iterator[Row]:
    """Kill each command at up to ``times`` of its calls, spread evenly; the last one has all of them."""
    prepare_to_fork()
    for case in cases(place):
        row = Row(
            f"SIGKILL before a call of {', '.join(CALLS)}: {case.name}",
            "what is visible is complete; the same command ends as if undisturbed, and nothing is left over",
        )
        directory = place.directory / f"case-{len(os.listdir(place.directory))}"
        expected, calls = undisturbed(case, directory)
        for number in range(1, calls + 1, max(1, calls // times)):
            row.record(killed_at(case, directory, number, expected))
        yield row


def undisturbed(case: Case, directory: Path) -> tuple[dict[str, str], int]:
    """Run a command in a new directory; return the files there, and the number of its calls."""
    with _new_working_directory(directory):
        case.prepare()
        counted = directory.with_name("calls")
        code = _in_child(case.run, sys.maxsize, counted)
        if code:
            raise RuntimeError(f"{case.name} ended with exit code {code}")
        return case.tree(), int(counted.read_text())


def killed_at(case: Case, directory: Path, number: int, expected: dict[str, str]) -> str | None:
    """Kill a command at its N-th call, and start it again; return what is wrong, or None."""
    with _new_working_directory(directory):
        case.prepare()
        code = _in_child(case.run, number)
        if code != -signal.SIGKILL:
            return f"call {number}: not killed, exit code {code}"
        if problem := case.problem():
            return f"call {number}: after the kill, {problem}"
        if code := _in_child(case.run, sys.maxsize):
            return f"call {number}: the same command ends with exit code {code}"
        hashes = case.tree()
        names = {name for name in hashes.keys() | expected.keys() if hashes.get(name) != expected.get(name)}
        return f"call {number}: other or missing files: {sorted(names)}" if names else None


@contextlib.contextmanager
def _new_working_directory(directory: Path) -> Iterator[None]:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with contextlib.chdir(directory):
        yield


def _in_child(action: Callable[[], object], last: int, counted: Path | None = None) -> int:
    """Run an action in a forked process that kills itself before a call of :data:`CALLS`; return the exit code.

    Args:
        last: number of the call.
        counted: file for the number of calls.
    """
    process = multiprocessing.get_context("fork").Process(target=_run, args=(action, last, counted))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    return process.exitcode


def _run(action: Callable[[], object], last: int, counted: Path | None) -> None:
    calls = 0

    def counting(function: Callable) -> Callable:
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for name in CALLS:
        setattr(os, name, counting(getattr(os, name)))
    action()
    if counted is not None:
        counted.write_text(str(calls))


# ------------------------------------------------------------------------------------------------------------- cases


def cases(place: Workplace) -> Iterator[Case]:
    """Yield the commands."""
    directory = place.directory.absolute()
    pretrained = small_model(place, "mae_lm_roberta", **WITHOUT_BIAS)
    model = directory / "tokenizer" / TOKENIZER  # of the model
    text = "\n\n".join(["a cat sat on a mat"] * 30)
    for split in ("train", "valid"):
        (directory / f"{split}.txt").write_text(text, encoding="utf-8")
    splits = tuple((str(directory / f"{split}.txt"),) for split in ("train", "valid"))
    for shards in (None, 2):
        options = PreparationOptions(
            *splits, Path("out"), tokenizer=str(model), max_unk_rate=1.0, workers=1, shards=shards
        )
        name = f"mae-lm prepare{' --shards 2' * bool(shards)}"
        yield Case(name, partial(_prepare, options), problem=partial(_data_bin_problem, options.data_bins))
    inside = PreparationOptions(*splits, Path("out"), tokenizer=f"out/{model.name}", max_unk_rate=1.0, workers=1)

    def put_tokenizer() -> None:
        Path("out").mkdir()
        shutil.copy(model, "out")

    name = "mae-lm prepare with a tokenizer in the output directory"
    yield Case(name, partial(_prepare, inside), put_tokenizer, partial(_data_bin_problem, inside.data_bins))
    yield Case("mae-lm bundle", partial(_bundle, pretrained), problem=_bundle_problem)
    yield Case("mae-lm export", partial(_export, pretrained))
    bundle = directory / "bundle"
    write_bundle(pretrained, bundle)
    checkpoint = directory / "checkpoint.pt"
    torch.save(read_training_state(bundle) | {"last_optimizer_state": {}}, checkpoint)
    yield Case("mae-lm average", partial(_average, checkpoint), partial(shutil.copy, checkpoint, "average.pt"))
    old, new = (partial(write_results, Path(), {"number": number}, f"{number}") for number in (1, 2))
    yield Case("results and report, over old ones", new, old, _results_problem)
    yield Case("products that other ones depend on", partial(_make_products, 2), partial(_make_products, 1))
    yield Case("the report of a study, over an old one", partial(_study, 2), partial(_study, 1), _study_problem)
    trained, logs = partial(_trained, checkpoint), (".log", "training-1.json")
    yield Case("the end of a training of a study", _end_training, trained, _training_problem, logs)
    finetuned = directory / "finetuned"
    finetuned.mkdir()
    with contextlib.chdir(finetuned):
        _write_words(finetuned / "words")
        if _in_child(partial(_finetune, finetuned / "words"), sys.maxsize):
            raise RuntimeError("fine-tuning has failed")
    copied = partial(_copy_with_another_model, finetuned / "out")
    name = "mae-lm finetune tagging, over the results of another model"
    yield Case(name, partial(_finetune, finetuned / "words"), copied, _finetuning_problem)


def _prepare(options: PreparationOptions) -> None:
    parts.PART_BYTES = 200
    with _refused_if_finished():
        prepare(options)


@contextlib.contextmanager
def _refused_if_finished() -> Iterator[None]:
    """Let a command refuse to write again what it had finished when it was killed."""
    try:
        yield
    except UserError as refusal:
        if "exists already" not in str(refusal):
            raise


def _data_bin_problem(data_bins: list[Path]) -> str | None:
    for directory in data_bins:
        if (directory / MANIFEST).exists():
            for split in ("train", "valid"):
                check_data_bin(directory / split)
            if problems := [problem for _, problem in compared_files(directory / MANIFEST) if problem]:
                return problems[0]
    return None


def _bundle(pretrained) -> None:
    with _refused_if_finished():
        write_bundle(pretrained, Path("bundle"), add_tokenizer_and_card)


def _bundle_problem() -> str | None:
    if Path("bundle").exists():
        read_bundle("bundle")
    return None


def _export(pretrained) -> None:
    with _refused_if_finished():
        export_stock(pretrained, Path("exported"))


def _average(checkpoint: Path) -> None:
    save_checkpoint(average([checkpoint, checkpoint]), Path("average.pt"))


def _results_problem() -> str | None:
    results, report = Path("results.json"), Path("report.md")
    if results.exists() and not report.exists():
        return "results without a report"
    if results.exists() and read_json(results)["number"] != int(report.read_text()):
        return "results and report differ"
    return None


def _make_products(number: int) -> None:
    products = Products(Path("out"), "a test", ())

    def write(path: Path) -> None:
        path.mkdir(exist_ok=True)
        write_json(path / "a.json", number)
        write_json(path / "b.json", number)

    products.make("data", number, write)
    products.make("kept", number, write, kept="parts")
    products.make("file.json", number, lambda path: write_json(path, number))


def _study(seeds: int) -> None:
    """Report a study whose trainings are finished, with a number of seeds from 2."""
    Path("data-bin").mkdir(exist_ok=True)
    out, plan = Path("out"), plan_of_two_models(seeds + 1, Path("data-bin"))
    out.mkdir(exist_ok=True)
    workspace = begin(plan, out, 1)
    for model in plan.models:
        for seed in model.all_seeds:
            if not workspace.training(model, None, seed).result(1).exists():
                finish_training(workspace, model, seed)
    collect(workspace)
    write_report(out, collect(workspace, is_reported=True))


def _study_problem() -> str | None:
    out = Path("out")
    if not (out / "report.md").exists():
        return None
    results, report = read_json(out / "results.json"), (out / "report.md").read_text()
    if f"seeds = {len(results['runs']) // 2}" not in report:
        return "the report is that of other results"
    if not (out / "results.csv").exists():
        return "the report has no results.csv"
    if "contrasts.png" in report and not (out / "contrasts.png").exists():
        return "the report has no contrasts.png"
    return None


def _trained(checkpoint: Path) -> None:
    Path("out/runs/run/checkpoints").mkdir(parents=True)
    state = torch.load(checkpoint, weights_only=True)
    state["optimizer_history"] = [{"num_updates": 1}]
    state["extra_state"] = {}
    torch.save(state, "out/runs/run/checkpoints/checkpoint_last.pt")


def _end_training() -> None:
    folder = Path("out/runs/run")
    save = folder / "checkpoints"
    read = partial(read_training, updates=1, save=save)
    _execute(Run("run", (), folder / "training-1.json", read, clean_up=partial(remove_checkpoints, folder=save)))


def _training_problem() -> str | None:
    folder = Path("out/runs/run")
    if not (folder / "checkpoints/checkpoint_last.pt").exists() and not (folder / "training-1.json").exists():
        return "neither checkpoint nor result is there"
    return None


def _write_words(directory: Path) -> None:
    tagging.write_tokenizer(directory / "data-bin")
    tagging.write_columns(directory / "train.conll", tagging.sentences(20))
    tagging.write_columns(directory / "dev.conll", tagging.sentences(6, seed=2))


def _finetune(words: Path) -> None:
    """Fine-tune, or use the runs that are finished."""
    sweep.run_all = run_here
    options = TaggingOptions(
        train=words / "train.conll",
        dev=words / "dev.conll",
        column="2",
        model=Path("mae_lm_tiny"),
        data_bin=words / "data-bin",
        out=Path("out"),
        seeds=1,
        learning_rates=(1e-3,),
        extra=(*map(str, SHAPE), "--max-update", "3", "--cpu"),
    )
    finetune(options)


def _copy_with_another_model(finished: Path) -> None:
    """Copy a finished fine-tuning, with results as of another model."""
    shutil.copytree(finished, "out")
    record = read_record(Path("out", MADE))
    write_record(Path("out", MADE), record | {"model": "another one"})
    write_text(Path("out", "dev_predictions.conll"), "others")
    write_results(Path("out"), {"predictions_by": "another one"}, "another one")


def _finetuning_problem() -> str | None:
    out = Path("out")
    if not (out / "results.json").exists():
        return None
    is_old = read_record(out / "results.json")["predictions_by"] == "another one"
    states = {
        "report": (out / "report.md").read_text() == "another one",
        "predictions": (out / "dev_predictions.conll").read_text() == "others",
        "model": read_record(out / MADE).get("model") == "another one",
    }
    differing = [name for name, is_of_another in states.items() if is_of_another != is_old]
    return f"results beside the {differing[0]} of another model" if differing else None


FAULTS = (Fault(killed_commands, 8, 40, 10**6),)
