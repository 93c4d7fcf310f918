"""Mistakes that scripts/mutants.py makes, and whether tests notice them."""

import runpy
from pathlib import Path

import pytest

from tests.support import ROOT

MUTANTS = runpy.run_path(str(ROOT / "scripts/mutants.py"))


def mutated(tmp_path: Path, text: str) -> dict[str, set[str]]:
    """Return the mutated texts of a module by kind of mistake."""
    path = tmp_path / "module.py"
    path.write_text(text, encoding="utf-8")
    texts: dict[str, set[str]] = {}
    for mutant in MUTANTS["mutants_of"](path, tmp_path):
        texts.setdefault(mutant.kind, set()).add(mutant.source(text.encode()).decode())
    return texts


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("a < b\n", "comparison", "(a <= b)\n"),
        ("a in b\n", "comparison", "(a not in b)\n"),
        ("(a + b) * c\n", "operator", "((a + b) / c)\n"),
        ("a and b\n", "and, or", "(a or b)\n"),
        ("f(not a)\n", "not", "f((a))\n"),
        ("f(keepdim=True)\n", "truth value", "f(keepdim=False)\n"),
        ("x.sum(dim=1)\n", "off by one", "x.sum(dim=2)\n"),
        ("a = f(b, c, d=e)\n", "swapped arguments", "a = f(c, b, d=e)\n"),
        ("if a:\n    raise ValueError(1)\n", "missing guard", "if a:\n    pass\n"),
        ("a.clear()\n", "missing call", "pass\n"),
        ("é = 1\n", "off by one", "é = 2\n"),
    ],
)
def test_a_mistake(tmp_path, text, kind, expected):
    assert expected in mutated(tmp_path, text)[kind]


@pytest.mark.parametrize(
    "text",
    [
        "c = max(a, b)\n",
        'def f(x: "int | 1") -> 2:\n    """Return 1 < 2."""\n',
        'raise ValueError(f"{1 + 2}")\n',
        '"a" + b\n',
    ],
)
def test_what_means_the_same_is_not_changed(tmp_path, text):
    assert mutated(tmp_path, text) == {}


@pytest.mark.parametrize(("asserted", "is_noticed"), [("half(0) == 0", False), ("half(4) == 2", True)])
def test_a_mutant_is_noticed_by_the_tests_of_its_room_alone(tmp_path, asserted, is_noticed):
    module = tmp_path / "mae_lm_fairseq/core/half.py"
    tests = tmp_path / "tests/core/test_half.py"
    for path in (module, tests):
        path.parent.mkdir(parents=True)
    (module.parent / "__init__.py").touch()
    (module.parents[1] / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\n', encoding="utf-8")
    module.write_text("def half(x):\n    return x / 2\n", encoding="utf-8")
    program = f"from mae_lm_fairseq.core.half import half\n\n\ndef test_half():\n    assert {asserted}\n"
    tests.write_text(program, encoding="utf-8")
    verdicts = {
        mutant.after: MUTANTS["is_noticed"](mutant, tmp_path) for mutant in MUTANTS["mutants_of"](module, tmp_path)
    }
    assert verdicts == {"(x * 2)": is_noticed, "3": is_noticed}
