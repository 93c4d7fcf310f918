"""README and docs: their commands work, their links and file names lead somewhere.

A comment above each block says how it is tested (CONTRIBUTING.md).
"""

import importlib
import json
import math
import os
import re
import runpy
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest
import torch
from torch.distributed.run import get_args_parser

from mae_lm_fairseq.cli import VERBS, parsed
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.training import batch_size
from mae_lm_fairseq.training.pretrain import configure, parse_configuration
from mae_lm_fairseq.utils.command_line import parse
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT
from tests.support.answering import write_squad
from tests.support.documentation import PAGES, anchors, blocks, links, prose
from tests.support.glue import make_rows, write_official
from tests.support.tokenizers import fairseq_files, paragraphs

BLOCKS = [block for page in PAGES for block in blocks(page)]
DOCS = ROOT / "docs"
RESULTS = ROOT / "scripts/results"
GENERATED = (
    "docs/reference/recipes.md",
    "docs/reference/options.md",
    "docs/reference/treatments.md",
    "docs/developers/fairseq-patches.md",
    "scripts/results/robustness/README.md",
)
SPEED = (RESULTS / "speed/README.md").read_text(encoding="utf-8")
TUTORIAL = [block for block in BLOCKS if block.page.name == "tutorial.md"]
FROM_FAIRSEQ = [block for block in BLOCKS if block.page.name == "from-fairseq.md"]
FROM_SCRATCH = [block for block in BLOCKS if block.page.name == "from-scratch.md" and block.test == "run"]
IN_ORDER = [*TUTORIAL, *FROM_FAIRSEQ, *FROM_SCRATCH]
RUN = [block for block in BLOCKS if block.test == "run" and block not in IN_ORDER]
DRY = [block for block in BLOCKS if block.test == "dry run"]


def test_every_block_says_how_it_is_tested():
    assert not [str(block) for block in BLOCKS if not block.test]
    assert not [str(block) for block in BLOCKS if block.test == "manual" and not block.detail]
    assert RUN
    assert DRY


def test_the_example_of_a_treatment_applies(run_cli, tmp_path):
    (tmp_path / "example.diff").write_text(example_of_a_treatment(), encoding="utf-8")
    applied = run_cli([shutil.which("git"), "apply", "--check", tmp_path / "example.diff"])
    assert applied.returncode == 0, applied.stderr


def example_of_a_treatment() -> str:
    [diff] = re.findall(
        r"```diff\n(.*?)```", (DOCS / "developers/new-treatment.md").read_text(encoding="utf-8"), re.DOTALL
    )
    return diff


@pytest.mark.integration
@pytest.mark.slow  # imports everything in a copy of the repository
def test_the_example_of_a_treatment_works(tmp_path, run_cli):
    """The diff of the page, in a copy of the repository, with the tests that it names."""
    for name in ("mae_lm_fairseq", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "example.diff").write_text(example_of_a_treatment(), encoding="utf-8")
    applied = run_cli([shutil.which("git"), "apply", "example.diff"], cwd=tmp_path)
    assert applied.returncode == 0, applied.stderr
    tests = ["tests/core/test_autoencoder.py", "-k", "share_layers", "-q", "-p", "no:cacheprovider"]
    done = run_cli([sys.executable, "-m", "pytest", *tests], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout


def test_speed_on_the_front_page_is_from_the_committed_results():
    """The figure keeps what it shows in its description, and the table says how much faster the package is."""
    import PIL.Image

    from experiments.speed_figure import OUT, speeds

    assert json.loads(PIL.Image.open(OUT).text["Description"]) == speeds()
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for panel in speeds():
        machine, size, *_ = panel.split(", ")
        if machine == "two CPU cores":
            assert f"| {size} | {' | '.join(ratios_with_ranges(panel))} |" in page


COMPARISONS = (("MLM", "fairseq"), ("MLM", "transformers"), ("MAE-LM", "the authors"))


def ratios_with_ranges(panel: str) -> list[str]:
    """Return how many times as fast this package is, with the range over runs; dashes for no measurement."""
    from experiments.speed_figure import ratios

    cells = []
    for objective, code in COMPARISONS:
        compared = [ratio for ratio in ratios(objective) if (ratio.machine, ratio.code) == (panel, code)]
        if not compared:
            cells.append("–")  # noqa: RUF001
            continue
        [ratio] = compared
        is_one_run = len(ratio.runs) == 1
        brackets = "" if is_one_run else f" [{min(ratio.runs):.2f}, {max(ratio.runs):.2f}]"
        cells.append(f"{ratio.median:.2f}{brackets}")
    return cells


def test_ratios_of_further_runs_are_those_of_the_notebook():
    [several, another] = re.findall(r"to the authors' code were ([\d., and]+) \(a sixth run, .*?: ([\d.]+);", SPEED)[0]
    ratios = [*map(float, re.findall(r"\d\.\d+", several)), float(another)]
    text = " ".join((DOCS / "benchmarks.md").read_text(encoding="utf-8").split())
    assert len(ratios) == 6
    assert re.search(rf"ver six runs,.*? between {min(ratios)} and {max(ratios)}, with a median of 1\.5\.", text)
    assert round(median(ratios), 1) == 1.5
    speedups = [
        read_json(RESULTS / f"{file}.json")["ratios"]["roberta_speedup_over_fairseq"]
        for file in ("cpu-base", "cpu-small")
    ]
    assert f"gave {speedups[0]:.2f} for fairseq at width 768 and {speedups[1]:.2f} at width 256" in text
    rows = read_json(RESULTS / "day-one/3-peers.json")["rows"]
    seconds = {row["subject"]: row["median_seconds"] for row in rows}
    older = seconds["fairseq_roberta"] / seconds["roberta_plain_fused"]
    assert f"an older attention kernel was {older:.2f} times as fast as fairseq" in text


def test_benchmarks_are_from_the_committed_results():
    """The table of the page has the speeds of the figure, to four digits."""
    from experiments.speed_figure import speeds

    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = zip(*(ratios_with_ranges(panel) for panel in speeds()), strict=True)
    labels = ("fairseq (MLM)", "`transformers` (MLM)", "the authors' code (MAE-LM)")
    for label, cells in zip(labels, rows, strict=True):
        assert f"| {label} | {' | '.join(cells)} |" in page
    names = {
        "MLM, here": "MLM, here",
        "MLM, fairseq": "MLM, fairseq",
        "MLM, transformers": "MLM, `transformers`",
        "MAE-LM, here": "MAE-LM, here",
        "MAE-LM, the authors": "MAE-LM, the authors' code",
    }
    for name, label in names.items():
        cells = [f"{float(f'{panel[name]:.4g}'):,.0f}" if name in panel else "–" for panel in speeds().values()]  # noqa: RUF001
        assert f"| {label} | {' | '.join(cells)} |" in page
    for size, file in (("width 768", "cpu-base"), ("width 256", "cpu-small")):
        ratios = read_json(RESULTS / f"{file}.json")["ratios"]
        for model, ratio in (("MAE-LM", "mae_lm_step_cost"), ("3ML's setting", "three_ml_step_cost")):
            measured = rf"^\| {model}, {size} \| [\d.]+ \| {ratios[ratio]:.2f} on two CPU cores"
            assert re.search(measured, page, re.MULTILINE)


def test_verbs_keep_within_the_limit_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    limit = re.search(r"`mae-lm` has at most (\d+) verbs", text)
    assert len(VERBS) <= int(limit[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {link}"
        if fragment:
            assert fragment in anchors(target), f"{page}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_file_names_exist(page):
    """Paths in backticks that begin with a folder of the project."""
    folders = {path.name for path in (*ROOT.iterdir(), *(ROOT / "mae_lm_fairseq").iterdir()) if path.is_dir()}
    for name in re.findall(r"`([\w.-]+/[\w./-]*)`", prose(page)):
        if name.split("/")[0] in folders - {"data-bin", "checkpoints"}:
            assert (ROOT / name).exists() or (ROOT / "mae_lm_fairseq" / name).exists(), f"{page}: {name}"


def test_every_promise_of_security_names_tests_that_exist():
    _, _, rest = (DOCS / "security.md").read_text(encoding="utf-8").partition("\n## Promises\n")
    text, _, _ = rest.partition("\n## ")
    _, _, *promises = (line for line in text.splitlines() if line.startswith("| "))
    assert promises
    for promise in promises:
        named = re.findall(r"\[(test_[^\]]+)\]\(([^)]+)\)", promise)
        assert named, promise
        for tests, path in named:
            source = (DOCS / path).read_text(encoding="utf-8")
            for test in tests.split(", "):
                assert f"def {test}(" in source, test


@pytest.fixture(scope="module")
def generated():
    return runpy.run_path(str(ROOT / "scripts/write_docs.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_current(generated, name):
    assert generated.keys() == set(GENERATED)
    assert (ROOT / name).read_text(encoding="utf-8") == generated[name], "run scripts/write_docs.py"


@pytest.mark.parametrize(("directory", "pattern"), [(DOCS, "*.md"), (RESULTS, "*/README.md")], ids=["docs", "results"])
def test_indexes_list_every_page(directory, pattern):
    index = (directory / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(directory)) for page in directory.rglob(pattern)]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


def test_committed_results_name_no_directory_of_a_machine():
    """A command that another environment ran keeps its path; ``results.json`` shortens that of its own."""
    of_machine = re.compile(r"/bin/python|(?<![\w.])/(home|root|tmp|Users)/")
    named = [path for path in RESULTS.rglob("*.json") if of_machine.search(path.read_text(encoding="utf-8"))]
    assert named == []


def test_healthy_values_are_from_the_committed_run():
    rows = read_json(ROOT / "scripts/results/reference-tiny.json")["train_inner"]
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").replace(",", "")
    stated = re.findall(r"^\| (\d+) to (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$", page, re.MULTILINE)
    assert len(stated) == 8
    for row in stated:
        first, last, bits, nats, low, high = map(float, row)
        losses, norms = zip(
            *((one["loss_bits"], one["gradient_norm"]) for one in rows if first <= one["updates"] <= last), strict=True
        )
        assert (bits, nats) == (round(fmean(losses), 2), round(fmean(losses) * math.log(2), 2))
        assert (low, high) == (round(min(norms), 1), round(max(norms), 1))


@pytest.mark.parametrize("name", ["cpu-small", "cpu-base"])
def test_speed_is_from_the_committed_results(name):
    figures = read_json(ROOT / "scripts/results" / f"{name}.json")
    usual = figures["setting"]["rows"], figures["setting"]["length"], 0.15, False
    subjects = ("mae_lm_eager", "authors", "mae_lm_bf16_eager", "fairseq_roberta")
    rows = [row for row in figures["rows"] if row["subject"] in subjects]
    speeds = [
        row["tokens_per_second"]
        for row in rows
        if (row["rows"], row["length"], row["mask_prob"], row["ragged"]) == usual
    ]
    assert len(speeds) >= 3
    assert all(f" {speed:,.0f} " in SPEED for speed in speeds)
    for ratio in ("authors_speedup", "roberta_speedup_over_fairseq", "mae_lm_step_cost", "three_ml_step_cost"):
        assert f" {figures['ratios'][ratio]:.2f} " in SPEED


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::UserWarning")  # hydra's
@pytest.mark.parametrize("block", DRY, ids=str)
def test_commands_are_understood(block, monkeypatch):
    assert block.language == "bash"
    monkeypatch.setattr(batch_size, "smallest_memory", lambda: 80_000_000_000)
    for command in block.commands():
        words = shlex.split(command, comments=True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda words=words: "--cpu" not in words)
        understand_command(without_launcher(words))


def without_launcher(words: list[str]) -> list[str]:
    """Return the command that torchrun starts."""
    if words[0] == "torchrun":
        parsed = get_args_parser().parse_args(words[1:])
        return [parsed.training_script, *parsed.training_script_args]
    return words


def understand_command(words: list[str]) -> None:
    """Parse a command as the program would, which ends with an error for an unknown option or value."""
    program, *arguments = words
    if program == "mae-lm":
        verb = next(verb for verb in (" ".join(arguments[:2]), arguments[0]) if verb in VERBS)
        arguments = arguments[len(verb.split()) :]
        if verb == "pretrain":
            asked = parsed(verb, arguments)
            words, *_ = configure(asked.preset, asked.data_bin, asked.save_dir, asked.flags, asked.recipe)
            assert parse_configuration(words).model._name == asked.preset
        else:
            parsed(verb, arguments)
    elif program in ("fairseq-train", "fairseq-validate"):
        parse_configuration(arguments)
    elif program == "python" and arguments[0] == "-m":
        importlib.import_module(arguments[1]).parser().parse_args(arguments[2:])
    else:
        understand_program(*(arguments if program == "python" else words))


def understand_program(path: str, *arguments: str) -> None:
    """Run a program until it has parsed its arguments."""

    class Understood(BaseException):
        pass

    def understand(*passed):
        parse(*passed)
        raise Understood

    with pytest.MonkeyPatch.context() as patch:
        for module in ("utils.command_line", "cli"):
            patch.setattr(f"mae_lm_fairseq.{module}.parse", understand)
        patch.setattr("sys.argv", [path, *arguments])
        patch.syspath_prepend(str((ROOT / path).parent))
        with pytest.raises(Understood):
            runpy.run_path(str(ROOT / path), run_name="__main__")


@pytest.mark.integration
@pytest.mark.parametrize("block", RUN, ids=str)
def test_blocks_run(block, workspace, tmp_path, mae_lm, run_cli, monkeypatch):
    # Directories are its own: blocks of several pages train in checkpoints/own.
    shutil.copytree(workspace, tmp_path, symlinks=True, copy_function=os.symlink, dirs_exist_ok=True)
    run_block(block, tmp_path, mae_lm, run_cli, monkeypatch)


@pytest.mark.integration
def test_the_tutorial_runs_from_start_to_end(tmp_path, mae_lm, run_cli, monkeypatch):
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    directory = tmp_path / "tutorial"
    directory.mkdir()
    for block in TUTORIAL:
        assert block.test == "run"
        run_block(block, directory, mae_lm, run_cli, monkeypatch)
    assert (directory / "predictions.tsv").read_text(encoding="utf-8").startswith("text\tpackage\t")


@pytest.mark.integration
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(FROM_FAIRSEQ[:4], id="pretraining"),
        pytest.param(FROM_FAIRSEQ, id="all", marks=pytest.mark.slow),
    ],
)
def test_the_commands_of_fairseqs_readmes_run(commands, tmp_path, mae_lm, run_cli, monkeypatch):
    """From start to end, on small files in place of those that the READMEs download."""
    lines = paragraphs(120)
    for name, content in zip(("encoder.json", "vocab.bpe", "dict.txt"), fairseq_files(lines, 300), strict=True):
        write_file(tmp_path / "gpt2_bpe" / name, content.decode())
    splits = {"train": lines, "valid": lines, "dev": lines[:16]}  # fairseq drops batches of fewer than 8 blocks
    for split, texts in splits.items():
        text = "\n".join(texts) + "\n"
        write_file(tmp_path / "wikitext-103-raw" / f"wiki.{split}.raw", text)
        write_file(tmp_path / "aclImdb" / f"{split}.input0", text)
        write_file(tmp_path / "aclImdb" / f"{split}.label", "0\n1\n" * (len(texts) // 2))
    for block in commands:
        assert block.test == "run"
        run_block(block, tmp_path, mae_lm, run_cli, monkeypatch)


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.integration
def test_an_encoder_from_scratch_runs_from_start_to_end(workspace, tmp_path, mae_lm, run_cli, monkeypatch, capsys):
    """The page prints that the class of ``transformers`` computes the same, and the vectors' sizes."""
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).symlink_to(workspace / name)
    for block in FROM_SCRATCH:
        if "sentence_transformers" in block.text:
            assert capsys.readouterr().out.endswith("ModernBertModel True\n")
            pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        run_block(block, tmp_path, mae_lm, run_cli, monkeypatch)
    assert capsys.readouterr().out.endswith("(2, 128)\n")


def run_block(block, tmp_path, mae_lm, run_cli, monkeypatch) -> None:
    """Run a block after its replacements, in a directory."""
    if block.language == "python":
        monkeypatch.chdir(tmp_path)
        exec(compile(block.adapted(), str(block), "exec"), {"__name__": "__main__"})
        return
    adapted = replace(block, text=block.adapted())
    if all(command.startswith("mae-lm ") for command in adapted.commands()):
        for command in adapted.commands():
            done = mae_lm(*shlex.split(command, comments=True)[1:], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        return
    (tmp_path / "block.sh").write_text("set -euo pipefail\n" + adapted.text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_cli(["/bin/bash", "block.sh"], cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def workspace(tmp_path_factory, mae_lm, text_data, checkpoints, bundles) -> Path:
    """A directory with the files that the pages assume."""
    directory = tmp_path_factory.mktemp("workspace")
    words = re.findall(r"[a-z]+", (ROOT / "README.md").read_text(encoding="utf-8").lower())
    lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
    for name, number in (("train.txt", None), ("valid.txt", 9)):
        (directory / name).write_text("\n".join(lines[:number]) + "\n", encoding="utf-8")
    model = ("--tokenizer", text_data / "sentencepiece.bpe.model", "--max-unk-rate", 1, "--workers", 1)
    texts = ("--train", "train.txt", "--valid", "valid.txt")
    done = mae_lm("prepare", *texts, *model, "--destdir", "data-bin", cwd=directory)
    assert done.returncode == 0, done.stderr
    pairs = [json.dumps({"anchor": line[:30], "positive": line}) for line in lines[:64]]
    (directory / "pairs.jsonl").write_text("\n".join(pairs), encoding="utf-8")
    write_official(directory / "GLUE", TASKS["RTE"], make_rows(TASKS["RTE"]))
    for split in ("train", "dev"):
        write_squad(directory / f"{split}-v1.1.json")
    targets = {
        "mae-lm": bundles["mae_lm_tiny"],
        "rte": bundles["classification"],
        "squad": bundles["span"],
        "tagger": bundles["tags"],
    }
    for name, checkpoint in (("mae_lm", "mae_lm_tiny"), ("roberta", "mae_lm_roberta_tiny")):
        (directory / "checkpoints" / name).mkdir(parents=True)
        targets[f"checkpoints/{name}/checkpoint_last.pt"] = checkpoints[checkpoint]
    for name, target in targets.items():
        (directory / name).symlink_to(target)
    for name, options in (("mae-lm-hf", ()), ("mae-lm-whole", ("--with-decoder",))):
        done = mae_lm("export", "mae-lm", "--out", name, *options, cwd=directory)
        assert done.returncode == 0, done.stderr
    for name in ("scripts", "preprocess"):
        (directory / name).symlink_to(ROOT / name)
    return directory
