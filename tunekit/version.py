"""The version of tunekit, where every module may read it."""

from __future__ import annotations

VERSION = "0.1.0"
