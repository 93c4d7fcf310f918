"""Plans of studies: reading, errors with their lines, shipped plans, checks against fairseq and costs."""

import re
import sys
from contextlib import nullcontext
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.core.decoder import DECODERS, SelfAttentionDecoder
from mae_lm_fairseq.measures.measure import Data
from mae_lm_fairseq.measures.registry import MEASURES, OURS
from mae_lm_fairseq.study.checks import check, check_data, count_trainings, dry_run
from mae_lm_fairseq.study.endpoints import ENDPOINTS
from mae_lm_fairseq.study.finetuning_measures import FineTuningOnWords
from mae_lm_fairseq.study.plan import SHIPPED, Contrast, Model, Rates, Train, listing, parse_plan, read_plan
from mae_lm_fairseq.study.runs import options_of
from mae_lm_fairseq.tasks.mask_functions import MASK_FUNCTIONS
from mae_lm_fairseq.utils.errors import UserError
from tests.support import ROOT
from tests.support.huggingface import save_model

PLAN = """\
title = "Two models"

[data]
data_bin = "no-such-data-bin"
text = "valid.txt"
probe_train = "train.conllu"
probe_test = "test.conllu"

[train]
updates = 40
warmup = 4
checkpoints = [10]

[options]
tokens-per-sample = 32

[rates]
halve = "probe.accuracy"
by = 0.5

[[model]]
name = "MLM"
arch = "mae_lm_roberta_tiny"
seeds = 3
learning_rates = [1e-3, 2e-3]

[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
seeds = [1, 2, 5]

[model.options]
mask-prob = 0.3

[[measure]]
kind = "loss"

[[measure]]
kind = "probe"
limit = 5
at = "all"

[[contrast]]
name = "P1"
of = "probe.accuracy"
model = "MAE-LM"
less = "MLM"
predicted = "positive"
primary = true

[[measure]]
kind = "seconds"
at = "last"
"""


def test_a_plan_is_read():
    plan = parse_plan(PLAN, "plan.toml")
    assert plan.checkpoints == [10, 40]
    mlm, mae_lm = plan.models
    assert (mlm.all_seeds, mae_lm.all_seeds) == ((1, 2, 3), (1, 2, 5))
    assert mae_lm.options == {"mask-prob": 0.3}
    loss, probe, seconds = plan.measures
    assert (loss.name, loss.checkpoints(plan.checkpoints)) == ("loss", [10, 40])
    assert (probe.measure.limit, seconds.checkpoints(plan.checkpoints)) == (5, [40])
    assert [count_trainings(plan, model) for model in plan.models] == [4, 3]  # seed 1 at both rates


LOSS = 'kind = "loss"'
RATES = "learning_rates = [1e-3, 2e-3]"
MISTAKES = [
    ("title =", "titel =", "titel"),
    ("text = ", "txt = ", "data: txt"),
    ("tokens-per-sample =", "tokens-per-sampel =", "--tokens-per-sampel 32"),
    ("tokens-per-sample", "seed", "options.seed"),
    ("tokens-per-sample = 32\n", "tokens-per-sample = 32\nmax-tokens = 64\n", "options.max-tokens"),
    ("tokens-per-sample = 32\n\n", "reset-optimizer = true\n\n", "options.reset-optimizer"),
    ("mask-prob = 0.3\n", 'mask-prob-range = "0.5,0.15"\n', "model[2].options.mask-prob-range"),
    ('halve = "probe.accuracy"', 'halve = "prob.accuracy"', "rates.halve: 'prob.accuracy'"),
    ("checkpoints = [10]", "", "rates.halve: probe is measured after [40] updates"),
    ('halve = "probe.accuracy"', 'halve = "loss.loss"', "rates.halve: loss.loss is not by layer"),
    ("mask-prob = 0.3\n", "max-sentences = 8\n", "model[2].options.max-sentences"),
    ('"mae_lm_tiny"', '"mae_lm_tinny"', "model[2]: arch: 'mae_lm_tinny'"),
    ("seeds = 3", "seeds = [2, 2]", "model[1].seeds: [2, 2]"),
    (RATES, "learning_rates = [-1e-3]", "model[1]: learning_rates -0.001"),
    (RATES, 'random = true\nstart = "a.pt"', "model[1].start"),
    (RATES, "random = true\nlearning_rates = [1e-3]", "model[1].learning_rates"),
    ('at = "all"', "at = [20]", "measure[2].at: [20]"),
    ('at = "all"\n\n[', "at = []\n\n[", "measure[2].at: []"),
    ('probe_test = "test.conllu"\n', "", "measure[2].kind: probe needs probe_test"),
    ('of = "probe.accuracy"\nmodel', 'of = "probe.acuracy"\nmodel', "contrast[1].of: probe has no value 'acuracy'"),
    ('at = "all"\n', "at = [10]\n", "contrast[1].of: probe is measured after [10] updates"),
    (
        'of = "probe.accuracy"\nmodel = "MAE-LM"\n',
        'of = "loss.loss"\nmodel = "MAE-LM"\nendpoint = "mean_of_layers"\n',
        "contrast[1].endpoint: mean_of_layers",
    ),
    ('predicted = "positive"\n', "", "contrast[1].predicted"),
    ("primary = true", "margin = 1.0", "contrast[1].predicted"),
    ('"positive"\nprimary', '"equivalent"\nprimary', "contrast[1].predicted"),
    ('less = "MLM"', 'less = "MAE-LM"', "contrast[1].less: P1"),
    ("seeds = 3", "seeds = 1", "contrast[1].model: P1, MAE-LM less MLM, has the seeds [1]"),
    ("seeds = [1, 2, 5]", "seeds = [3, 5]", "contrast[1].model: P1, MAE-LM less MLM, has the seeds [3]"),
    ("seeds = 3", "seeds = [4]", "contrast[1].model: P1, MAE-LM less MLM, has the seeds []"),
    # Some file systems do not tell "Rank" from "rank", nor the two forms of "é".
    ('name = "MAE-LM"\narch', 'name = "MLM"\narch', "model[2].name: 'MLM'"),
    ('name = "MAE-LM"\narch', 'name = "mlm,"\narch', "model[2].name: files cannot tell 'mlm,' from 'MLM'"),
    (
        "primary = true",
        'predict = "positive"',
        "contrast[1]: predict: unknown key; is predicted meant?; there are name,",
    ),
    ("limit = 5", "needs = 5", "measure[2]: needs: unknown key; there are column, limit, random_weights"),
    ('kind = "seconds"', 'kind = "seconds"\nlimit = 5', "measure[3]: limit: unknown key; there are none"),
    (
        '"positive"',
        '"positiv"',
        "predicted: 'positiv' is not one of 'positive', 'negative', 'equivalent', 'not worse'; is",
    ),
    ("[data]", 'formats = "pdf"\n[data]', "formats: 'pdf' is not a list; write ['pdf']"),
    ('"all"', '"lats"', "measure[2].at: 'lats' is not one of 'all', 'last'; 'lats' is not a list"),
    ('"seconds"', '"anisotropy"', "measure[3].kind: 'anisotropy' is not one of loss, "),
    ('"seconds"', '"second"', "nor registered by --user-dir; is seconds meant?"),
    (LOSS, f'{LOSS}\nname = "Probe"', "measure[2].name: files cannot tell 'probe' from 'Probe'"),
    (LOSS, f'{LOSS}\nname = "é"\n[[measure]]\n{LOSS}\nname = "e\u0301"', "measure[2].name"),
]
"""Replaced text, its replacement, and the key that the error names."""


@pytest.mark.parametrize(("right", "wrong", "named"), MISTAKES)
def test_mistakes_are_named(right, wrong, named):
    assert right in PLAN
    with pytest.raises(UserError, match=rf"^plan\.toml: .*{re.escape(named)}"):
        check(parse_plan(PLAN.replace(right, wrong, 1), "plan.toml"), needs_files=False)


IN_ANOTHER_PROCESS = """
import sys
from mae_lm_fairseq import cli
sys.argv = ["mae-lm", "study", "plan.toml"]
try:
    cli.main()
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        *(("text = ", "txt = "), ("updates =", "updaets ="), ('"mae_lm_tiny"', '"mae_lm_tinny"')),
        *(("predicted =", "predict ="), ("halve =", "half ="), ('"seconds"', '"second"')),
        *(('less = "MLM"', 'less = "MML"'), ('of = "probe.accuracy"', 'of = "prob.accuracy"')),
    ],
)
def test_mistakes_of_names_do_not_wait_for_torch(right, wrong, run_cli, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.replace(right, wrong, 1))
    done = run_cli([sys.executable, "-c", IN_ANOTHER_PROCESS], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: plan.toml: ")
    assert wrong.split()[0].strip('"') in done.stderr


def test_the_names_of_our_measures_are_known_before_they_are_imported():
    ours = [kind for kind, measure in MEASURES.items() if measure.__module__.startswith("mae_lm_fairseq.")]
    assert ours == [*OURS]


def test_the_validation_split_is_masked_as_in_training():
    text = PLAN.replace('kind = "loss"', 'kind = "loss"\non = "valid"')
    check(parse_plan(text, "plan.toml"), needs_files=False)
    text = text.replace("mask-prob = 0.3", "random-token-prob = 1.0").replace("2, 5]", '2, 5]\nmasks = "nowhere"')
    with pytest.raises(UserError, match=r"^plan\.toml: model\[2\]\.masks"):
        check(parse_plan(text, "plan.toml"), needs_files=False)


@pytest.mark.parametrize(
    ("scheduler", "lengths"),
    [
        ("polynomial_decay", {"warmup-updates": 4, "total-num-update": 40}),
        ("cosine", {"warmup-updates": 4, "lr-period-updates": 36}),
        ("inverse_sqrt", {"warmup-updates": 4}),
        ("manual", {}),
    ],
)
def test_schedules_have_the_length_of_the_training(scheduler, lengths):
    """Not that of the run until its first checkpoint, after 10 updates."""
    masking = "mask-prob = 0.3\nmask-prob-end = 0.1"
    text = PLAN.replace("mask-prob = 0.3", f'{masking}\nlr-scheduler = "{scheduler}"')
    plan = parse_plan(text, "plan.toml")
    check(plan, needs_files=False)
    options = options_of(plan, plan.models[1])
    names = ("warmup-updates", "total-num-update", "lr-period-updates", "mask-prob-updates")
    assert {name: options[name] for name in names if name in options} == lengths | {"mask-prob-updates": 40}
    assert "mask-prob-updates" not in options_of(plan, plan.models[0])


def test_text_is_measured_at_the_length_of_the_trainings():
    def length(text):
        return parse_plan(text, "plan.toml").measures[0].measure.tokens_per_sample

    assert length(PLAN) == 32
    assert length(PLAN.replace("mask-prob = 0.3", "tokens-per-sample = 16")) == 16  # the shortest
    assert length(PLAN.replace("tokens-per-sample = 32", "")) == 64  # the recipe's
    assert length(PLAN.replace('kind = "loss"', 'kind = "loss"\ntokens_per_sample = 48')) == 48


def test_mistakes_of_the_file_itself():
    with pytest.raises(UserError, match=r"plan\.toml: .*line 1, column 9"):
        parse_plan("title = = 3", "plan.toml")


def test_a_plan_is_shipped_or_a_file_with_any_ending(tmp_path):
    with pytest.raises(UserError, match=r"mine.*evidence"):
        read_plan("mine")
    for name in ("plan", "plan.toml", "plan.txt"):
        path = tmp_path / name
        path.write_text(PLAN)
        assert read_plan(str(path)).models == parse_plan(PLAN, name).models


def test_missing_files_are_named():
    with pytest.raises(UserError, match=r"plan\.toml: data\.data_bin: no-such-data-bin"):
        check(parse_plan(PLAN, "plan.toml"))


def small_plan(data_bin, **tables: str) -> str:
    """Return a plan of one model that can be checked against a data-bin, with further lines of some tables."""
    return f"""
[data]
data_bin = "{data_bin}"
{tables.get("data", "")}
[train]
updates = 4
warmup = 1
[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
{tables.get("model", "")}
[[measure]]
kind = "loss"
on = "valid"
"""


@pytest.mark.parametrize(
    ("table", "line", "key"),
    [
        ("data", 'text = "vaild.txt"', "data.text: vaild.txt"),
        ("model", 'start = "no.pt"', "model[1].start: no.pt"),
        ("model", 'encoder = "no"', "model[1].encoder: no"),
    ],
)
def test_every_file_of_a_plan_is_checked_before_training(data_bin, table, line, key):
    check(parse_plan(small_plan(data_bin), "plan.toml"))
    with pytest.raises(UserError, match=rf"^plan\.toml: {re.escape(key)} does not exist"):
        check(parse_plan(small_plan(data_bin, **{table: line}), "plan.toml"))


def test_mask_functions_and_decoders_are_tried_before_training(data_bin, monkeypatch):
    class WithoutSignature(SelfAttentionDecoder):
        def decode(self, states):
            return states

    monkeypatch.setitem(MASK_FUNCTIONS, "broken", lambda sequence, generator: 1 / 0)
    monkeypatch.setitem(DECODERS, "broken", WithoutSignature)
    monkeypatch.setattr("mae_lm_fairseq.core.config.DECODER_ATTENTIONS", ["self", "cross", "self_cross", "broken"])
    for option in ("mask-function", "decoder-attention"):
        plan = parse_plan(small_plan(data_bin, model=f'options = {{ {option} = "broken" }}'), "plan.toml")
        with pytest.raises(UserError, match=rf"^plan\.toml: model\[1\].options.{option}: .*test_plan\.py, line \d+"):
            check(plan)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_plans_are_valid(name):
    plan = read_plan(name)
    assert len(check(plan, needs_files=False)) == len(plan.models)


def test_the_cost_of_a_plan_is_that_of_its_models():
    """As mae-lm plan mae_lm_base --devices 1 --update-freq 64."""
    plan = read_plan("reproduction-base")
    plan = replace(plan, models=(plan.model("MAE-LM"),))
    report = dry_run(plan, check(plan, needs_files=False))
    first, here, starts, there, *_ = report.splitlines()
    assert first == f"{plan.title}: 5 trainings of 125,000 updates, {5 * 125_000 * 2048 * 512:,} tokens"
    processes = 5 * (1 + len(plan.checkpoints))
    assert f"the start of {processes:,} processes" in starts
    assert (here[:15], there[:7]) == ("On this machine", "On one ")
    assert "| MAE-LM | 5 | 131,072.0 | 139.4 | 8.9 | 330 h |" in report


def test_random_weights_cost_no_training():
    plan = read_plan("quickstart")
    first, second = plan.models  # with one seed each
    plan = replace(plan, models=(replace(first, random=True), second))
    report = dry_run(plan, check(plan, needs_files=False))
    assert f"| {first.name} | 0 |" in report
    assert report.startswith(f"{plan.title}: 1 training of")


STUDIES = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["finetuning.md", "studies.md"])
def test_the_documented_plans_are_valid(page):
    text, *_ = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    check(parse_plan(text, page), needs_files=False)


def test_the_documented_plan_at_equal_flops():
    """The page states its numbers of updates."""
    text, train = re.findall(r"```toml\n(.*?)```", STUDIES, re.DOTALL)
    beginning, _, rest = text.partition("[train]\n")
    _, _, rest = rest.partition("\n\n")
    plan = parse_plan(f"{beginning}{train}\n{rest}", "studies.md")
    [stated] = re.findall(r"`(\d+ trainings of .*? updates)`", STUDIES)
    assert f": {stated}, " in dry_run(plan, check(plan, needs_files=False))


@pytest.mark.parametrize(("key", "wrong"), [("title", "titel"), ("seeds", "seds")])
def test_an_unknown_key_is_compared_with_the_known_ones(key, wrong):
    with pytest.raises(UserError, match=rf"{wrong}: .*; is {key} meant\?"):
        parse_plan(re.sub(rf"^{key} ", f"{wrong} ", PLAN, count=1, flags=re.MULTILINE), "plan.toml")


def test_the_documentation_has_every_key():
    for name, kind in MEASURES.items():
        options = ", ".join(f"`{field.name}`" for field in fields(kind))
        assert re.search(rf"^\| `{name}` \|.*\| {options} \|$", STUDIES, re.MULTILINE)
    for kind in (Train, Model, Contrast, Rates, Data):
        assert not [field.name for field in fields(kind) if f"`{field.name}" not in STUDIES]
    assert not [name for name in ENDPOINTS if f"`{name}`" not in STUDIES]


def test_the_listing_has_plans_measures_with_options_and_endpoints():
    text = listing()
    for name in (*SHIPPED, *MEASURES, *ENDPOINTS):
        assert re.search(rf"^  {name} ", text, re.MULTILINE)
    assert "options: column, limit, random_weights" in text


def test_labels_of_tagging_are_checked_before_training(text_data, tmp_path):
    """The last column of the training file is also that of the development file, whatever its width."""
    (tmp_path / "train.conll").write_text("Ulm\tplace\nleft\tnone\n")
    (tmp_path / "dev.conll").write_text("Ulm\tplace\tx9\n")
    measure = FineTuningOnWords(train=tmp_path / "train.conll", dev=tmp_path / "dev.conll", column="-1")
    measure.check(Data(text_data))
    (tmp_path / "test.conll").write_text("Ulm\t_\n")
    with pytest.raises(UserError, match=r"test\.conll: .*labels"):
        replace(measure, test=tmp_path / "test.conll").check(Data(text_data))
    (tmp_path / "dev.conll").write_text("Elbe\triver\tnone\n")
    with pytest.raises(UserError, match=r"dev\.conll: line 1: .*'river'"):
        measure.check(Data(text_data))


def test_incomplete_data_are_refused_before_training(data_bin, tmp_path):
    with pytest.raises(UserError, match=r"dict\.txt"):
        check_data(tmp_path)
    for name in ("dict.txt", "train.bin", "train.idx"):
        (tmp_path / name).symlink_to(data_bin / name)
    with pytest.raises(UserError, match="valid"):
        check_data(tmp_path)
    check_data(data_bin)


NO_FILE_NAMES = ["/abs/evil", "a/b", "../evil", ".hidden", "", "a\\nb", "a\\u0000b", "Contrasts", "ä" * 101]


@pytest.mark.parametrize("name", NO_FILE_NAMES)
def test_names_of_measures_that_are_no_file_names_are_refused(name):
    with pytest.raises(UserError, match=r"measure\[1\]\.name"):
        parse_plan(PLAN.replace(LOSS, f'{LOSS}\nname = "{name}"'), "plan.toml")


@pytest.mark.parametrize("name", ["rank, centred", "rank at 80 %", "loss, version 1.5", "UPOS (last)", "Verlust, ß"])
def test_names_of_measures_that_are_file_names(name):
    text = PLAN.replace('kind = "loss"\n', f'kind = "loss"\nname = "{name}"\n')
    text = text.replace("[rates]", f'[rates]\nlowest = "{name}.loss"')
    assert parse_plan(text, "plan.toml").measures[0].name == name


def test_models_and_contrasts_may_have_slashes():
    text = PLAN.replace('"MLM"', '"80/10/10"').replace('name = "P1"', 'name = "80/10/10 against 15 %"')
    assert parse_plan(text, "plan.toml").models[0].directory == "80-10-10"
    assert parse_plan(PLAN.replace('"MLM"', '"contrasts"'), "plan.toml").models[0].name == "contrasts"


def test_a_plan_that_would_fill_the_memory_is_refused(tmp_path):
    with open(tmp_path / "plan.toml", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"plan\.toml: .*1 MB"):
        read_plan(str(tmp_path / "plan.toml"))


def test_measure_and_value_may_have_dots():
    text = PLAN.replace('kind = "loss"', 'kind = "loss"\nname = "loss, version 1.5"')
    text = text.replace("[rates]", '[rates]\nlowest = "loss, version 1.5.accuracy"')
    plan = parse_plan(text, "plan.toml")
    measure, value = plan.measure_and_value("loss, version 1.5.accuracy")
    assert (measure.name, value) == ("loss, version 1.5", "accuracy")
    assert plan.find_measure("loss, version 1") is None


class TestCodeComesFromTheCommandLineAlone:
    @pytest.fixture
    def canary(self, tmp_path):
        package = tmp_path / "evil"
        package.mkdir()
        (package / "__init__.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')\n")
        yield package
        assert not (tmp_path / "it-ran").exists()

    @pytest.mark.parametrize(
        ("option", "named"),
        [
            ('user-dir = "{}"', "user-dir"),
            ('user_dir = "{}"', "user_dir"),
            ('"user-dir={}" = true', "user-dir="),
            ('wandb-project = "mine"', "--wandb-project"),
            ('train-subset = "--user-dir={}"', "--train-subset"),
            ('"train-subset --user-dir" = "{}"', "train-subset --user-dir"),
            ('adam-betas = "__import__(\\"evil\\")"', r"optimizer\.adam_betas"),
            ('pipeline-balance = "__import__(\\"evil\\")"', "pipeline_balance"),
            ('criterion = "ctc"\nwer-args = "__import__(\\"evil\\")"', r"criterion\._name"),
            ('log-file = "{}"', "log-file"),
            ('tensorboard-logdir = "{}"', "tensorboard-logdir"),
            ('criterion = "sentence_ranking"\nsave-predictions = "{}"', "save-predictions"),
            ('use_plasma_view = true\nplasma-path = "{}"', "use_plasma_view"),
            ('checkpoint-suffix = "/../{}"', "checkpoint-suffix"),
            ('distributed-init-method = "tcp://example.org:1"', "distributed-init-method"),
        ],
    )
    @pytest.mark.parametrize("place", ["[options]", "[model.options]"])
    def test_options_of_a_plan(self, canary, place, option, named, monkeypatch):
        monkeypatch.syspath_prepend(canary.parent)
        text = PLAN.replace(place, f"{place}\n{option.format(canary)}")
        with pytest.raises(UserError, match=named):
            check(parse_plan(text, "plan.toml"), needs_files=False)

    @pytest.mark.parametrize("name", ["evil", "evil.mine", "evil:mine", "{}"])
    @pytest.mark.parametrize("option", ["mask-function", "decoder-attention", "task", "criterion"])
    def test_names_of_a_plan_import_nothing(self, canary, option, name, monkeypatch):
        monkeypatch.syspath_prepend(canary.parent)
        text = PLAN.replace("[model.options]", f'[model.options]\n{option} = "{name.format(canary)}"')
        with pytest.raises(UserError, match="evil"):
            check(parse_plan(text, "plan.toml"), needs_files=False)

    @pytest.mark.parametrize("name", ["evil", "{}"])
    def test_the_kind_of_a_measure_imports_nothing(self, canary, name, monkeypatch):
        monkeypatch.syspath_prepend(canary.parent)
        with pytest.raises(UserError, match="evil"):
            parse_plan(PLAN.replace('kind = "loss"', f'kind = "{name.format(canary)}"'), "plan.toml")

    def test_a_task_of_another_kind(self):
        text = PLAN.replace("[options]", '[options]\ntask = "masked_lm"')
        with pytest.raises(UserError, match=r"options\.task: --task masked_lm: choose one of pretraining"):
            check(parse_plan(text, "plan.toml"), needs_files=False)

    def test_the_data_bin_of_a_plan(self, canary, monkeypatch):
        monkeypatch.chdir(canary.parent)
        with pytest.raises(UserError, match="--user-dir=evil"):
            check(parse_plan(PLAN.replace("no-such-data-bin", "--user-dir=evil"), "plan.toml"), needs_files=False)

    def test_the_start_of_a_plan(self, canary, monkeypatch, files_are_read):
        monkeypatch.chdir(canary.parent)
        with pytest.raises(UserError, match="--user-dir=evil"):
            check(parse_plan(from_start("--user-dir=evil"), "plan.toml"))


@pytest.fixture
def files_are_read(monkeypatch):
    """Take the files of the plan, which do not exist, for read."""
    monkeypatch.setattr("mae_lm_fairseq.study.checks.check_data", lambda data: None)
    monkeypatch.setattr("mae_lm_fairseq.study.checks.files_of", lambda plan: {})
    for kind in ("probe", "loss"):
        monkeypatch.setattr(MEASURES[kind], "check", lambda measure, data: None)


def from_start(start: object) -> str:
    """Return the plan, with a start of one model."""
    return PLAN.replace('name = "MAE-LM"', f'start = "{start}"\nname = "MAE-LM"')


def test_a_start_of_transformers_is_refused_before_the_training(tmp_path, files_are_read):
    """fairseq-train would refuse it, once the study has begun."""
    save_model(tmp_path, "bert", ["a"])
    with pytest.raises(UserError, match="mae-lm import"):
        check(parse_plan(from_start(tmp_path), "plan.toml"))


@pytest.mark.parametrize(
    ("difference", "is_refused"),
    [
        ({"decoder_layers": 1, "dropout": 0.0}, False),
        ({"encoder_layers": 3}, True),
        ({"max_positions": 600}, True),
        ({"pre_norm": True}, True),
        ({"relative_max_distance": 64}, True),
    ],
)
def test_a_start_has_the_encoder_of_its_model(difference, is_refused, tmp_path, files_are_read, monkeypatch):
    start = SimpleNamespace(config=preset_config("mae_lm", "tiny", **difference))
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr("mae_lm_fairseq.study.checks.read_bundle", lambda path: start)
    plan = parse_plan(from_start(tmp_path), "plan.toml")
    with pytest.raises(UserError, match="|".join(difference)) if is_refused else nullcontext():
        check(plan)
