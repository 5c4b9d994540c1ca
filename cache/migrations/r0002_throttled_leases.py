"""Mark measurements that were throttled, and tell the holder of a lease from a later process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the mark, unknown for what is there; make `lease` anew, which nothing has written yet."""
    for table in ("trial", "baseline", "best"):
        op.add_column(table, sa.Column("throttled", sa.Boolean(), nullable=True))
    op.drop_table("lease")
    op.create_table(
        "lease",
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_lease_problem_id"),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_lease_device_id"),
        sa.PrimaryKeyConstraint("problem_id", "device_id", name="pk_lease"),
    )
