import json
import runpy

from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT
from tests.support.answering import write_squad
from tests.support.refusals import refused

split = runpy.run_path(str(ROOT / "preprocess/squad/split.py"))["main"]


def titles(path):
    return [article["title"] for article in read_json(path)["data"]]


def test_every_article_is_in_one_of_the_files(tmp_path):
    whole = write_squad(tmp_path / "squad.json", version_2=True)
    parts = {}
    for seed in ("1", "2", "3"):
        split([str(whole), "--dev-articles", "3", "--seed", seed, "--out", str(tmp_path / seed)])
        train, dev = tmp_path / seed / "train.json", tmp_path / seed / "dev.json"
        assert (len(titles(train)), len(titles(dev))) == (5, 3)
        assert sorted(titles(train) + titles(dev)) == sorted(titles(whole))
        paragraphs = read_squad(train, version_2=True) + read_squad(dev, version_2=True)
        assert sorted(paragraphs, key=str) == sorted(read_squad(whole, version_2=True), key=str)
        parts[seed] = titles(dev)
    assert len(set(map(tuple, parts.values()))) > 1


def test_impossible_splits_and_existing_output_are_refused(tmp_path):
    whole = str(write_squad(tmp_path / "squad.json"))
    for number in ("0", "8"):
        with refused("8 articles"):
            split([whole, "--dev-articles", number, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
    split([whole, "--dev-articles", "1", "--out", str(tmp_path / "out")])
    with refused("out exists already"):
        split([whole, "--dev-articles", "2", "--out", str(tmp_path / "out")])


def test_lone_surrogates_are_kept(tmp_path):
    whole = write_squad(tmp_path / "squad.json")
    content = read_json(whole)
    content["data"][0]["title"] = "half of a pair: \ud800"
    whole.write_text(json.dumps(content), encoding="utf-8")
    split([str(whole), "--dev-articles", "3", "--out", str(tmp_path / "out")])
    assert "half of a pair: \ud800" in titles(tmp_path / "out/train.json") + titles(tmp_path / "out/dev.json")
