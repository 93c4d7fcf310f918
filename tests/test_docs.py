"""docs/ is current and complete: generated pages, links, indexes, and figures from committed results."""

import json
import re
import runpy

import pytest

from tests.support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GENERATED = ("recipes.md", "options.md", "fairseq-patches.md", "results/robustness.md")
SPEED = (DOCS / "results" / "speed.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generated():
    return runpy.run_path(str(ROOT / "scripts" / "write_docs.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_current(generated, name):
    assert generated.keys() == set(GENERATED)
    assert (DOCS / name).read_text(encoding="utf-8") == generated[name], "run scripts/write_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_have_targets(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("directory", [DOCS, DOCS / "results"], ids=lambda directory: directory.name)
def test_indexes_list_every_page(directory):
    index = (directory / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in directory.glob("*.md") if f"({page.name})" not in index] == ["README.md"]


@pytest.mark.parametrize("name", ["cpu-small", "cpu-base"])
def test_speed_is_from_the_committed_results(name):
    figures = json.loads((ROOT / "scripts" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    usual = figures["setting"]["rows"], figures["setting"]["length"], 0.15, False
    subjects = ("mae_lm_eager", "authors", "mae_lm_bf16_eager", "fairseq_roberta")
    rows = [row for row in figures["rows"] if row["subject"] in subjects]
    speeds = [
        row["tokens_per_second"]
        for row in rows
        if (row["rows"], row["length"], row["mask_prob"], row["ragged"]) == usual
    ]
    assert len(speeds) >= 3
    assert all(f" {speed:,.0f} " in SPEED for speed in speeds)
    for ratio in ("authors_speedup", "roberta_speedup_over_fairseq", "mae_lm_step_cost", "three_ml_step_cost"):
        assert f" {figures['ratios'][ratio]:.2f} " in SPEED
