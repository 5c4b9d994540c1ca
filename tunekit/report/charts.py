"""The charts as Vega-Lite specifications, each without its values, which the page puts in.

One specification serves every key. Where the height depends on the values, `usermeta` says by
which field and how much each takes, and the page works it out. Colours are those of Okabe and Ito,
which colour-blind readers tell apart too, and every series also has a shape of its own.
"""

from __future__ import annotations

from typing import Any

TRITON, VENDOR, GREY = "#0072b2", "#d55e00", "#595959"

_RATIOS = (
    *(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75),
    *(2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100),
)
"""Where a logarithmic axis of ratios may have a tick."""

_DECADES = [step * 10.0**power for power in range(-4, 7) for step in (1, 2, 5)]
"""Where a logarithmic axis of rates may have one."""

Spec = dict[str, Any]

_CONFIG: Spec = {
    "background": "white",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelColor": "#222",
        "titleColor": "#222",
        "gridColor": "#e4e4e4",
        "titleFontWeight": "normal",
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "orient": "top", "labelLimit": 300},
}


def specifications() -> dict[str, Spec]:
    """Return every chart by name."""
    return {
        "roofline": _roofline(),
        "speedup": _speedup(),
        "ratios": _ratios(),
        "learning": _curve("slowdown", "best so far / fastest", doublings=True),
        "curve": _curve("us", "best so far, us"),
        "tiles": _heat("block_n", "block_m", "slowdown"),
        "pipeline": _heat("block_k", "num_stages", "slowdown"),
        "importance": _bars("parameter", "share", "share of the spread explained", ".0%", ".1%"),
        "failures": _bars("status", "trials", "trials", "d", ",d"),
        "variants": _bars("variant", "slowdown", "fastest / fastest of all", ".1f", ".2f"),
    }


def _chart(**parts: Any) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _CONFIG,
        "data": {"values": []},
        **parts,
    }


def _rows(field: str, each: int) -> Spec:
    """Say that every value of a field takes so many pixels of the height."""
    return {"rows": {"field": field, "each": each}}


def _field(name: str, kind: str, title: str | None = None, **more: Any) -> Spec:
    return {"field": name, "type": kind, "title": title or name, **more}


def _roofline() -> Spec:
    shared = {
        "scale": {"type": "log", "nice": False, "padding": 12},
        "axis": {"values": _DECADES, "format": "~g", "labelOverlap": "greedy"},
    }
    x = _field("intensity", "quantitative", "flop per byte that must move", **shared)
    y = _field("tflops", "quantitative", "TFLOP/s", **shared)
    names = ["Triton", "vendor"]
    series = {"field": "what", "type": "nominal", "title": None}
    colour = {**series, "scale": {"domain": names, "range": [TRITON, VENDOR]}}
    points = {
        "transform": [{"filter": "datum.what != 'ceiling'"}],
        "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.75},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": {**series, "scale": {"domain": names}},
            "tooltip": [
                _field("problem", "nominal"),
                _field("what", "nominal", "time of"),
                _field("us", "quantitative", "us", format=".2f"),
                _field("tflops", "quantitative", "TFLOP/s", format=".1f"),
                _field("gb_per_s", "quantitative", "GB/s", format=".0f"),
            ],
        },
    }
    lines = {
        "transform": [{"filter": "datum.what == 'ceiling'"}],
        "mark": {"type": "line", "color": GREY, "strokeDash": [5, 3]},
        "encoding": {"x": x, "y": y, "detail": {"field": "problem"}},
    }
    return _chart(height=360, layer=[lines, points])


def _speedup() -> Spec:
    y = {
        "field": "problem",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 220},
    }
    scale = {"type": "log", "nice": False, "padding": 10}
    axis = {"values": _RATIOS, "format": "~g", "labelOverlap": "greedy"}
    colour = {
        "field": "runs",
        "type": "nominal",
        "title": "runs",
        "scale": {"domain": ["triton", "vendor"], "range": [TRITON, VENDOR]},
    }
    shape = {**colour, "scale": {"domain": ["triton", "vendor"]}}
    tooltip = [
        _field("problem", "nominal"),
        _field("ratio", "quantitative", "vendor / Triton", format=".3f"),
        _field("low", "quantitative", "at least", format=".3f"),
        _field("high", "quantitative", "at most", format=".3f"),
        _field("runs", "nominal"),
    ]
    title = "vendor us / Triton us"
    at = {"x": _field("ratio", "quantitative", title, scale=scale, axis=axis), "y": y}
    span = {
        "x": _field("low", "quantitative", title, scale=scale, axis=axis),
        "x2": {"field": "high"},
        "y": y,
        "color": colour,
    }
    return _chart(
        usermeta=_rows("problem", 17),
        layer=[
            {"data": {"values": [{"x": 1}]}, "mark": {"type": "rule", "color": GREY},
             "encoding": {"x": _field("x", "quantitative", title, scale=scale, axis=axis)}},
            {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": span},
            {"mark": {"type": "point", "filled": True, "size": 50},
             "encoding": {**at, "color": colour, "shape": shape, "tooltip": tooltip}},
        ],
    )  # fmt: skip


def _ratios() -> Spec:
    bins = {"maxbins": 40}
    x = _field("ratio", "quantitative", "vendor us / Triton us", bin=bins, axis={"format": "~g"})
    y = {"aggregate": "count", "type": "quantitative", "title": "problems"}
    bars = {"mark": {"type": "bar", "color": TRITON}, "encoding": {"x": x, "y": y}}
    return _chart(height=180, **bars)


def _curve(field: str, title: str, *, doublings: bool = False) -> Spec:
    scale: Spec = {"zero": False, "nice": True}
    x = _field("trial", "quantitative", "trials", axis={"tickCount": 8})
    if doublings:  # of all problems: 1 is the best, and there is a point at 1, 2, 4, ... trials
        scale["domainMin"] = 1
        x["scale"] = {"type": "log", "base": 2, "nice": False}
        x["axis"] |= {"values": [1 << power for power in range(24)], "format": "d"}
    return _chart(
        height=220,
        mark={"type": "line", "interpolate": "step-after", "point": True, "color": TRITON},
        encoding={
            "x": x,
            "y": _field(field, "quantitative", title, scale=scale),
            "tooltip": [
                _field("trial", "quantitative", "trials"),
                _field(field, "quantitative", title, format=".3f"),
            ],
        },
    )


def _heat(x: str, y: str, value: str) -> Spec:
    colour = {"scheme": "viridis", "reverse": True, "domain": [1, 4], "clamp": True, "type": "log"}
    shown = {"x": {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}},
             "y": {"field": "y", "type": "ordinal", "title": y, "sort": "descending"}}  # fmt: skip
    tooltip = [
        _field("x", "ordinal", x),
        _field("y", "ordinal", y),
        _field(value, "quantitative", "times the fastest", format=".3f"),
        _field("us", "quantitative", "us", format=".2f"),
        _field("number", "quantitative", "out of"),
    ]
    legend = _field(value, "quantitative", "times the fastest", scale=colour)
    # The number stands in each cell: nobody has to read it off a colour.
    return _chart(
        usermeta=_rows("y", 26),
        encoding=shown,
        layer=[
            {"mark": "rect", "encoding": {"color": legend, "tooltip": tooltip}},
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "text": {"field": value, "type": "quantitative", "format": ".2f"},
                    "color": {
                        "condition": {"test": f"datum.{value} > 2.2", "value": "white"},
                        "value": "black",
                    },
                },
            },
        ],
    )


def _bars(name: str, value: str, title: str, ticks: str, labels: str) -> Spec:
    """Return bars of a value, its formats on the axis and at the end of each bar."""
    y = {"field": name, "type": "nominal", "sort": None, "title": None}
    x = _field(value, "quantitative", title, axis={"tickCount": 5, "format": ticks})
    return _chart(
        usermeta=_rows(name, 22),
        padding={"left": 5, "top": 5, "bottom": 5, "right": 48},  # for the longest bar's label
        encoding={"y": y, "x": x},
        layer=[
            {"mark": {"type": "bar", "color": TRITON}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 12},
                "encoding": {"text": {"field": value, "type": "quantitative", "format": labels}},
            },
        ],
    )
