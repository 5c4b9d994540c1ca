"""The page: its numbers are the store's, whatever stands in the store, and its size is bounded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.report.conftest import DEVICE, best_of, key_of, trials_of
from tunekit.cache import Store
from tunekit.cli import main
from tunekit.report import gather, page, render
from tunekit.report.charts import specifications
from tunekit.report.contents import Entry
from tunekit.report.findings import find
from tunekit.trial import Grade

pytestmark = pytest.mark.usefixtures("drawing")


class Cells(HTMLParser):
    """Collects the cells of one table, and whether anything loads from elsewhere."""

    def __init__(self, table):
        super().__init__()
        self._table, self._inside, self._open = table, False, False
        self.rows, self.sources = [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.sources += [given[name] for name in ("src", "srcset", "data") if name in given]
        if tag == "link":
            self.sources.append(given["href"])
        if tag == "table":
            self._inside = given.get("id") == self._table
        elif self._inside and tag == "tr":
            self.rows.append([])
        elif self._inside and tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data):
        if self._inside and self._open:
            self.rows[-1][-1] += data


def outcomes_of(number):
    return [trial.outcome for trial in trials_of(number)]


def table(text, name):
    parser = Cells(name)
    parser.feed(text)
    return parser.rows


def payload_of(text):
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', text, re.S)
    return json.loads(found.group(1))


def contents_of(path):
    with Store.open(path, create=False) as store:
        return gather(store, [(best, Grade.EXACT) for best in store.bests()])


def test_the_table_shows_what_the_store_holds(filled):
    text = render(contents_of(filled(7, failing=True)))
    head, *rows, failing = table(text, "numbers")
    with Store.open(filled(7), create=False) as store:
        bests = sorted(store.bests(), key=lambda best: best.key)
    assert len(rows) == len(bests) == 7
    for row, best in zip(rows, bests, strict=True):
        shown = dict(zip(head, row, strict=True))
        ours, vendor, problem = best.measurement, best.vendor, best.key.problem
        assert shown["problem, M x N x K"] == str(problem)
        assert shown["runs"] == best.choice.value
        assert shown["Triton, us"] == f"{ours.median_us:.3f}"
        assert row[7] == f"{ours.low_us:.3f}-{ours.high_us:.3f}"
        assert shown["vendor, us"] == f"{vendor.median_us:.3f}"
        assert row[9] == f"{vendor.low_us:.3f}-{vendor.high_us:.3f}"
        assert shown["ratio"] == f"{best.ratio:.3f}"
        assert shown["at least"] == f"{vendor.low_us / ours.high_us:.3f}"
        assert shown["at most"] == f"{vendor.high_us / ours.low_us:.3f}"
        tera = 2 * problem.m * problem.n * problem.k / ours.median_us / 1e6
        assert shown["TFLOP/s"] == f"{tera:.2f}"
        assert (shown["trials"], shown["failed"], shown["space"]) == ("16", "2", "190")
        assert shown["best Triton config"] == str(best.config)
        assert (shown["off best"], shown["at most (90 %)"]) == ("0.5 %", "2.5 %")
        assert (shown["origin"], shown["grade"]) == ("replayed", "exact")
    assert "no config worked" in failing
    assert failing[-4:-1] == ["1", "1", ""]


def test_the_charts_are_drawn_from_the_same_numbers(filled):
    plain = payload_of(render(contents_of(filled(3))))
    for number, key in enumerate(plain["keys"]):
        best, found = best_of(number), find(key_of(number), outcomes_of(number))
        assert key["name"] == str(key_of(number).problem)
        assert key["ratio"][0] == pytest.approx(best.ratio, abs=1e-4)
        assert key["curve"] == [[s.attempt, round(s.median_us, 3)] for s in found.history.curve]
        assert key["curve"][-1][1] == round(found.best_us, 3)
        assert dict(key["failures"]) == {"compile-error": 1, "wrong-result": 1}
    roofline, *_ = plain["charts"]
    points = [p for p in roofline["values"] if p["what"] == "Triton"]
    assert [p["us"] for p in points] == [best_of(n).measurement.median_us for n in range(3)]
    ceilings = [p["tflops"] for p in roofline["values"] if p["what"] == "ceiling"]
    assert max(ceilings) == pytest.approx(max(p["tflops"] for p in roofline["values"]))


def test_nothing_is_loaded_from_elsewhere_and_no_text_of_a_store_is_obeyed(filled):
    path = filled(2)
    text = render(contents_of(path))
    parser = Cells("numbers")
    parser.feed(text)
    assert all(source.startswith("data:") for source in parser.sources)
    assert "<b>no</b>" not in text
    reasons = table(text, "reasons")
    assert ["compile-error", "2", "<b>no</b> </script> registers"] in reasons
    assert text.count("</script>") == 3


def test_every_chart_compiles(filled):
    vl_convert = pytest.importorskip("vl_convert")
    plain = payload_of(render(contents_of(filled(2))))
    values = {chart["spec"]: chart["values"] for chart in plain["charts"]}
    for name, spec in specifications().items():
        made = vl_convert.vegalite_to_vega({**spec, "data": {"values": values.get(name, [])}})
        assert made["marks"], name


def test_a_page_of_200_keys_is_small(filled):
    contents = contents_of(filled(1))
    (entry,) = contents.entries
    grown = replace(contents, entries=tuple(replace(entry, number=n + 1) for n in range(200)))
    assert len(render(grown).encode()) < 2_000_000


def test_a_page_does_not_grow_with_the_trials(filled):
    contents = contents_of(filled(1))
    few = len(render(contents))
    trials = [
        replace(trial, config=replace(trial.config, group_size=turn + 1))
        for turn in range(50)
        for trial in trials_of(0)
    ]
    many = find(key_of(0), [trial.outcome for trial in trials])
    entry = replace(contents.entries[0], findings=many)
    # the curve over all keys has a row more for each doubling
    assert len(render(replace(contents, entries=(entry,)))) < few + 1000


def test_an_empty_cache_says_how_it_is_filled(filled):
    text = render(contents_of(filled(0)))
    assert "tunekit tune --shapes FILE" in text
    assert "vegaEmbed" not in text


def test_a_row_without_a_vendor_has_no_ratio(filled):
    contents = contents_of(filled(1))
    best = replace(best_of(0), vendor=None)
    entry = Entry(1, best.key, best, Grade.EXACT, find(best.key, outcomes_of(0)))
    text = render(replace(contents, entries=(entry,)))
    (_, row) = table(text, "numbers")
    assert row[3:6] + row[8:10] == ["-"] * 5
    assert "ratio" not in payload_of(text)["keys"][0]


def test_the_command_writes_the_page_and_says_so(filled, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert main(["report", "--cache", str(filled(2)), "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote {out}: 2 problems" in captured.err
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_an_unknown_gpu_is_an_error_that_names_those_there_are(filled, tmp_path, capsys):
    argv = ["report", "--cache", str(filled(1)), "-o", str(tmp_path / "x"), "--gpu", "nothing"]
    assert main(argv) == 1
    assert DEVICE.slug in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_without_its_packages_the_report_says_what_to_install(
    filled, monkeypatch, capsys, tmp_path
):
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["report", "--cache", str(filled(1)), "-o", str(tmp_path / "x")]) == 1
    assert "pip install 'tunekit-triton[report]'" in capsys.readouterr().err


def test_a_page_of_the_table_is_what_the_script_turns(filled, monkeypatch):
    monkeypatch.setattr(page, "PAGE_ROWS", 2)
    text = render(contents_of(filled(5)))
    assert text.count("<tbody hidden>") == 2
