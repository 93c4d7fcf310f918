"""The commands that measure trained models: minimal pairs, probes, evaluation."""

import json
import math

import numpy as np
import pytest
import torch

from mae_lm_fairseq import MAELMModel, cli
from mae_lm_fairseq.measures.evaluation import evaluation_table, perplexity
from mae_lm_fairseq.measures.probe import fitted, predicts
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.text.conllu import read_conllu
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.masked_prediction import as_words
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT
from tests.support.huggingface import save_model, tiny_masked_lm

pytestmark = pytest.mark.integration  # runs the commands

PAIRS = [
    ("the fox jumps over the dog .", "the fox jump over the dog ."),
    ("the dog sleeps in the garden", "the dog in the garden sleeps"),
    ("viktor does not .", "viktor does not not not ."),
]
TAGS = {"the": "DET", "dog": "NOUN", "fox": "NOUN", "sleeps": "VERB", "jumps": "VERB", "lazy": "ADJ", "brown": "ADJ"}


@pytest.fixture
def zorro(tmp_path):
    (tmp_path / "zorro").mkdir()
    for name in ("agreement-simple", "agreement-far", "ellipsis"):
        text = "".join(f"{bad}\n{good}\n" for good, bad in PAIRS)
        (tmp_path / "zorro" / f"{name}.txt").write_text(text)
    return tmp_path / "zorro"


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    words = sorted({word for pair in PAIRS for text in pair for word in text.split()})
    return save_model(tmp_path_factory.mktemp("stock") / "bert", "bert", words, tiny_masked_lm)


def run(verb, *arguments):
    cli.run(verb, list(map(str, arguments)))


def results_of(directory):
    return json.loads((directory / "results.json").read_text())


def test_results_of_a_command_that_trains_are_not_replaced(bundles, zorro, tmp_path):
    Products(tmp_path / "out", "mae-lm finetune glue", ())
    with pytest.raises(UserError, match="has the results of mae-lm finetune glue"):
        run("minimal-pairs", bundles["mae_lm_tiny"], "--pairs", zorro, "--out", tmp_path / "out")


class TestMinimalPairs:
    def test_report_covers_models_and_controls(self, checkpoints, bundles, text_data, stock, zorro, tmp_path):
        models = [checkpoints["mae_lm_tiny"], bundles["mae_lm_roberta_tiny"], stock]
        options = ["--data-bin", text_data, "--pairs", zorro, "--limit", 2]
        run("minimal-pairs", *models, *options, "--labels", "MAE-LM", "MLM", "BERT", "--out", tmp_path / "out")
        results = results_of(tmp_path / "out")
        assert results["pairs"] == {"directory": str(zorro), "limit": 2, "paradigms": 3, "pairs": 6}
        # dict.txt has no counts here, and the other models come without training data.
        assert [*results["models"]] == ["MAE-LM", "MLM", "BERT"]
        for model in results["models"].values():
            assert [*model["scores"]] == ["model", "random weights", "length"]
            assert [*model["scores"]["model"]["fields"]] == ["agreement", "ellipsis"]
            assert len(model["scores"]["model"]["paradigms"]) == 3
        report = (tmp_path / "out" / "report.md").read_text()
        assert report.count("\n## ") == 3
        assert "| MAE-LM | " in report

    def test_report_has_the_phenomena_of_blimp(self, bundles, tmp_path):
        for number, (good, bad) in enumerate(PAIRS):
            row = {
                "sentence_good": good,
                "sentence_bad": bad,
                "field": "syntax",
                "linguistics_term": f"term {number % 2}",
            }
            (tmp_path / f"{number}.jsonl").write_text(json.dumps({**row, "UID": f"paradigm {number}"}))
        run("minimal-pairs", bundles["mae_lm_tiny"], "--pairs", tmp_path, "--out", tmp_path / "out")
        report = (tmp_path / "out" / "report.md").read_text()
        for group, names in {"field": ["syntax"], "phenomenon": ["term 0", "term 1"]}.items():
            _, table = report.split(f"| {group} | pairs | ")
            assert [line.split(" | ")[0] for line in table.splitlines()[2 : 2 + len(names)]] == [
                f"| {n}" for n in names
            ]
        [model] = results_of(tmp_path / "out")["models"].values()
        assert [*model["scores"]["random weights"]["phenomena"]] == ["term 0", "term 1"]

    def test_accuracy_is_that_of_the_scores(self, bundles, zorro, tmp_path):
        run("minimal-pairs", bundles["mae_lm_tiny"], "--pairs", zorro, "--out", tmp_path)
        hub = MAELMModel.from_pretrained(bundles["mae_lm_tiny"])
        good, bad = (hub.score([pair[side] for pair in PAIRS]) for side in (0, 1))
        [model] = results_of(tmp_path)["models"].values()
        assert model["scores"]["model"]["overall"]["accuracy"] == pytest.approx((good > bad).double().mean().item())

    def test_unigram_control_counts_a_text(self, bundles, zorro, tmp_path):
        (tmp_path / "text").write_text("the fox jump over\n" * 9)
        options = ["--pairs", zorro, "--unigram", tmp_path / "text", "--mask-words", "--out", tmp_path / "out"]
        run("minimal-pairs", bundles["mae_lm_tiny"], *options)
        results = results_of(tmp_path / "out")
        assert results["settings"]["mask_words"] is True
        assert "unigram" in results["models"]["mae_lm_tiny"]["scores"]


def test_evaluation_equals_a_loop(bundles, stock, tmp_path, capsys):
    (tmp_path / "text").write_text("\n".join(TEXT[:3]) + "\n\n" + "\n".join(TEXT[3:]) + "\n", encoding="utf-8")
    options = ["--text", tmp_path / "text", "--out", tmp_path / "json", "--tokens-per-sample", 40]
    run("evaluate", bundles["mae_lm_tiny"], stock, *options)
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "json").read_text())["models"]["mae_lm_tiny"]
    assert "| bert | " in printed
    assert f"| mae_lm_tiny | {found['loss']:.3f} | " in printed

    reader = open_model(bundles["mae_lm_tiny"], None, with_head=True)
    texts = [text.ids.tolist() for text, _ in reader.texts(tmp_path / "text", 40, 1000)]
    starts = np.array([symbol.startswith("\u2581") for symbol in open_pretrained(bundles["mae_lm_tiny"]).symbols])
    log_likelihoods = {"masked": [], "tokens": [], "words": []}
    for number, ids in enumerate(texts):
        scored = [position for position, index in enumerate(ids) if index not in (0, 2)]
        words = np.split(scored, [k for k, position in enumerate(scored) if k and starts[ids[position]]])
        chosen = np.random.default_rng((1, number)).choice(scored, round(0.15 * len(scored)), replace=False)
        rows = {"masked": [sorted(chosen)], "tokens": [[position] for position in scored], "words": words}
        for name, masks in rows.items():
            for mask in masks:
                log_likelihoods[name] += masked_log_likelihoods(reader, ids, mask)
        found["words"] -= len(words)
    mean = {name: np.sum(values) / len(values) for name, values in log_likelihoods.items()}
    assert found["loss"] == pytest.approx(-mean["masked"], abs=1e-5)
    assert found["predicted"] == len(log_likelihoods["masked"])
    _, counts = np.unique([index for ids in texts for index in ids if index not in (0, 2)], return_counts=True)
    frequencies = counts / counts.sum()
    assert found["unigram_entropy"] == pytest.approx(-(frequencies * np.log(frequencies)).sum(), rel=1e-9)
    assert found["pseudo_perplexity_per_token"] == pytest.approx(math.exp(-mean["tokens"]), rel=1e-5)
    assert found["words"] == 0


@pytest.mark.parametrize(
    ("options", "length", "others"),
    [([], 32, ""), (["--tokens-per-sample", 16], 16, "; mae_lm_tiny was trained with 32; mae_lm_tiny.pt")],
)
def test_the_default_length_is_that_of_the_training(
    checkpoints, bundles, text_data, stock, tmp_path, capsys, options, length, others
):
    """Bundles and checkpoints know it; the length of another model is unknown."""
    (tmp_path / "text").write_text("\n\n".join(pair[0] for pair in PAIRS * 9))
    models = [bundles["mae_lm_tiny"], checkpoints["mae_lm_tiny"], stock]
    labels = ["--labels", "mae_lm_tiny", "mae_lm_tiny.pt", "bert"]
    files = ["--data-bin", text_data, "--text", tmp_path / "text", "--out", tmp_path / "out.json"]
    run("evaluate", *models, *files, *options, *labels, "--tokens", 300, "--pseudo-tokens", 50)
    assert f"sequences of up to {length} tokens{others}" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["settings"]["tokens_per_sample"] == length


def test_a_perplexity_without_meaning_is_not_a_number():
    assert perplexity(-20.0, 10) == pytest.approx(math.exp(2))
    assert perplexity(-1e5, 2) is None  # does not fit a float
    assert perplexity(-100.0, 2) is None
    measured = {"loss": 2.0, "unigram_entropy": 3.0, "accuracy": 0.5, "pseudo_perplexity_per_token": 1234.5}
    printed = evaluation_table({"model": {**measured, "pseudo_perplexity_per_word": None}}, 0.15)
    assert printed.endswith("| model | 2.000 | 3.000 | 50.0% | 1,234.50 | above 1e+12 |")


def masked_log_likelihoods(reader, ids, mask) -> list[float]:
    tokens, is_predicted = torch.tensor([ids]), torch.zeros((1, len(ids)), dtype=torch.bool)
    is_predicted[0, mask] = True
    logits = reader.predictor(tokens.masked_fill(is_predicted, reader.predictor.mask), is_predicted)
    return logits.log_softmax(-1)[range(len(mask)), tokens[is_predicted]].tolist()


def probed(bundles, files, tmp_path, *options):
    """Run the verb, and return its results of the model."""
    train, test = files
    run("probe", bundles["mae_lm_tiny"], "--train", train, "--test", test, "--out", tmp_path / "out", *options)
    [model] = results_of(tmp_path / "out")["models"].values()
    return model


class TestProbe:
    @pytest.fixture
    def files(self, tmp_path):
        generator = np.random.default_rng(0)
        paths = []
        for name, sentences in (("train", 60), ("test", 30)):
            rows = []
            for _ in range(sentences):
                words = generator.choice(list(TAGS), generator.integers(2, 9))
                rows += ["\t".join([str(k), word, "_", TAGS[word], *"______"]) for k, word in enumerate(words, 1)]
                rows.append("")
            paths.append(tmp_path / name)
            paths[-1].write_text("\n".join(rows) + "\n")
        return paths

    def test_report_has_layers_controls_and_what_words_alone_tell(self, bundles, files, tmp_path):
        """A word with two labels in training: the lookup takes its most frequent one, in one test word of two."""
        for path, labels in ((files[0], ["VERB", "VERB", "NOUN"]), (files[1], ["VERB", "NOUN"])):
            rows = ["\t".join(["1", "saw", "_", label, *"______"]) + "\n" for label in labels]
            path.write_text(path.read_text() + "\n".join(rows) + "\n")
        model = probed(bundles, files, tmp_path)
        assert [row["layer"] for row in model["layers"]] == [0, 1, 2]
        assert len(model["random weights"]) == 3
        assert model["majority"]["accuracy"] < model["layers"][1]["accuracy"]
        assert model["lookup"]["accuracy"] == pytest.approx(1 - 1 / model["test_words"])
        report = (tmp_path / "out" / "report.md").read_text()
        assert "Of the test words 2 are ambiguous." in report
        assert f"| lookup | {100 * model['lookup']['accuracy']:.1f}% [" in report
        assert "] | 50.0% |  |" in report
        assert f"] | {100 * model['layers'][2]['ambiguous_accuracy']:.1f}% |" in report

    def test_accuracy_equals_a_loop(self, bundles, files, tmp_path):
        """One sentence at a time; the first subword is found by encoding what comes before the word."""
        model = probed(bundles, files, tmp_path, "--dev", files[0])
        reader, sets = open_model(bundles["mae_lm_tiny"], None), []
        for path in files:
            states, labels = [], []
            for sentence in read_conllu(path, "UPOS"):
                tokens = torch.tensor([[0, *reader.encode(sentence.text)[0], 2]])
                layers = reader.states(tokens, see_masks=False)
                for start, label in zip(sentence.starts, sentence.labels, strict=True):
                    before = len(reader.encode(sentence.text[:start])[0]) if start else 0
                    states.append([layer.states[1 + before].numpy() for layer in layers])
                    labels.append(label)
            sets.append((np.array(states), labels))
        for layer, row in enumerate(model["layers"]):
            train, test = ((states[:, layer], labels) for states, labels in sets)
            classifier = fitted(*train)
            correct, dev = predicts(classifier, *test), predicts(classifier, *train)
            assert row["accuracy"] == pytest.approx(correct.mean(), abs=1 / len(correct))
            assert row["dev_accuracy"] == pytest.approx(dev.mean(), abs=1 / len(dev))
        assert model["best_layer"] == max(model["layers"], key=lambda row: row["dev_accuracy"])["layer"]

    def test_words_beyond_the_longest_text_are_left_out(self, bundles, files, tmp_path):
        rows = ["\t".join([str(k), "dog", "_", "NOUN", *"______"]) for k in range(1, 200)]
        files[1].write_text("\n".join(rows) + "\n\n" + files[1].read_text())
        model = probed(bundles, files, tmp_path)
        assert model["test_words"] < len([x for part in read_conllu(files[1], "UPOS") for x in part.labels])


class TestReaders:
    def test_random_weights_are_the_same_every_time(self, bundles, tmp_path):
        trained = open_pretrained(bundles["mae_lm_tiny"])
        trained.weights["autoencoder.lm_head.dense.weight"] += 1
        write_bundle(trained, tmp_path / "trained")
        paths = bundles["mae_lm_tiny"], tmp_path / "trained"
        random, same, loaded = (
            open_model(path, None, with_head=True, random_weights=x).predictor.network.lm_head.dense.weight
            for path, x in zip((*paths, paths[1]), (True, True, False), strict=True)
        )
        assert torch.equal(random, same)
        assert torch.equal(loaded, trained.weights["autoencoder.lm_head.dense.weight"])
        assert not torch.equal(random, loaded)

    def test_random_hugging_face_weights(self, stock):
        before = torch.get_rng_state()
        trained, random = (open_model(stock, None, random_weights=x).states.encoder for x in (False, True))
        assert torch.equal(before, torch.get_rng_state())
        assert trained.state_dict().keys() == random.state_dict().keys()
        assert not torch.equal(trained.embed_tokens.weight, random.embed_tokens.weight)

    def test_models_without_a_head_are_refused(self, bundles, tmp_path):
        encoder = save_model(tmp_path / "bert", "bert", ["a"])
        imported = tmp_path / "imported"
        write_bundle(import_foreign(encoder, "mae_lm_roberta"), imported)
        for path in (encoder, imported, bundles["classification"]):
            open_model(path, None)
            with pytest.raises(UserError, match=path.name):
                open_model(path, None, with_head=True)
        with pytest.raises(ValueError, match="lm_head"):
            MAELMModel.from_pretrained(imported).fill_mask("the <mask>")

    def test_words_are_those_of_both_tokenizers(self, bundles, stock):
        text = "the fox  jumps over the dog ."
        for path in (bundles["mae_lm_tiny"], stock):
            sentence = as_words(open_model(path, None).tokenizer, text)
            assert sentence.words[[0, -1]].tolist() == [-1, -1]
            assert len({*sentence.words[1:-1].tolist()}) == len(text.split())
