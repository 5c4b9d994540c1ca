"""How large reports are and how fast they open, for made-up caches of several sizes.

    python scripts/report_benchmark.py --chromium /usr/bin/chromium > report.json

Each page is opened in a fresh headless browser, five times. A page is ready when what is on its
first screen is drawn, and drawn when every chart is; the CPU time is that of its main thread. It
needs the extra `report` and the group `browser`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import made_up_store
from playwright.sync_api import Browser, sync_playwright

from tunekit.cache import Store
from tunekit.report import gather, render
from tunekit.trial import Grade

KEYS = (0, 1, 200, 5000)
TRIALS = 80
OPENINGS = 5
STATES = ("ready", "drawn")


def main() -> None:
    """Make, open and time every page, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    chromium = parser.parse_args().chromium
    rows, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for keys in KEYS:
            rows.append(one(Path(folder), keys, browser))
        browser.close()
    version = subprocess.run([chromium, "--version"], capture_output=True, text=True).stdout
    document = {
        "what": "reports of made-up caches, opened headless",
        "browser": version.strip(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "cores": os.cpu_count(),
        "load_average_before": round(load, 1),
        "trials_per_key": TRIALS,
        "pages": rows,
    }
    print(json.dumps(document, indent=1))


def one(folder: Path, keys: int, browser: Browser) -> dict[str, Any]:
    """Return the size of a page, and how long it takes to make and to open."""
    path = folder / f"{keys}.db"
    if keys:
        made_up_store.build(path, trials=TRIALS * keys, keys=keys)
    started = time.monotonic()
    with Store.open(path) as store:
        contents = gather(store, [(best, Grade.EXACT) for best in store.bests()])
    text = render(contents)
    made = time.monotonic() - started
    page = folder / f"{keys}.html"
    page.write_text(text, encoding="utf-8")
    said: list[str] = []
    busy: list[float] = []
    seconds: dict[str, list[float]] = {state: [] for state in STATES}
    for _ in range(OPENINGS):
        tab = browser.new_context().new_page()
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        started = time.monotonic()
        tab.goto(page.as_uri())
        for state in STATES:
            tab.wait_for_function(
                f"document.documentElement.dataset.{state} || document.querySelector('#empty')"
            )
            seconds[state].append(time.monotonic() - started)
        metrics = session.send("Performance.getMetrics")["metrics"]
        busy.append(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))
        tab.context.close()
    return {
        "keys": keys,
        "megabytes": round(len(text.encode()) / 1e6, 2),
        "seconds_to_make": round(made, 1),
        **{
            f"seconds_until_{state}": {
                "median": round(statistics.median(found), 2),
                "most": round(max(found), 2),
            }
            for state, found in seconds.items()
        },
        "cpu_seconds_until_drawn": round(statistics.median(busy), 2),
        "console_messages": len(said),
    }


if __name__ == "__main__":
    main()
