"""docs/findings.md and README.md's section on the method say what the committed results say, and no other number."""

import re

import numpy as np
import pytest

from experiments import front_page, larger_study, reproduction, separation, three_ml
from experiments.findings import (
    ALL,
    AMBIGUOUS,
    BERT,
    EXCLUSIVITY,
    HIGH,
    LOW,
    MAE,
    MLM,
    RESULTS,
    full_input,
    glue_scores,
    last_layer,
    layers,
)
from mae_lm_fairseq.study.contrasts import interval

FINDINGS = front_page.page("docs/findings.md")
NAMES = re.compile(r"Theorem 2\.2|Lemma 2\.1|Figures? \d[ab]?\b|Table 1|3ML|H100|SST-2|STS-B|nDCG@10|BM25")
"""Names that contain a digit."""
CONVENTIONS = (
    "95 % intervals",
    "hold 90 % of the energy",
    "directions that hold 99 % of theirs",
    "keeps a tenth of the predicted tokens and replaces another tenth",
    "one way of counting",
    "half of the tokens masked",
    "The paper states 78 % and 68 %",
)
"""Numbers that define something or that a paper states. They are not measured."""
NUMBERS = re.compile(rf"\d+|\b(?:{'|'.join(front_page.NUMBER_WORDS)}|half|thirds?|quarters?|fifths?|tenths?|twice)\b")


@pytest.mark.parametrize("topic", front_page.STATEMENTS)
def test_the_page_says_what_the_results_say(topic):
    assert [statement for statement in front_page.STATEMENTS[topic]() if statement not in FINDINGS] == []


@pytest.mark.parametrize("topic", front_page.ON_THE_FRONT_PAGE)
def test_the_section_says_what_the_results_say(topic):
    section = front_page.section()
    assert [statement for statement in front_page.ON_THE_FRONT_PAGE[topic]() if statement not in section] == []


def test_the_front_page_says_what_an_adaptation_did():
    assert front_page.adaptation()[0] in front_page.page("README.md")


@pytest.mark.parametrize("text", [FINDINGS, front_page.section()], ids=["docs/findings.md", "README.md"])
def test_there_is_no_other_number(text):
    statements = [*CONVENTIONS]
    for topics in (front_page.STATEMENTS, front_page.ON_THE_FRONT_PAGE):
        for compute in topics.values():
            statements += compute()
    for statement in sorted(statements, key=len, reverse=True):
        text = text.replace(statement, "")
    assert NUMBERS.findall(NAMES.sub("", text).lower()) == []


def includes_zero(differences) -> bool:
    low, high = interval([*differences])
    return low < 0 < high


def test_mask_lies_outside_in_last_layers_by_masking_and_rate():
    outside_all = {
        (model, rate): (layers(model, front_page.QUANTILE, rate)[:, -1] == 1)
        for model in (BERT, MLM)
        for rate in (HIGH, LOW)
    }
    assert outside_all[BERT, HIGH].all()
    assert outside_all[BERT, LOW].all()
    assert outside_all[MLM, LOW].all()
    assert not outside_all[MLM, HIGH].any()
    assert not (larger_study.by_layer(MLM, "type_quantile")[:, -1] == 1).any()


def test_mask_lies_as_far_outside_in_the_larger_mae_lm():
    assert includes_zero(larger_study.contrast("exclusivity, layers above the first")["by_seed"].values())


def test_planned_tests_have_the_verdicts_of_the_section():
    exclusivity = layers(MLM, EXCLUSIVITY)[:, 2:].mean(1)
    gain = front_page.gain_of_the_probe(MAE) - front_page.gain_of_the_probe(ALL)
    last = last_layer(MAE, AMBIGUOUS) - last_layer(MLM, AMBIGUOUS)
    assert interval([*exclusivity])[0] > 0
    assert interval([*gain])[1] < 0
    assert interval([*last])[0] > 0


def test_the_rank_of_mask_falls_from_the_embeddings_when_centred_and_in_the_shorter_study():
    centred = layers(MLM, "rank, centred.mask_as_trained")
    shorter = reproduction.directions(reproduction.MLM, "mask", "as_trained").mean(0)
    assert (centred[:, -1] < centred[:, 0]).all()
    assert shorter[-1] < shorter[0]
    assert (np.diff(shorter[1:]) > 0).all()


def test_the_only_exception_to_deeper_is_more_is_the_mlm_at_the_higher_rate():
    gains = front_page.gains_in_the_last_layer()
    assert [cell for cell, gain in gains.items() if gain <= 0] == [(MLM, HIGH)]
    assert max(full_input(model, rate).mean(0).max() for model, rate in gains) < 5


@pytest.mark.parametrize("rate", [HIGH, LOW])
@pytest.mark.parametrize("measure", ["rank at 80 %", "rank", "rank at 95 %", "rank at 99 %", "rank, centred"])
def test_real_tokens_have_fewer_directions_in_mae_lm(measure, rate):
    value = f"{measure}.real_clean"
    assert (last_layer(MAE, value, rate) < last_layer(MLM, value, rate)).all()


def test_real_tokens_have_fewer_directions_in_mae_lm_in_the_shorter_study():
    mae = reproduction.directions(reproduction.MAE, "real", "clean")
    mlm = reproduction.directions(reproduction.MLM, "real", "clean")
    assert (mae[:, -1] < mlm[:, -1]).all()


def test_what_cannot_be_told_has_zero_in_its_interval():
    runs = separation.read(RESULTS / "separation/results.json")
    figure_3 = reproduction.scores(reproduction.MAE, reproduction.FIVE_SEEDS) - reproduction.scores(
        reproduction.MLM, reproduction.FIVE_SEEDS
    )
    assert includes_zero(separation.pairs(runs, separation.RESET, MAE, separation.GAIN).values())
    assert includes_zero(reproduction.scores(reproduction.ALL) - reproduction.scores(reproduction.MAE))
    assert includes_zero(reproduction.scores(reproduction.THREE_ML) - reproduction.scores(reproduction.MLM))
    assert includes_zero(figure_3)


def test_the_larger_study_decides_nothing():
    contrast = larger_study.contrast
    assert contrast("SST-2")["interval_95"][0] > 0
    assert contrast("CoLA")["interval_95"][1] < 0
    assert contrast("STS-B")["interval_95"][1] < 0
    assert contrast("SST-2, 0.0001")["mean"] < contrast("SST-2, 5e-05")["mean"]


def test_random_weights_reach_about_as_much_on_sst2_and_stsb():
    for model in (MLM, MAE):
        sst2 = larger_study.official_rows(model)
        stsb = larger_study.report()["means"][model]["STS-B"]
        assert abs(sst2 - glue_scores("scratch", "SST-2").mean()) < 2
        assert abs(stsb - glue_scores("scratch", "STS-B").mean()) < 2


def test_3ml_saves_no_time_on_an_h100():
    for of_3ml, of_mlm in three_ml.steps_on_an_h100():
        assert of_3ml >= of_mlm
