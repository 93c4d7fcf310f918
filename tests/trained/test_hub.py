"""The hub interface, against the outputs of the fairseq model."""

import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import AutoModelForMaskedLM

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface import modeling  # noqa: F401  registers the class
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.info import SentenceTask
from mae_lm_fairseq.trained.reading import read_bundle
from tests.support.bundles import TEXT, VARIANTS, fairseq_model, saved
from tests.support.comparisons import assert_close, assert_equal
from tests.support.exports import with_facts
from tests.support.finetuning import HEAD, set_up_finetuning
from tests.support.refusals import refused

PRESETS = [name for name in VARIANTS if name.endswith("_tiny")]
RAGGED = [*TEXT, "a", "", "The <mask> jumps over <mask>.", TEXT[0]]


@pytest.fixture(scope="module")
def hubs(bundles):
    return {name: MAELMModel.from_pretrained(bundle) for name, bundle in bundles.items()}


@pytest.fixture(scope="module")
def hub(hubs):
    return hubs["mae_lm_tiny"]


class TestFormsOfFromPretrained:
    def test_fairseqs_arguments_give_the_same_model(self, checkpoints, text_data, tmp_path, monkeypatch):
        checkpoint = checkpoints["mae_lm_tiny"]
        (tmp_path / "ck").mkdir()
        for name in ("checkpoint_last.pt", "other.pt"):
            (tmp_path / "ck" / name).symlink_to(checkpoint)
        (tmp_path / "bin").symlink_to(text_data)
        (tmp_path / "ck/inside").symlink_to(text_data)
        monkeypatch.chdir(tmp_path)
        load = MAELMModel.from_pretrained
        expected = load(checkpoint, text_data).state_dict()
        forms = [
            load("ck/other.pt", "bin"),
            load(path="ck/other.pt", data_bin="bin"),
            load("ck", "other.pt", "bin"),
            load("ck", "other.pt", "./inside"),
            load("ck", "bin", checkpoint_file="other.pt"),
            load("ck", data_name_or_path="bin"),
            load(model_name_or_path="ck", checkpoint_file="other.pt", data_name_or_path="bin"),
        ]
        for form in forms:
            assert form.tokenizer
            assert_equal(form.state_dict(), expected)
        with refused(r"ck .*config\.json"):
            load("ck", "bin")
        with refused(r"ck/absent.pt"):
            load("ck", "absent.pt", "bin")


class TestText:
    @pytest.mark.parametrize("text", TEXT)
    def test_decoding_restores_text(self, hub, text):
        ids = hub.encode(text)
        assert ids.dtype == torch.int64
        assert (ids[0], ids[-1]) == (0, 2)
        assert hub.decode(ids) == unicodedata.normalize("NFKC", text)

    def test_pairs_are_those_of_sentence_prediction(self, hub):
        first, second = hub.encode("The dog"), hub.encode("the fox")
        pair = hub.encode("The dog", "the fox")
        assert pair.tolist() == [*first.tolist(), 2, *second.tolist()[1:]]
        assert hub.decode(pair) == ["The dog", "the fox"]

    def test_specials_in_a_text_are_text(self, hub):
        assert not {0, 1, 2} & set(hub.encode("<s> </s> <pad>")[1:-1].tolist())

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.sampled_from([*["The", "dog,", "über", "фox", "東京", "(1)"], "<mask>"]), max_size=8))
    def test_masks_stand_for_words(self, hub, words):
        ids = hub.encode(" ".join(words))
        assert ids.eq(hub.model.mask).sum() == words.count("<mask>")
        assert hub.decode(ids) == " ".join(words)

    @pytest.mark.parametrize("text", [None, 5, ["a"], b"a"])
    def test_what_is_no_text_is_refused(self, hub, text):
        for use in (hub.encode, hub.fill_mask):
            with pytest.raises(TypeError, match="a text is a string, not"):
                use(text)

    def test_text_after_a_mask_continues_the_word(self, hub):
        """A full stop after a mask is encoded as after a word."""
        assert hub.encode("in <mask>.").tolist()[-3:] == [hub.model.mask, *hub.encode("in dog.").tolist()[-2:]]
        assert hub.decode(hub.encode("<mask><mask>s")) == "<mask> <mask>s"


def test_a_model_without_tokenizer_names_its_files(checkpoints, text_data, tmp_path):
    (tmp_path / "dict.txt").symlink_to(text_data / "dict.txt")
    loaded = MAELMModel.from_pretrained(checkpoints["mae_lm_tiny"], tmp_path)
    assert loaded.extract_features([0, 5, 2]).shape[1] == 3
    with pytest.raises(ValueError, match=r"sentencepiece\.bpe\.model.*encoder\.json and vocab\.bpe.*data_bin"):
        loaded.encode("The fox")


class TestInputs:
    """Inputs that would silently be taken for something else are refused."""

    def test_ids_of_one_text(self, hub):
        ids = hub.encode("The fox")
        assert hub.decode(ids) == hub.decode(ids.tolist()) == hub.decode(ids.numpy()) == "The fox"
        with pytest.raises(ValueError, match=r"the token ids of one text are integers \[T\], not torch"):
            hub.decode(ids[None])
        for wrong in (-1, len(hub.symbols)):
            for call in (hub.decode, hub.extract_features):
                with pytest.raises(ValueError, match=rf"the token id {wrong} is not in the dictionary"):
                    call([0, wrong, 2])


class TestFeatures:
    @pytest.mark.parametrize("kind", [np.int32, np.int64])
    def test_ids_of_numpy_are_one_text(self, hub, kind):
        ids = hub.encode(TEXT[0])
        expected, array = hub.extract_features(ids), ids.numpy().astype(kind)
        for form in (array, list(array), array[None], list(ids)):
            assert torch.equal(hub.extract_features(form), expected)

    @pytest.mark.parametrize("ids", [np.array([0.0, 57.5, 2.0]), torch.tensor([0.0, 57.0, 2.0]), [0.0, 57.0, 2.0]])
    def test_ids_that_are_no_integers_are_refused(self, hub, ids):
        with pytest.raises(ValueError, match="the token ids of one text are integers"):
            hub.extract_features(ids)

    def test_padding_is_on_the_right(self, hub):
        assert torch.equal(hub.extract_features([0, 5, 2, 1, 1]), hub.extract_features([0, 5, 2]))
        for ids in ([1, 0, 5, 2], [0, 1, 5, 2], torch.tensor([[0, 5, 6, 2], [1, 0, 5, 2]])):
            with pytest.raises(ValueError, match="a token follows padding in the ids; pad on the right"):
                hub.extract_features(ids)

    @pytest.mark.parametrize("name", PRESETS)
    def test_batched_features_equal_single_ones(self, hubs, name):
        hub = hubs[name]
        together = hub.extract_features(RAGGED)
        layers = hub.extract_features(RAGGED, return_all_hiddens=True)
        assert len(layers) == 3
        for index, text in enumerate(RAGGED):
            alone = hub.extract_features(text)
            # sums in another order, in float32
            assert_close(together[index], alone[0], 1e-5)
            assert_close(layers[-1][index], alone[0], 1e-5)
            first, *_ = hub.extract_features(text, return_all_hiddens=True)
            assert_close(layers[0][index], first[0], 1e-5)

    @pytest.mark.parametrize("name", PRESETS)
    def test_features_of_padded_ids_equal_fairseq(self, hubs, checkpoints, text_data, name):
        model = fairseq_model(name, checkpoints, text_data)
        ids = torch.tensor([[0, 5, model.mask, 2, 1, 1], [0, 7, 8, 9, 2, 1]])
        expected, extra = model.extract_features(ids, return_all_hiddens=True)
        features = hubs[name].extract_features(ids)
        assert features.shape == expected.shape
        assert not features.requires_grad
        assert_close(features, expected, 1e-5)
        for layer, states in zip(hubs[name].extract_features(ids, True), extra["inner_states"], strict=True):
            assert_close(layer, states, 1e-5)

    def test_too_long(self, hub, hubs):
        long = [0, *range(5, 73), 2]
        with pytest.raises(ValueError, match="a sequence of 70 tokens is longer than max_positions 64"):
            hub.extract_features([long, "short"])
        expected = hub.extract_features([[*long[:63], 2], "short"])
        assert_equal(hub.extract_features([long, "short"], truncate=True), expected)
        assert torch.equal(hub.extract_features(torch.tensor([long]), truncate=True), expected[0][None])
        classify = hubs["classification"].predict
        assert torch.equal(classify(HEAD, long, truncate=True), classify(HEAD, [*long[:63], 2]))


def logits_at_masks(hub, ids, early=False):
    """Return the model's logits for the masks of ids [T]; ``early``: its encoder sees them."""
    is_mask = ids.eq(hub.model.mask)[None]
    with torch.no_grad():
        return hub.model(ids[None], masked_tokens=is_mask, early_masks=is_mask if early else None)[0]


def words_of_one_subword(hub) -> list[str]:
    words = [symbol[1:] for symbol in hub.symbols if symbol.startswith("\u2581") and symbol[1:].isalpha()]
    return [word for word in words if len(hub.encode(word)) == 3]


class TestScore:
    @pytest.mark.parametrize("name", PRESETS)
    def test_scores_equal_a_loop_over_masks(self, hubs, name):
        hub = hubs[name]
        expected = []
        for sentence in TEXT:
            ids = hub.encode(sentence)
            score = 0.0
            for position in range(1, len(ids) - 1):
                corrupted = ids.clone()
                corrupted[position] = hub.model.mask
                logits = logits_at_masks(hub, corrupted)
                score += logits.log_softmax(-1)[0, ids[position]].item()
            expected.append(score)
        # sums in another order, in float32
        torch.testing.assert_close(hub.score(TEXT), torch.tensor(expected).double(), atol=1e-4, rtol=1e-6)
        assert hub.score(TEXT[0]).shape == (1,)

    def test_masking_words_hides_their_later_subwords(self, hub):
        single = " ".join(words_of_one_subword(hub)[:3])
        assert len(hub.encode(single)) == 5
        torch.testing.assert_close(hub.score(single), hub.score(single, mask_words=True))
        assert not torch.isclose(hub.score(TEXT[1]), hub.score(TEXT[1], mask_words=True))

    def test_masks_in_the_encoder_as_in_pretraining(self, bundles, tmp_path):
        pretrained = read_bundle(bundles["mae_lm_tiny"])
        write_bundle(with_facts(pretrained, mask_in_encoder=1.0), tmp_path / "bundle")
        hub = MAELMModel.from_pretrained(tmp_path / "bundle")
        word = words_of_one_subword(hub)[0]
        masked = hub.encode("<mask>")
        logits = logits_at_masks(hub, masked, early=True)
        assert hub.score(word).item() == pytest.approx(logits.log_softmax(-1)[0, hub.encode(word)[1]].item(), abs=1e-5)
        without = MAELMModel.from_pretrained(bundles["mae_lm_tiny"])
        assert not torch.isclose(hub.score(word), without.score(word))
        # the same for one mask as filled by the hub interface and by the class of transformers
        [best] = hub.fill_mask("<mask>", topk=1)
        with torch.no_grad():
            theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "bundle")(masked[None]).logits[0]
        torch.testing.assert_close(theirs[masked.eq(hub.model.mask)], logits, atol=1e-5, rtol=1e-5)
        assert best.probability == pytest.approx(logits.softmax(-1).max().item(), abs=1e-6)
        assert best.probability != pytest.approx(without.fill_mask("<mask>", topk=1)[0].probability, abs=1e-4)


class TestFillMask:
    @pytest.mark.parametrize("name", PRESETS)
    def test_probabilities_are_those_of_the_model(self, hubs, name):
        hub = hubs[name]
        logits = logits_at_masks(hub, hub.encode("The <mask> jumps over the <mask>."))
        fillings = hub.fill_mask("The <mask> jumps over the <mask>.", topk=3)
        expected = logits.softmax(-1).topk(3).values
        assert torch.tensor([[filling.probability for filling in mask] for mask in fillings]).equal(expected)
        best = hub.symbols[logits[0].argmax()].replace("▁", " ")
        assert fillings[0][0].token == best
        assert fillings[0][0].text == f"The{best} jumps over the <mask>."

    def test_numbers_of_tokens_that_do_not_exist(self, hub):
        count = len(hub.symbols)
        assert len(hub.fill_mask("<mask>", topk=count)) == count
        for topk in (0, -1, count + 1):
            with pytest.raises(ValueError, match=f"topk is from 1 to {count}"):
                hub.fill_mask("<mask>", topk=topk)

    def test_without_a_mask(self, hub):
        with pytest.raises(ValueError, match=r"the text 'The \[MASK\]' has no <mask>"):
            hub.fill_mask("The [MASK]")

    def test_fine_tuned(self, hubs):
        with pytest.raises(ValueError, match="this model was fine-tuned"):
            hubs["classification"].fill_mask("The <mask>")


class TestPredict:
    def fairseq_logits(self, checkpoint, ids, classes):
        model = set_up_finetuning(checkpoint.parent.parent / f"{checkpoint.parent.name}-data", classes=classes).model
        model.load_state_dict(saved(checkpoint)["model"])
        with torch.no_grad():
            return model.eval()(ids[None], classification_head_name=HEAD)[0]

    def test_log_probabilities_are_fairseqs(self, hubs, checkpoints):
        hub = hubs["classification"]
        pair = hub.encode("The dog", "the fox")
        expected = self.fairseq_logits(checkpoints["classification"], pair, 2)
        assert_close(hub.predict(HEAD, pair), expected.log_softmax(-1), 1e-6)
        assert_close(hub.predict(HEAD, pair, return_logits=True), expected, 1e-6)

    def test_regression_gives_values(self, hubs, checkpoints):
        hub = hubs["regression"]
        ids = hub.encode("The dog")
        expected = self.fairseq_logits(checkpoints["regression"], ids, 1)
        assert expected.abs() > 1e-4
        assert_close(hub.predict(HEAD, ids), expected, 1e-6)

    def test_regression_gives_scores_in_their_range(self, hubs, bundles, tmp_path):
        pretrained = read_bundle(bundles["regression"])
        task = SentenceTask("scores", HEAD, ("text",), labels=(), score_range=(-1, 3.0))
        write_bundle(with_facts(pretrained, finetuned_on=task), tmp_path / "bundle")
        hub = MAELMModel.from_pretrained(tmp_path / "bundle")
        ids = hub.encode("The dog")
        unit = hubs["regression"].predict(HEAD, ids)
        torch.testing.assert_close(hub.predict(HEAD, ids), unit * 4 - 1)
        torch.testing.assert_close(hub.predict(HEAD, ids, return_logits=True), unit)


class TestAnswer:
    def test_answer_is_the_best_slice_of_the_context(self, hubs):
        """Start and end maximise the sum of the head's logits, with start <= end inside the context."""
        hub = hubs["span"]
        context = "The quick brown fox jumps over the lazy dog."
        answers = hub.answer("The dog?", context)
        ids = hub.encode("The dog?", context)
        with torch.no_grad():
            start, end = hub.model(ids[None], classification_head_name="span")[0][0].unbind(-1)
        first = ids.tolist().index(2) + 2
        spans = [(a, b) for a in range(first, len(ids) - 1) for b in range(a, min(a + 30, len(ids) - 1))]
        best = max((start[a] + end[b]).item() for a, b in spans)
        assert answers.candidates[0].score == pytest.approx(best, abs=1e-5)
        assert answers.text == context[answers.candidates[0].begin : answers.candidates[0].end] != ""
        assert answers.null_score == pytest.approx((start[0] + end[0]).item(), abs=1e-5)

    def test_long_contexts_are_read_to_the_end(self, hubs):
        answers = hubs["span"].answer("The dog?", " ".join(f"東京{number}" for number in range(60)))
        assert max(candidate.end for candidate in answers.candidates) > 100


def test_dropout_is_off_until_asked_for(bundles):
    hub = MAELMModel.from_pretrained(bundles["mae_lm_tiny"])
    once, again = (hub.extract_features("The dog") for _ in range(2))
    assert torch.equal(once, again)
    hub.train()
    assert not torch.equal(hub.extract_features("The dog"), once)


@pytest.mark.parametrize("name", ["mae_lm_tiny", "classification"])
def test_an_export_is_imported(hubs, bundles, tmp_path, name):
    export_stock(read_bundle(bundles[name]), tmp_path / "export")
    hub = MAELMModel.from_pretrained(tmp_path / "export")
    ids = torch.tensor([0, 5, 6, 7, 2])
    assert torch.equal(hub.extract_features(ids), hubs[name].extract_features(ids))
    assert hub.decode(hub.encode(TEXT[0])) == TEXT[0]
    if name == "classification":
        assert torch.equal(hub.predict(HEAD, ids), hubs[name].predict(HEAD, ids))


def test_a_missing_directory_of_checkpoints_is_not_said_to_be_on_the_hub():
    with refused(r"^checkpoints/pretrained: no such file; check the path$"):
        MAELMModel.from_pretrained("checkpoints/pretrained", "checkpoint_best.pt", "data-bin")
