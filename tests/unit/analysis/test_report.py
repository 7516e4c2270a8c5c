"""Reports: one page, its numbers those of the journal, opened in a browser without a network."""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from browser import CHROMIUM, open_page
from made_runs import B200, H100, make_run

from pipeline.__main__ import main
from pipeline.analysis import answers_frame, compare, curves_frame, runs_frame

NO_BROWSER = "no Chromium here; sudo tests/install.sh brings Debian's"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run root with three runs on H100, three on B200, one of another recipe."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        make_run(root, H100, name="h100", seed=seed, step_s=1.0 + seed / 100)
        make_run(root, B200, name="b200", seed=seed, step_s=0.5 + seed / 200, loss_scale=1.0 + seed / 1000)
    make_run(root, [*B200, "recipe.sequence_length=8192"], name="long", step_s=0.4)
    return root


@pytest.fixture(scope="module")
def page(root: Path) -> Path:
    """The report of the comparison."""
    output = root / "out" / "report.html"
    arguments = ["report", "name=h100", "name=b200", "--run-root", str(root), "-o", str(output), "--title", "A <b> & C"]
    assert main(arguments) == 0
    return output


class _Tables(HTMLParser):
    """Cells of every table with an id."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] | None = None
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows = self.tables.setdefault(str(dict(attrs).get("id")), [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell and self._rows:
            self._rows[-1][-1] += data


def journal_rates(root: Path, name: str) -> list[float]:
    """tokens/s/GPU of the runs of that name, from their journals and nothing else."""
    rates = []
    for run in sorted(root.glob(f"*-{name}-*")):
        lines = (run / "attempts/1/journal/n1.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        steps = [event["data"]["values"]["throughput/step_time_s"] for event in events if event["kind"] == "metrics"]
        rates.append(4096 * 64 / statistics.median(steps[10:]) / 8)
    return rates


def test_its_numbers_are_those_of_the_journal(page: Path, root: Path) -> None:
    """Rates of each run, and the ratio of geometric means."""
    parser = _Tables()
    parser.feed(page.read_text(encoding="utf-8"))
    shown = {row[0]: row[3] for row in parser.tables["runs"][1:]}
    slow, fast = journal_rates(root, "h100"), journal_rates(root, "b200")
    assert sorted(shown.values()) == sorted(f"{rate:,.1f}" for rate in (*slow, *fast))
    ratio = statistics.geometric_mean(fast) / statistics.geometric_mean(slow)
    answers = {row[0]: row[1:] for row in parser.tables["answers"][1:]}
    assert float(answers["tokens/s/GPU"][0].split()[0]) == pytest.approx(ratio, rel=0.01)
    assert answers["tokens/s/GPU"][1] == "COMPARABLE"


def test_it_is_one_file_that_loads_nothing(page: Path) -> None:
    """No script, no address, every picture well-formed with ids of its own."""
    text = page.read_text(encoding="utf-8")
    assert "A &lt;b&gt; &amp; C" in text
    assert "<script" not in text
    addresses = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', text)
    assert all((one or other).startswith(("#", "data:,")) for one, other in addresses)
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.S)
    assert len(pictures) >= 5
    for picture in pictures:
        ET.fromstring(picture)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    assert not re.search(r"#0[1a]0[2b]0", text)


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_opens_it_from_a_file_without_a_word(page: Path, tmp_path: Path, dark: bool) -> None:
    """Headless, on a phone's width, the network off."""
    opened = open_page(page, tmp_path, dark=dark)
    assert opened.console == []
    assert opened.dom.count("<svg") >= 5
    assert 'id="verdict"' in opened.dom


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
def test_a_page_with_an_error_would_be_seen(tmp_path: Path) -> None:
    """The check before this one can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><script>undefined_name()</script>", encoding="utf-8")
    assert any("undefined_name" in line for line in open_page(bad, tmp_path / "profile").console)


def test_a_group_of_runs_has_a_page_too(root: Path, tmp_path: Path) -> None:
    """Groups by recipe, with what tells them apart."""
    output = tmp_path / "all.html"
    assert main(["report", "name=*", "--run-root", str(root), "-o", str(output)]) == 0
    parser = _Tables()
    parser.feed(output.read_text(encoding="utf-8"))
    labels = [row[1] for row in parser.tables["groups"][1:]]
    assert len(labels) == 3
    assert any("8192" in label for label in labels)
    assert 'id="pareto"' in output.read_text(encoding="utf-8")


def test_markdown_csv_and_parquet_say_the_same(root: Path, tmp_path: Path) -> None:
    """One set of numbers in every form."""
    for suffix in ("md", "csv", "parquet"):
        assert (
            main(["report", "name=h100", "name=b200", "--run-root", str(root), "-o", str(tmp_path / f"r.{suffix}")])
            == 0
        )
    csv, parquet = pd.read_csv(tmp_path / "r.csv"), pd.read_parquet(tmp_path / "r.parquet")
    ratio = csv.set_index("question").loc["throughput", "ratio"]
    assert ratio == pytest.approx(parquet.set_index("question").loc["throughput", "ratio"])
    assert f"| tokens/s/GPU | {ratio:.3g} [" in (tmp_path / "r.md").read_text()


def test_a_wrong_ending_is_said_and_a_kept_report_lies_with_the_newest_run(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; with --log it is an artifact of a run."""
    assert main(["report", "name=long", "--run-root", str(root), "-o", str(tmp_path / "r.pdf")]) == 2
    assert "give one of .html, .md, .csv, .parquet" in capsys.readouterr().err
    assert main(["report", "name=long", "--run-root", str(root), "-o", str(tmp_path / "r.html"), "--log"]) == 0
    (kept,) = root.glob("*-long-*/reports/r.html")
    assert kept.read_bytes() == (tmp_path / "r.html").read_bytes()
    (uploaded,) = (root / "mlartifacts").rglob("reports/r.html")
    assert uploaded.read_bytes() == kept.read_bytes()


def test_notebooks_get_data_frames(root: Path) -> None:
    """Runs, curves and answers."""
    runs = runs_frame(run_root=root)
    assert len(runs) == 7
    assert set(runs.groupby("gpu")["tokens_per_s_per_gpu"].mean().index) == {"H100-SXM5-80GB", "B200-SXM-180GB"}
    curves = curves_frame("name=h100", keys=("train/loss", "train/grad_norm"), run_root=root)
    assert len(curves) == 3 * 2 * 80
    assert curves["tokens"].max() == 80 * 64 * 4096
    answers = answers_frame(compare("name=h100", "name=b200", run_root=root))
    assert answers.loc["throughput", "verdict"] == "COMPARABLE"
