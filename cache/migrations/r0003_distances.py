"""Keep with a best how far it may be from the best there is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the two parts of the distance, unknown for what is there."""
    for name in ("expected_distance", "distance_bound"):
        op.add_column("best", sa.Column(name, sa.Double(), nullable=True))
