"""A report as one HTML file: its numbers, its charts and the library that draws them.

The page loads nothing. Tables are made here, so they are there without scripts and on paper; the
charts are drawn by Vega-Lite from the same numbers, those of a key when it is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

from tunekit.errors import ReportError
from tunekit.report import overview
from tunekit.report.charts import specifications
from tunekit.report.contents import (
    Contents,
    Entry,
    ceiling,
    failures,
    is_imported,
    reasons,
    replayed,
)

PAGE_ROWS = 50
"""Rows of the table that are shown at a time."""

ROWS_AT_ONCE = 500
"""Rows that are part of the page from the start: what is beyond is made when it is looked at."""

MOST_REASONS = 30
"""Texts of errors that are listed; the counts by status are of all."""

_MISSING = (
    "the report needs packages that are not installed:"
    " pip install 'tunekit-triton[report]' (Jinja2 and vl-convert-python)"
)


def render(contents: Contents) -> str:
    """Return the page.

    Raises:
        ReportError: the packages of the extra `report` are not installed.
    """
    try:
        import jinja2
        import vl_convert
    except ModuleNotFoundError as error:
        raise ReportError(_MISSING) from error
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_part),
    )
    page: str = environment.get_template("page.html.j2").render(
        **_shown(contents),
        style=_part("report.css"),
        script=_part("report.js"),
        library=_library(vl_convert.javascript_bundle),
        payload=_data(payload(contents)),
    )
    return page


def _part(name: str) -> str:
    return files("tunekit.report").joinpath(name).read_text(encoding="utf-8")


def _data(plain: dict[str, Any]) -> str:
    r"""Return data as JSON that cannot end its element: `\u003c` is `<` within a string."""
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _library(bundle: Callable[[str | None], str]) -> str:
    r"""Return the library as a script that cannot end its element.

    It holds `</script` only in strings and patterns, where `\/` is `/`. Making it takes seconds.
    """
    script = bundle(None)
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _shown(contents: Contents) -> dict[str, Any]:
    """Return what the template fills in."""
    entries = contents.entries
    rows = [e for e in entries if e.best is not None]
    return {
        "contents": contents,
        "bodies": list(_bodies(entries)),
        "page_rows": PAGE_ROWS,
        "rows_at_once": ROWS_AT_ONCE,
        "tuned": len(rows),
        "triton": sum(e.best is not None and e.best.choice.value == "triton" for e in rows),
        "trials": sum(e.findings.history.attempts for e in entries),
        "mean": overview.geometric_mean(rows),
        "replayed": replayed(rows),
        "is_imported": is_imported,
        "learning": overview.learning(entries),
        "tiles": overview.tiles(entries),
        "pipelines": overview.pipelines(entries),
        "importance": overview.importance(entries),
        "failures": failures(entries),
        "reasons": reasons(entries, MOST_REASONS),
        "ceilings": {d.slug: ceiling(contents.of_gpu(d.slug)) for d in contents.devices},
        "anchor": anchor,
    }


def _bodies(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    rest = iter(entries)
    while body := list(islice(rest, PAGE_ROWS)):
        yield body


def anchor(contents: Contents, slug: str) -> str:
    """Return the name of the chart of a GPU's roofline."""
    return f"roofline-{[device.slug for device in contents.devices].index(slug) + 1}"


def payload(contents: Contents) -> dict[str, Any]:
    """Return what the script draws, as plain data."""
    entries = contents.entries
    return {
        "specs": specifications(),
        "charts": [*_rooflines(contents), *_overview(entries)],
        "keys": [_key(entry) for entry in entries],
    }


def _rooflines(contents: Contents) -> Iterator[dict[str, Any]]:
    for device in contents.devices:
        members = contents.of_gpu(device.slug)
        points = [point for entry in members for point in _points(entry)]
        intensities = [point["intensity"] for point in points]
        if not points:
            continue
        found, low, high = ceiling(members), min(intensities), max(intensities)
        for dtype, most in found.tflops.items():
            knee = most * 1e3 / found.gb_per_s
            for x in sorted({low, min(max(knee, low), high), high}):
                y = min(most, x * found.gb_per_s / 1e3)
                what = {"problem": f"ceiling of {dtype}", "what": "ceiling"}
                points.append({**what, "intensity": x, "tflops": y})
        yield {"id": anchor(contents, device.slug), "spec": "roofline", "values": points}


def _points(entry: Entry) -> Iterator[dict[str, Any]]:
    best, problem = entry.best, entry.problem
    if best is None:
        return
    for what, measured in (("Triton", best.measurement), ("vendor", best.vendor)):
        if measured is not None:
            yield {
                "problem": str(problem),
                "what": what,
                "us": measured.median_us,
                "intensity": problem.flops / problem.min_bytes,
                "tflops": problem.flops / measured.median_us / 1e6,
                "gb_per_s": problem.min_bytes / measured.median_us / 1e3,
            }


def _overview(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    ratios = [e.best.ratio for e in entries if e.best is not None and e.best.ratio is not None]
    yield _values("ratios", "ratios", [{"ratio": ratio} for ratio in ratios])
    learned = [{"trial": p.trial, "slowdown": p.slowdown} for p in overview.learning(entries)]
    yield _values("learning", "learning", learned)
    for name, tiles in (("tiles", overview.tiles), ("pipeline", overview.pipelines)):
        cells = [
            {"x": t.x, "y": t.y, "slowdown": t.slowdown, "number": t.keys} for t in tiles(entries)
        ]
        yield _values(name, name, cells)
    shares = [
        {"parameter": name, "share": share} for name, share, _ in overview.importance(entries)
    ]
    yield _values("importance", "importance", shares)
    failed = [{"status": status, "trials": number} for status, number in failures(entries)]
    yield _values("failures", "failures", failed)


def _values(name: str, spec: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": name, "spec": spec, "values": values}


def _key(entry: Entry) -> dict[str, Any]:
    """Return a key's part of the payload: short names and rows, for there may be thousands."""
    found, best, bounds = entry.findings, entry.best, entry.ratio_bounds
    plain: dict[str, Any] = {
        "name": str(entry.problem),
        "gpu": entry.key.gpu,
        "trials": found.history.attempts,
        "curve": [[step.attempt, _us(step.median_us)] for step in found.history.curve],
        "tiles": [[c.x, c.y, _us(c.us), c.trials] for c in found.tiles],
        "pipeline": [[c.x, c.y, _us(c.us), c.trials] for c in found.pipeline],
        "importance": [[name, round(share, 4)] for name, share in found.importance],
        "variants": [[name, _us(us), trials] for name, us, trials in found.variants],
        "failures": found.failures,
    }
    if best is not None and best.ratio is not None and bounds is not None:
        plain["runs"] = best.choice.value
        plain["ratio"] = [round(value, 4) for value in (best.ratio, *bounds)]
    return plain


def _us(time_us: float) -> float:
    """Round to the nanosecond: what the table shows too."""
    return round(time_us, 3)
