"""The first schema, which `create_all` made. Nothing leads to it."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database without tables gets those of the newest schema at once."""
