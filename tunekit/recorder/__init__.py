"""The matrix products of a program, counted while it runs: `tunekit.record` and `tunekit record`.

A dispatch mode sees each operation that torch runs, below autograd and above the device. So it
works on a GPU, on a CPU, and on tensors without memory (meta and fake ones), and a shapes file can
be made where the program's GPU is not. Nothing is timed, and the program's results do not change.
"""

from __future__ import annotations

from tunekit.recorder.counting import Product, Record
from tunekit.recorder.mode import Recorder, record

__all__ = ["Product", "Record", "Recorder", "record"]
