"""Keys: what a run depends on gives it another one, and nothing else does; products are made again likewise."""

from pathlib import Path

import pytest
from fairseq import options

from mae_lm_fairseq.training.keys import Products, check_maker, run_key, values_of_words
from tests.support.refusals import refused

OPTIONS = {"arch": "mae_lm_tiny", "lr": 1e-3, "seed": 1, "max-update": 10, "cpu": True, "train-file": "train.txt"}
INPUTS = {"data": "1a", "train-file": {"sha": "2b"}}


def key(changes=(), extra=(), threads=1, inputs=INPUTS, **options) -> str:
    chosen = OPTIONS | {name.replace("_", "-"): value for name, value in options.items()}
    return run_key(chosen, extra, threads, inputs)


@pytest.mark.parametrize(
    "same",
    [
        {"save_dir": "elsewhere", "user_dir": "elsewhere", "train_file": "moved.txt"},
        {"log_interval": 3, "num_workers": 8, "tensorboard_logdir": "logs"},
        {"fp16": False},
        {"extra": ("--lr", "0.001", "--seed=1")},
        {"extra": ("--lr", "5", "--log-interval", "3", "--lr=1e-3")},
        {"inputs": dict(reversed(INPUTS.items()))},
    ],
)
def test_what_a_run_does_not_depend_on(same):
    assert key(**same) == key()


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 2e-3},
        {"cpu": False},
        {"seed": 2},
        {"max_update": 11},
        {"threads": 2},
        {"extra": ("--lr", "2e-3")},
        {"extra": ("--train-file", "other.txt")},
        {"extra": ("--dropout", "0.1")},
        {"inputs": INPUTS | {"data": "3c"}},
        {"inputs": INPUTS | {"train-file": {"sha": "3c"}}},
        {"save_interval_updates": 5},
    ],
)
def test_what_a_run_depends_on(other):
    assert key(**other) != key()


def test_saving_counts_only_where_fairseq_validates():
    assert key(disable_validation=True, save_interval_updates=5) == key(disable_validation=True)


def test_every_name_of_an_option_is_known_by_the_first_one():
    parser = options.get_training_parser()
    others = {}
    for action in parser._actions:
        first, *more = sorted(action.option_strings, key=lambda name: not name.startswith("--")) or [""]
        others |= dict.fromkeys(more, first)
    others.pop("-h", None)
    assert "--max-sentences" in others
    for name, first in others.items():
        if first != "--help":
            words = ["data", "--lr", "1", name, "2"]
            assert values_of_words(words) == {"lr": ["1"], first.removeprefix("--"): ["2"]}
    assert values_of_words(["-amae_lm", "--max-sentences=2"]) == {"arch": ["mae_lm"], "batch-size": ["2"]}
    assert key(extra=("--max-sentences", "2")) == key(extra=("--batch-size", "2"))


def write(path: Path) -> None:
    assert not path.exists()
    path.mkdir()
    (path / "file").touch()


def test_a_product_is_made_again_if_what_it_is_made_from_changes(tmp_path, capsys):
    made = []
    for content in ("a", "a", "b", "a"):
        Products(tmp_path, "a command", ["data"]).make(
            "data", {"text": content}, lambda path: made.append(path) or write(path)
        )
    assert made == [tmp_path / "data"] * 3
    assert f"done before, reusing {tmp_path}/data" in capsys.readouterr().out


def test_a_product_that_was_interrupted_is_made_again(tmp_path):
    def interrupted(path):
        write(path)
        (path / "parts").mkdir()
        raise KeyboardInterrupt

    products = Products(tmp_path, "a command", ["data"])
    products.make("data", "a", write)
    for key in ("b", "c"):
        with pytest.raises(KeyboardInterrupt):
            products.make("data", key, interrupted)
    kept = []
    products.make("data", "c", lambda path: kept.extend(path.iterdir()), kept="parts")
    assert kept == [tmp_path / "data/parts"]
    products.make("data", "a", write)


def test_files_that_no_such_command_made_are_kept(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "predictions.csv").touch()
    for owned in ("model", "predictions.*"):
        with refused(r"(model|predictions\.csv) .*made\.json"):
            Products(tmp_path, "a command", ["runs", owned])
    Products(tmp_path, "a command", ["runs"])
    Products(tmp_path, "a command", ["model"])


def test_results_of_another_command_are_not_replaced(tmp_path):
    """Such as those of fine-tuning by a study, or by fine-tuning on another kind of task."""
    Products(tmp_path, "mae-lm adapt", ["model"]).make("model", {}, lambda path: path.write_text("precious"))
    with refused("has the results of mae-lm adapt"):
        Products(tmp_path, "mae-lm study", ["report.md"])
    Products(tmp_path, "mae-lm adaptation", ["model"], former_command="mae-lm adapt")
    with refused("has the results of mae-lm adapt"):
        check_maker(tmp_path, "mae-lm study")
    check_maker(tmp_path / "other", "mae-lm study")
    assert (tmp_path / "model").read_text() == "precious"


def test_results_are_not_written_into_a_data_bin(tmp_path):
    (tmp_path / "dict.txt").touch()
    with refused(rf"--out {tmp_path} .*dict\.txt"):
        Products(tmp_path, "mae-lm study", ("report.md",))
