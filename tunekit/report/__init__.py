"""The report: what a store holds, as one HTML page that needs nothing else.

`gather` reads everything that is shown, as numbers; `render` makes the page of it.
"""

from __future__ import annotations

from tunekit.report.contents import Contents, gather
from tunekit.report.findings import Findings, find, shortened
from tunekit.report.page import render

__all__ = ["Contents", "Findings", "find", "gather", "render", "shortened"]
