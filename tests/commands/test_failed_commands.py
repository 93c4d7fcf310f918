"""Verbs that refuse what they are given: none leaves a directory that is empty, or that only says who made it."""

import json
from pathlib import Path

import pytest

from mae_lm_fairseq import cli
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT

LABELLED = "--train train.tsv --dev dev.tsv --data-bin data --text text --label label"
WORDS = "--train words.conllu --dev words.conllu --data-bin data --column UPOS"
PREPARE = "--train train.txt --valid valid.txt --destdir OUT"
MEASURED = "MODEL --data-bin data"
COMMANDS = [
    "quickstart --out OUT --missing",
    f"prepare {PREPARE} --vocab-size 16000",  # more than the text has
    f"prepare {PREPARE} --tokenizer missing.json",
    f"prepare {PREPARE} --tokenizer train.txt",
    "prepare --train missing.txt --valid valid.txt --vocab-size 100 --destdir OUT",
    "prepare --train train.txt --valid train.txt --vocab-size 100 --destdir OUT",
    "prepare --train missing.txt --valid valid.txt --vocab-size 100 --part 1/2 --destdir OUT",
    "finetune glue RTE MODEL --glue-dir missing --data-bin data --out OUT",
    "finetune glue RTE missing.pt --glue-dir missing --data-bin data --out OUT",
    "finetune squad MODEL --train missing.json --dev missing.json --data-bin data --out OUT",
    f"finetune classification MODEL {LABELLED} --label missing --out OUT",
    f"finetune classification MODEL {LABELLED} --train missing.tsv --out OUT",
    f"finetune classification MODEL {LABELLED} --data-bin missing --out OUT",
    f"finetune classification missing.pt {LABELLED} --out OUT",
    f"finetune classification MODEL {LABELLED} --ema --out OUT",
    f"finetune classification MODEL {LABELLED} --out OUT -- --lerning-rate 1",
    f"finetune tagging MODEL {WORDS} --column missing --out OUT",
    f"finetune tagging MODEL {WORDS} --train missing.conllu --out OUT",
    f"rank {MEASURED} --text missing.txt --out OUT",
    "rank missing.pt --data-bin data --text valid.txt --out OUT",
    "rank MODEL --data-bin missing --text valid.txt --out OUT",
    f"probe {MEASURED} --train missing.conllu --test words.conllu --column UPOS --out OUT",
    "probe missing.pt --data-bin data --train words.conllu --test words.conllu --column UPOS --out OUT",
    f"minimal-pairs {MEASURED} --pairs missing --out OUT",
    "minimal-pairs missing.pt --data-bin data --pairs pairs --out OUT",
    f"retrieval {MEASURED} --questions missing.json --out OUT",
    "retrieval missing.pt --data-bin data --questions missing.json --out OUT",
    f"evaluate {MEASURED} --text missing.txt --out OUT.json",
    "evaluate missing.pt --data-bin data --text valid.txt --out OUT.json",
    "predict missing.pt --data-bin data --input train.tsv --out OUT.tsv",
    "predict MODEL --data-bin data --input missing.tsv --out OUT.tsv",
    "study missing.toml --out OUT",
    "study plan.toml --out OUT",
    "study damaged.toml --out OUT",
    "export missing.pt --data-bin data --out OUT",
    "export MODEL --data-bin missing --out OUT",
    "export MODEL --data-bin data --text missing.txt --out OUT",
    "import missing --out OUT",
    "import pairs --out OUT",
    "adapt missing --train train.txt --valid valid.txt --out OUT",
    "adapt pairs --train train.txt --valid valid.txt --out OUT",
    "adapt MODEL --data-bin data --train missing.txt --valid valid.txt --out OUT",
    "adapt MODEL --data-bin missing --train train.txt --valid valid.txt --out OUT",
    "adapt MODEL --data-bin data --train train.txt --valid valid.txt --freeze-encoder-updates 9999999 --out OUT",
    "adapt MODEL --data-bin data --train train.txt --valid valid.txt --out OUT -- --max-update 3",
    "adapt MODEL --data-bin data --train train.txt --valid valid.txt --out OUT -- --lerning-rate 1",
    "average missing.pt MODEL --out OUT.pt",
    "average MODEL train.txt --out OUT.pt",
    "bundle missing.pt --data-bin data --out OUT",
    "bundle MODEL --data-bin missing --out OUT",
    "bundle MODEL --data-bin data --ema --out OUT",
]
PRETRAIN = [
    "pretrain mae_lm_tiny missing OUT --cpu",
    "pretrain mae_lm_tiny data OUT --cpu",  # without sequences
    "pretrain mae_lm_tiny data OUT --cpu --lerning-rate 1",
    "pretrain mae_lm_tiny DATA_BIN OUT --cpu --optimizer missing",
    "pretrain mae_lm_tiny DATA_BIN OUT --cpu --tokens-per-sample 100000",
    "pretrain mae_lm_tiny DATA_BIN OUT --cpu --encoder-attention-heads 3",
    "pretrain mae_lm_tiny DATA_BIN OUT --cpu --finetune-from-model missing.pt",
]
MODELS = [
    f"finetune classification NAME {LABELLED} --out OUT",
    "rank NAME --text valid.txt --out OUT",
    "probe NAME --train words.conllu --test words.conllu --column UPOS --out OUT",
    "minimal-pairs NAME --pairs pairs --out OUT",
    "retrieval NAME --questions squad.json --out OUT",
    "evaluate NAME --text valid.txt",
    "predict NAME --input train.tsv --out OUT.tsv",
    "export NAME --out OUT",
    "import NAME --out OUT",
    "adapt NAME --train train.txt --valid valid.txt --out OUT",
]
ANSWER = {"id": "1", "question": "What runs?", "answers": [{"text": "dog", "answer_start": 4}]}
SQUAD = {"data": [{"paragraphs": [{"context": "The dog runs.", "qas": [ANSWER]}]}]}
PLAN = """
[data]
data_bin = "missing"
[train]
updates = 1
[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
"""


@pytest.fixture
def words_of(tmp_path, monkeypatch, text_data, checkpoints, data_bin):
    """Return a function that returns the words of a command, which work in a directory with valid inputs."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "valid"):
        Path(f"{name}.txt").write_text("\n\n".join([*TEXT, name]), encoding="utf-8")
    for name in ("train", "dev"):
        Path(f"{name}.tsv").write_text("text\tlabel\none\tyes\ntwo\tno\n")
    Path("words.conllu").write_text("1\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_\n\n")
    Path("plan.toml").write_text(PLAN)
    Path("damaged.toml").write_text("[data")
    Path("pairs").mkdir()
    Path("squad.json").write_text(json.dumps(SQUAD))
    Path("pairs", "simple.txt").write_text("the dogs run\nthe dogs runs\n")
    names = {"MODEL": checkpoints["mae_lm_tiny"], "data": text_data, "DATA_BIN": data_bin}
    return lambda command: [str(names.get(word, word)).replace("OUT", "new/below/out") for word in command.split()]


def run(command: str, words_of) -> UserError | SystemExit:
    """Run a verb that ends with an error, and return the error."""
    words = words_of(command)
    number = 2 if words[0] == "finetune" else 1
    if command.partition("OUT")[2].startswith("."):  # the directory of a file must exist
        words = [word.replace("new/below/out", "out") for word in words]
    with pytest.raises((UserError, SystemExit)) as error:
        cli.run(" ".join(words[:number]), words[number:])
    return error.value


def added(directory: Path, before: set[Path]) -> list[str]:
    """Return the names of the files and directories that were added."""
    return sorted(str(path.relative_to(directory)) for path in {*directory.rglob("*")} - before)


def test_every_verb_that_writes_is_here():
    assert {verb for verb in cli.VERBS if verb not in ("plan", "doctor")} == {
        verb for verb in cli.VERBS for command in (*COMMANDS, *PRETRAIN) if command.startswith(f"{verb} ")
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refused_command_leaves_nothing(tmp_path, words_of, command):
    before = {*tmp_path.rglob("*")}
    run(command, words_of)
    assert added(tmp_path, before) == []


@pytest.mark.parametrize("verb", ["prepare", "finetune classification", "rank", "study", "adapt"])
def test_an_empty_directory_of_the_user_stays(tmp_path, words_of, verb):
    (tmp_path / "new/below/out").mkdir(parents=True)
    before = {*tmp_path.rglob("*")}
    run(next(command for command in COMMANDS if command.startswith(f"{verb} ")), words_of)
    assert {*tmp_path.rglob("*")} >= before
    assert [*(tmp_path / "new/below/out").iterdir()] == []


@pytest.mark.integration  # starts fairseq-train
@pytest.mark.parametrize("command", PRETRAIN)
def test_a_refused_training_leaves_nothing(tmp_path, words_of, mae_lm, command):
    before = {*tmp_path.rglob("*")}
    done = mae_lm(*words_of(command), cwd=tmp_path)
    assert done.returncode != 0
    assert added(tmp_path, before) == []


NOT_DOWNLOADED = ". Models are not downloaded: run hf download"


@pytest.mark.parametrize("command", MODELS)
@pytest.mark.parametrize(
    ("name", "download"),
    [
        (
            "org/name-v1.5",
            f"{NOT_DOWNLOADED} org/name-v1.5 --local-dir name-v1.5, then give name-v1.5 in its place",
        ),
        ("name", f"{NOT_DOWNLOADED} NAME --local-dir name"),
        ("pairs/name", ""),  # pairs exists
        ("saved/of/name", ""),
    ],
)
def test_a_missing_model_is_not_downloaded(words_of, command, name, download):
    message = str(run(command.replace("NAME", name), words_of))
    assert message == f"{name}: no such directory; check the path{download}"


@pytest.mark.parametrize("command", MODELS)
def test_a_missing_file_is_not_said_to_be_on_the_hub(words_of, command):
    assert str(run(command.replace("NAME", "pairs/name.pt"), words_of)) == "pairs/name.pt: no such file; check the path"
