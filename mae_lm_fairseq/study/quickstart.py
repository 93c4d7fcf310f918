"""Pretrain MAE-LM and the RoBERTa preset on the same text, and write a report that compares them.

Writes OUT/report.md, OUT/results.json, figures, and OUT/models with a bundle of each model. Takes about ten minutes on
two CPU cores. Started again, it resumes.

Examples:
    mae-lm quickstart
    mae-lm quickstart --smoke --out quickstart-smoke
"""

from dataclasses import dataclass, replace
from pathlib import Path

from mae_lm_fairseq.measures.measure import Data
from mae_lm_fairseq.study.docstrings import PACKAGES, docstring_documents, write_corpus
from mae_lm_fairseq.study.engine import run_study
from mae_lm_fairseq.study.plan import Model, Plan, read_plan
from mae_lm_fairseq.study.report import TABLE
from mae_lm_fairseq.study.results_file import ResultsFile, TrainingResult
from mae_lm_fairseq.text.manifest import describe_splits, splits_table
from mae_lm_fairseq.text.moving import PARTS
from mae_lm_fairseq.text.preparation import prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.command_line import Directory, Options as Base
from mae_lm_fairseq.utils.directories import REPORT, RESULTS
from mae_lm_fairseq.utils.files import directory_sha256, write_text
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.output import markdown_table, step
from mae_lm_fairseq.utils.signals import signals_as_errors

OWNED = ("text", "data-bin", "runs", "models", "plan.json", RESULTS, REPORT, TABLE)
_FEW = 100
"""Number of updates below which nothing is learned."""


@dataclass(frozen=True)
class Recipe:
    """Text and plan of a full run or a smoke run of the quickstart.

    Attributes:
        packages: packages whose docstrings are read.
        vocabulary: size of the tokenizer that is trained.
        plan: the plan, whose data are in the output directory.
    """

    packages: tuple[str, ...]
    vocabulary: int
    plan: Plan


FULL = Recipe(PACKAGES, 3000, read_plan("quickstart"))
SMOKE = Recipe(("stdlib", "numpy"), 1500, read_plan("quickstart-smoke"))


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of the quickstart.

    Attributes:
        smoke: run all steps in less than 2 minutes; the models learn next to nothing.
        out: output directory (default: quickstart/docstrings, with --smoke quickstart/docstrings-smoke).
    """

    smoke: bool = False
    out: Directory | None = None

    @property
    def directory(self) -> Path:
        """The output directory, or its default."""
        return self.out or Path("quickstart", "docstrings-smoke" if self.smoke else "docstrings")


def main(options: Options) -> None:
    """Run the command."""
    import matplotlib  # noqa: F401  before long work that ends in figures
    import pandas  # noqa: F401  and in tables

    out = options.directory
    with signals_as_errors(), directory_lock(out), Products(out, "mae-lm quickstart", OWNED) as products:
        quickstart(options, products)


def quickstart(options: Options, products: Products) -> None:
    """Run, or resume, everything in the output directory.

    A quickstart is a study by a shipped plan. This module prepares the text, and adds to the study's report what a
    newcomer looks for, and a bundle of each model.

    Raises:
        UserError: if a training fails.
    """
    out = options.directory
    recipe = SMOKE if options.smoke else FULL
    with step(1, 3, "Text: the docstrings of the installed Python packages"):
        plan = replace(recipe.plan, data=make_data(products, recipe))
    names = " and ".join(model.name for model in plan.models)
    updates = plan.train.updates
    with step(2, 3, f"Pretraining and measuring: {names}, {updates:,} updates, at the same time"):
        file = run_study(plan, out, jobs=len(plan.models))
    with step(3, 3, "Models and report"):
        bundles = [make_bundle(products, plan, model, file) for model in plan.models]
        bundle = bundles[0].relative_to(out)
        table = losses(plan, file)
        warning = caution(plan)
        beginning = _REPORT.format(updates=updates, losses=table, caution=warning, bundle=bundle)
        path = out / REPORT
        _, _, report = path.read_text(encoding="utf-8").partition("\n")
        splits = splits_table(describe_splits(plan.data.data_bin))
        write_text(path, f"{beginning}\n## Data\n\n{splits}\n{report}")
    print(f"\n{table}\n\n{warning}Report: {path}\nBundles: {out / 'models'}")
    print(f"Next: mae-lm evaluate {out / bundle} --text {plan.data.text}, and the Python lines of the report")


def make_data(products: Products, recipe: Recipe) -> Data:
    """Return the files of the study, after making ``text``, with a training and a validation text, and ``data-bin``."""

    def write(path: Path) -> None:
        path.mkdir()
        counts = write_corpus(docstring_documents(recipe.packages), path / "train.txt", path / "valid.txt")
        print(", ".join(f"{count:,} {name}" for name, count in counts.items()))

    text = products.make("text", [*recipe.packages], write)
    train = text / "train.txt"
    valid = text / "valid.txt"

    def prepare_data(path: Path) -> None:
        prepare(
            PreparationOptions(
                train=(str(train),), valid=(str(valid),), destdir=path, vocab_size=recipe.vocabulary, workers=2
            )
        )

    data_bin = products.make("data-bin", [directory_sha256(text), recipe.vocabulary], prepare_data, kept=PARTS)
    return Data(data_bin, valid)


def make_bundle(products: Products, plan: Plan, model: Model, file: ResultsFile) -> Path:
    """Return the bundle of a trained model, in the directory ``models``."""
    run = products.out / "runs" / _result_of(file, model).directory
    pretrained = read_checkpoint(run / "models" / f"{plan.train.updates}.pt", plan.data.data_bin)
    (products.out / "models").mkdir(exist_ok=True)
    name = f"models/{model.directory}"
    return products.make(name, run.name, lambda path: write_bundle(pretrained, path, add_tokenizer_and_card))


def _result_of(file: ResultsFile, model: Model) -> TrainingResult:
    return next(result for result in file.runs if result.model == model.name)


def losses(plan: Plan, file: ResultsFile) -> str:
    """Return a table of what the models have learned."""
    header = ["model", "`arch`", "seconds", "held-out loss (nats)", "unigram entropy", "below it", "effective rank"]
    rows = []
    last = str(plan.train.updates)
    for model in plan.models:
        result = _result_of(file, model)
        measures = result.measures
        loss = measures["loss"][last]["loss"]
        entropy = measures["loss"][last]["unigram_entropy"]
        rank = measures["rank"][last]["real_clean"][-1]
        seconds = result.seconds["training"]
        numbers = [f"{seconds:.0f}", f"{loss:.2f}", f"{entropy:.2f}", f"{entropy - loss:.2f}", f"{rank:.0f}"]
        rows.append([model.name, f"`{model.arch}`", *numbers])
    return markdown_table(header, rows)


def caution(plan: Plan) -> str:
    """Return a warning about a training that is too short to learn anything; else nothing."""
    updates = plan.train.updates
    if updates >= _FEW:
        return ""
    return f"{updates} updates teach nothing: the losses above only show that all steps work.\n\n"


_REPORT = """\
# Quickstart

Two language models of the same size were pretrained on the docstrings of the installed Python packages, with the same
data, the same masked positions and the same number of updates, {updates:,}. In the RoBERTa preset, the encoder reads
`[MASK]` tokens. In MAE-LM, they join after it, in a small decoder that is dropped before fine-tuning.

{losses}

{caution}- Held-out loss: mean cross-entropy per masked token of a text that the models have not seen.
- Unigram entropy: of the token frequencies in that text. A model that knows the frequencies and ignores the context has
  this loss.
- Effective rank: the number of directions that hold 90 % of the sum of squares of the last encoder layer's hidden
  states on text without `[MASK]`. A very low rank would mean that the encoder has collapsed. Both models are small and
  trained briefly; the papers' comparison of ranks and scores needs longer training.
- Dropout is off for both, because in so few updates the text is seen only about twice.
- Seconds: wall time of the training programs, on half of the cores each.

## Next steps

- `models/` has a bundle of each model, for every `mae-lm` command and for Python, here started in this directory:

  ```python
  from mae_lm_fairseq import MAELMModel

  model = MAELMModel.from_pretrained("{bundle}")
  print(model.fill_mask("Returns the <mask> of the array.", topk=3))
  ```

- `mae-lm prepare` makes a data-bin of your own text, and `mae-lm study` compares models on it by a plan of yours, such
  as the one at the end: more updates, seeds, measures. Below is what it reports, and `runs/` has the checkpoints,
  commands and logs.
"""
