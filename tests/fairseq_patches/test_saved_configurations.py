"""Components that fairseq builds from a checkpoint's configuration run no code; each attack works without the check."""

import ast
import contextlib
import copy
import importlib
import inspect
from argparse import Namespace
from pathlib import Path

import fairseq
import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf

import mae_lm_fairseq
from mae_lm_fairseq.fairseq_patches.saved_configurations import (
    ACTING,
    ALLOWED,
    EVALUATED,
    check_saved_configuration,
)
from mae_lm_fairseq.utils.errors import RefusedFile, UserError
from tests.support.bundles import saved
from tests.support.fairseq_commands import STATE, config, refusal, settings

mae_lm_fairseq.register()

REGISTRY = {
    "task": TASK_REGISTRY,
    "model": {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY},
    **{kind: registry["registry"] for kind, registry in REGISTRIES.items()},
}
CODE = "__import__('pathlib').Path({canary!r}).touch()"


def evil(canary: Path) -> str:
    return CODE.format(canary=str(canary))


# Changes of a configuration, the key that the message names, and what fairseq evaluates.
ATTACKS = {
    "criterion": ("cfg.criterion._name", {"criterion": {"_name": "ctc", "wer_args": CODE}}),
    "task": ("cfg.task.task", {"task": {"task": "multilingual_translation", "left_pad_source": CODE}}),
    "task by _name": ("cfg.task._name", {"task": {"_name": "multilingual_translation", "left_pad_source": CODE}}),
    "namespace": ("cfg.task.task", {"task": Namespace(task="online_backtranslation", left_pad_source=CODE)}),
    "model": ("cfg.model._name", {"model": {"_name": "fconv", "encoder_layers": CODE}}),
    "arch": ("cfg.model.arch", {"model": {"arch": "lightconv", "adaptive_softmax_cutoff": CODE}}),
    "only key": ("cfg.model = 'wav2vec2'", {"model": {"wav2vec2": {"conv_feature_layers": CODE}}}),
    "nested bpe": (
        "cfg.model.w2v_args.task",
        {"model": {"_name": "roberta", "w2v_args": {"task": "hubert_pretraining"}}},
    ),
    "allowed model": ("xformers_att_config", {"model": {"_name": "roberta", "encoder_xformers_att_config": CODE}}),
    "optimizer": ("cfg.optimizer.adam_betas", {"optimizer": {"_name": "adam", "adam_betas": CODE}}),
    "group": (
        "cfg.optimizer.groups.a.optimizer.lamb_betas",
        {"optimizer": {"_name": "composite", "groups": {"a": {"optimizer": {"_name": "lamb", "lamb_betas": CODE}}}}},
    ),
    "reference": ("cfg.criterion._name", {"criterion": {"_name": "${task.text}", "wer_args": CODE}}),
    "section by reference": ("cfg.criterion", {"criterion": "${task.text}"}),
    "resolver": ("cfg.task.data", {"task": {"_name": "masked_lm", "data": "${oc.env:HOME}"}}),
    "scoring": ("cfg.scoring._name", {"scoring": {"_name": "bert_score"}}),
}


def with_code(value, canary: Path):
    """Return a configuration with code that creates the canary in place of :data:`CODE`."""
    if isinstance(value, Namespace):
        return Namespace(**with_code(vars(value), canary))
    if isinstance(value, dict):
        return {name: with_code(inner, canary) for name, inner in value.items()}
    return evil(canary) if value == CODE else value


def roberta(**changes) -> dict:
    """Return a checkpoint of fairseq's RoBERTa, with changes of its configuration."""
    return copy.deepcopy(STATE) | {"cfg": {"model": {"_name": "roberta"}, "task": {"_name": "masked_lm"}} | changes}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_component_or_value_that_runs_code_is_refused(tmp_path, attack):
    key, changes = ATTACKS[attack]
    path, canary = tmp_path / "hostile.pt", tmp_path / "it-ran"
    torch.save(roberta(**with_code(changes, canary)), path)
    message = refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
    assert f"refused {path}: cfg." in message
    assert key in message
    assert not canary.exists()


def test_a_task_of_a_checkpoint_would_run_code(tmp_path, text_data, checkpoints, monkeypatch):
    path, canary, state = tmp_path / "hostile.pt", tmp_path / "it-ran", saved(checkpoints["mae_lm_tiny"])
    task = {"task": "multilingual_translation", "lang_pairs": "a-b", "source_lang": None, "target_lang": None}
    state["cfg"]["task"] |= task | {"left_pad_source": evil(canary)}
    torch.save(state, path)

    def load():
        return checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides={"data": str(text_data)})

    assert "multilingual_translation" in refusal(load)
    assert not canary.exists()
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", checkpoint_utils.load_checkpoint_to_cpu.__wrapped__)
    with contextlib.suppress(Exception):  # whatever follows
        load()
    assert canary.exists()


def test_a_criterion_of_a_checkpoint_would_run_code(tmp_path, run_cli, text_data, checkpoints):
    path, canary, state = tmp_path / "hostile.pt", tmp_path / "it-ran", saved(checkpoints["mae_lm_tiny"])
    state["cfg"]["criterion"] = {"_name": "ctc", "wer_args": evil(canary)}
    torch.save(state, path)
    done = run_cli(
        [
            *("fairseq-validate", str(text_data), "--path", str(path), "--user-dir", mae_lm_fairseq.PACKAGE),
            *("--task masked_autoencoder_lm --batch-size 1 --cpu",),
        ]
    )
    assert done.returncode != 0
    assert "cfg.criterion._name = 'ctc'" in done.stdout + done.stderr
    assert not canary.exists()
    task = tasks.setup_task(convert_namespace_to_omegaconf(settings(data=text_data)).task)
    with contextlib.suppress(Exception):
        task.build_criterion(type(config().criterion)(state["cfg"]["criterion"]))
    assert canary.exists()  # fairseq evaluates what is refused


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"task": "multilingual_translation"}, "args.task"),
        ({"arch": "fconv"}, "args.arch"),
        ({"criterion": "ctc"}, "args.criterion"),
        ({"adam_betas": CODE}, "args.adam_betas"),
        ({"data": "${oc.env:HOME}"}, "args.data"),
        ({"criterion": "of_nobody"}, "args.criterion"),
    ],
)
def test_older_checkpoints_are_checked_alike(tmp_path, changes, key):
    path, canary, args = tmp_path / "hostile.pt", tmp_path / "it-ran", settings()
    for name, value in with_code(changes, canary).items():
        setattr(args, name, value)
    torch.save(STATE | {"args": args}, path)
    assert key in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
    assert not canary.exists()


def test_a_configuration_that_grows_is_refused(tmp_path):
    lists = ["x"] * 10
    for _ in range(9):
        lists = [lists] * 10
    path = tmp_path / "hostile.pt"
    torch.save(roberta(common={"values": lists}), path)
    assert "values, as no configuration has" in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
    cycle = {}
    cycle["cycle"] = cycle
    torch.save(roberta(common=cycle), path)
    assert str(path) in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_are_evaluated_like_text(tmp_path, kind):
    path, canary = tmp_path / "hostile.pt", tmp_path / "it-ran"
    code = kind(evil(canary).encode())
    torch.save(roberta(optimizer={"_name": "adam", "adam_betas": code}), path)
    assert "cfg.optimizer.adam_betas" in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
    assert not canary.exists()
    eval(code)
    assert canary.exists()  # Python evaluates what is refused


@pytest.mark.parametrize("part", ["cfg", "args"])
def test_a_configuration_that_is_text_is_refused(tmp_path, part):
    """OmegaConf parses it as YAML, in which a few lines make any number of values."""
    path = tmp_path / "hostile.pt"
    torch.save(STATE | {part: "model: &a [1, 2]\ntask: [*a, *a]\n"}, path)
    assert f"refused {path}: {part} is text" in refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))


@pytest.mark.parametrize("form", ["dict", "namespace", "args"])
def test_building_a_criterion_of_a_checkpoint_writes_no_file(tmp_path, form):
    """fairseq's sentence_ranking opens the file of its option --save-predictions for writing as soon as it is built."""
    path, victim = tmp_path / "hostile.pt", tmp_path / "victim"
    victim.write_text("mine")
    options = {"criterion": "sentence_ranking", "ranking_head_name": "x", "num_classes": 2}
    options["save_predictions"] = str(victim)
    if form == "args":
        args = settings()
        vars(args).update(options)
        torch.save(STATE | {"args": args}, path)
    else:
        criterion = {"_name": "sentence_ranking", **options}
        torch.save(roberta(criterion=Namespace(**criterion) if form == "namespace" else criterion), path)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    tasks.FairseqTask(Namespace()).build_criterion(state["cfg"]["criterion"])
    assert victim.read_text() == "mine"


class TestWhatIsRealStillWorks:
    @pytest.mark.parametrize("name", ["mae_lm_tiny", "exlm_tiny", "classification", "regression", "span", "tags"])
    def test_checkpoints_of_this_package(self, checkpoints, name):
        path = next(path for key, path in checkpoints.items() if key.endswith(name))
        assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"].model == saved(path)["cfg"]["model"]

    def test_bundles(self, bundles):
        assert checkpoint_utils.load_checkpoint_to_cpu(str(bundles["mae_lm_tiny"]))["cfg"].model._name == "mae_lm_tiny"

    @pytest.mark.parametrize("form", ["cfg", "args"])
    def test_fairseqs_roberta(self, tmp_path, text_data, form):
        args = settings("--bpe gpt2", data=text_data)
        args.decoder_attention = "cross"  # a word, as options of this package have
        cfg = convert_namespace_to_omegaconf(args)
        task = tasks.setup_task(cfg.task)
        model = task.build_model(cfg.model)
        written = {"args": args, "cfg": None} if form == "args" else {"args": None, "cfg": container(cfg)}
        torch.save(STATE | written | {"model": model.state_dict()}, tmp_path / "roberta.pt")
        [loaded], _, task = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "roberta.pt")])
        assert torch.equal(loaded.encoder.lm_head.weight, model.encoder.lm_head.weight)
        assert type(task) is TASK_REGISTRY["masked_lm"]

    def test_components_of_the_user_dir(self, monkeypatch):
        component = type("Mine", (TASK_REGISTRY["multilingual_translation"],), {"__module__": "my_directory.tasks"})
        monkeypatch.setitem(TASK_REGISTRY, "mine", component)
        check_saved_configuration({"cfg": {"task": {"_name": "mine", "left_pad_source": "True"}}}, "mine.pt")
        with pytest.raises(RefusedFile, match=r"cfg\.task\.left_pad_source"):
            check_saved_configuration({"cfg": {"task": {"_name": "mine", "left_pad_source": "print()"}}}, "mine.pt")

    def test_components_that_nobody_has_registered(self):
        """Nothing can be built from them, and the weights beside them can start another training."""
        check_saved_configuration({"cfg": {"criterion": {"_name": "of_nobody"}}}, "mine.pt")


def container(cfg) -> dict:
    """Return a configuration as fairseq's trainer saves it."""
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


@pytest.mark.parametrize("form", ["cfg", "args"])
def test_a_user_dir_in_a_checkpoint_is_forgotten(tmp_path, form):
    package = tmp_path / "hostile_package"
    package.mkdir()
    (package / "__init__.py").write_text(f"{evil(tmp_path / 'it-ran')}\n")
    args = settings()
    args.user_dir = str(package)
    written = {"args": args} if form == "args" else {"cfg": container(convert_namespace_to_omegaconf(args))}
    torch.save(STATE | written, tmp_path / "hostile.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "hostile.pt"))
    assert state["cfg"].common.user_dir is None
    assert not (tmp_path / "it-ran").exists()


def calls(tree: ast.AST):
    """Yield name and arguments of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), *map(ast.unparse, node.args)


EVALUATORS = {"eval", *(f"{module}{name}" for module in ("", "utils.", "options.") for name in ("eval_bool",))}
EVALUATORS |= {f"{module}eval_str_{kind}" for module in ("", "utils.", "options.") for kind in ("list", "dict")}
OF_THE_COMMAND_LINE = {"uf", "x", "line.strip()"}
"""Arguments of evaluators that are values of the parser, and lines of the data of a task that is not allowed."""


def test_every_field_that_fairseq_evaluates_is_known():
    fields = set()
    for source in Path(fairseq.__file__).parent.rglob("*.py"):
        if "examples" not in source.parts:
            called = calls(ast.parse(source.read_text()))
            evaluated = {arguments[0] for name, *arguments in called if name in EVALUATORS}
            fields |= {argument.rpartition(".")[2] for argument in evaluated - OF_THE_COMMAND_LINE}
    assert "wer_args" in fields
    assert fields <= EVALUATED


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in ALLOWED for name in sorted(ALLOWED[kind])])
def test_allowed_components_run_nothing_and_write_no_file_that_a_checkpoint_names(kind, name):
    if name not in REGISTRY[kind]:
        pytest.skip("is not in this version of fairseq")
    source = inspect.getsource(importlib.import_module(REGISTRY[kind][name].__module__))
    for function, *arguments in calls(ast.parse(source)):
        assert function not in {"torch.load", "yaml.load", "exec", "importlib.import_module", "pickle.load"}
        if function in EVALUATORS:
            assert arguments[0].rpartition(".")[2] in EVALUATED
        if function.rpartition(".")[2] == "open" and len(arguments) > 1:
            assert arguments[1] in ("'r'", "'rb'") or arguments[0] in ACTING


def test_the_refusal_is_a_user_error():
    assert issubclass(RefusedFile, UserError)
    assert "ctc" in CRITERION_REGISTRY
