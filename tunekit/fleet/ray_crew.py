"""Workers that are Ray's actors, one for each GPU of a cluster."""

from __future__ import annotations
