"""The parsers of our own, with anything that hypothesis comes up with."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fault_injection import parsers
from tests.fault_injection.test_inputs import BYTES, anything
from tests.support import ROOT

of_json = pytest.mark.parametrize("parser", ["glue-json", "squad", "questions", "manifest", "bundle"])
KEYS = st.sampled_from(
    [
        *("data", "paragraphs", "context", "qas", "id", "question", "answers", "text", "answer_start", "is_impossible"),
        *("sentence1", "sentence2", "label", "splits", "format", "network", "about", "\ud800"),
    ]
)
"""Those that parsers look for, mostly."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("parser", parsers.PARSERS)
def test_a_parser_takes_its_sample(tmp_path, parser):
    """So that a fuzzer begins behind the first check; the rest of a bundle is not there."""
    assert parsers.parse(parser, parsers.SAMPLES[parser], tmp_path) is (parser != "bundle")


@pytest.mark.parametrize("parser", parsers.PARSERS)
@anything
@given(content=BYTES)
def test_any_bytes_for_a_parser(tmp_path, parser, content):
    parsers.parse(parser, content, tmp_path)


@of_json
@anything
@given(content=JSON)
def test_any_json_for_a_parser(tmp_path, parser, content):
    parsers.parse(parser, json.dumps(content).encode(), tmp_path)


@of_json
@anything
@given(value=JSON, place=st.integers(0, 99))
def test_any_value_in_json_that_is_sound_otherwise(tmp_path, parser, value, place):
    sound = json.loads(parsers.SAMPLES[parser])
    places = list(_places(sound))
    container, key = places[place % len(places)]
    container[key] = value
    parsers.parse(parser, json.dumps(sound).encode(), tmp_path)


def _places(content) -> Iterator[tuple[dict | list, str | int]]:
    """Where in nested dictionaries and lists a value is."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


@pytest.mark.slow
def test_the_fuzzer_finds_nothing_in_a_moment():
    pytest.importorskip("atheris")
    done = subprocess.run([sys.executable, ROOT / "scripts/fuzz.py", "dictionary", "--seconds", "2"])
    assert done.returncode == 0


def test_a_parser_that_breaks_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(parsers.PARSERS, "broken", ("file", lambda path: int(path.read_bytes())))
    with pytest.raises(ValueError, match="invalid literal"):
        parsers.parse("broken", b"x", tmp_path)
