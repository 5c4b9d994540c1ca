"""The tables of the store.

A problem, a device, a config and an environment are each one row, shared by whatever refers to
them. An `environment` is a compiler and the versions around it; the hash of the kernel's source
stands on the rows of trials and bests, since every variant has its own.

`best` has one row per problem, device and *compiler identity*, not per environment: a config is
chosen for what a compiler makes of it, so an upgrade of torch, the driver or tunekit corrects the
row and makes no second one beside it. `trial` and `baseline` are what was measured in one
environment, and keep a row for each.

`origin` on a row is where it first came from; `imported` says that this store took it from a file.

The columns of a measurement may be null, for a failed trial has none, and a mark that came with a
later schema is null on the rows before it. Names of enums and configs
are plain text. A reader drops a row that does not decode, and serves the others.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    MetaData,
    PrimaryKeyConstraint,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = "0003"
"""The revision of the tables below. Revisions are numbered so that they sort."""

OLDER_VERSIONS = ("0001", "0002")
"""Those that `migrations` leads here from. All of them have the tables below, by name."""


APPLICATION_ID = 0x74756E65
"""What SQLite keeps in the header of our files ("tune"), so that a damaged one is known as ours."""


class Base(DeclarativeBase):
    """What every table has in common: named constraints, so that a migration can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double}  # noqa: RUF012


class SchemaVersion(Base):
    """Which revision the tables have, in the form Alembic keeps it."""

    __tablename__ = "schema_version"
    __table_args__ = (PrimaryKeyConstraint("version_num", name="schema_version_pkc"),)

    version_num: Mapped[str] = mapped_column(String(32))


class NumberedBase(Base):
    """A table whose rows others refer to by number."""

    __abstract__ = True

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class DeviceRow(NumberedBase):
    """A kind of GPU, by its slug."""

    __tablename__ = "device"

    slug: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    backend: Mapped[str]
    arch: Mapped[str]
    multiprocessors: Mapped[int]
    shared_bytes: Mapped[int] = mapped_column(BigInteger)
    l2_bytes: Mapped[int] = mapped_column(BigInteger)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    warp_size: Mapped[int]


class EnvironmentRow(NumberedBase):
    """A compiler and the versions around it."""

    __tablename__ = "environment"
    __table_args__ = (
        UniqueConstraint(
            "compiler", "protocol", "tunekit", "triton", "torch", "driver", "device_name"
        ),
    )

    compiler: Mapped[str]
    protocol: Mapped[str]
    tunekit: Mapped[str]
    triton: Mapped[str]
    torch: Mapped[str]
    driver: Mapped[str]
    device_name: Mapped[str]


class ProblemRow(NumberedBase):
    """What is multiplied: every field of a problem, and no two rows the same."""

    __tablename__ = "problem"
    __table_args__ = (
        UniqueConstraint(
            "family",
            "m",
            "n",
            "k",
            "dtype",
            "out_dtype",
            "precision",
            "layout",
            "aligned",
            "scaling",
            "batch",
        ),
    )

    family: Mapped[str]
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    dtype: Mapped[str]
    out_dtype: Mapped[str]
    precision: Mapped[str]
    layout: Mapped[str]
    aligned: Mapped[bool]
    scaling: Mapped[str]
    batch: Mapped[int]


class ConfigRow(NumberedBase):
    """A config as canonical JSON by field name, so that a new field shifts no other."""

    __tablename__ = "config"

    text: Mapped[str] = mapped_column(unique=True)


class MeasurementColumns:
    """A measurement, in microseconds."""

    median_us: Mapped[float | None]
    low_us: Mapped[float | None]
    high_us: Mapped[float | None]
    p20_us: Mapped[float | None]
    p80_us: Mapped[float | None]
    min_us: Mapped[float | None]
    repetitions: Mapped[int | None] = mapped_column(BigInteger)
    protocol: Mapped[str | None]
    error_ratio: Mapped[float | None]
    final: Mapped[bool | None]
    contended: Mapped[bool | None]
    throttled: Mapped[bool | None]


class KeyColumns:
    """The key a row is for."""

    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), sort_order=-1)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"), sort_order=-1)


class ProvenanceColumns:
    """Where, when and how a row was made."""

    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    source: Mapped[str]
    origin: Mapped[str]
    created_at: Mapped[str]
    imported: Mapped[bool]


class TrialRow(KeyColumns, MeasurementColumns, ProvenanceColumns, NumberedBase):
    """A config that was tried for a key, in one environment."""

    __tablename__ = "trial"
    __table_args__ = (
        UniqueConstraint("problem_id", "device_id", "environment_id", "source", "config_id"),
    )

    config_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    status: Mapped[str]
    error: Mapped[str | None]


class BaselineRow(KeyColumns, MeasurementColumns, ProvenanceColumns, NumberedBase):
    """The vendor's call for a key, as last measured in one environment beside a best."""

    __tablename__ = "baseline"
    __table_args__ = (UniqueConstraint("problem_id", "device_id", "environment_id"),)


class BestRow(KeyColumns, MeasurementColumns, ProvenanceColumns, NumberedBase):
    """The chosen config of a key under one compiler."""

    __tablename__ = "best"
    __table_args__ = (UniqueConstraint("device_id", "problem_id", "compiler"),)

    compiler: Mapped[str]
    choice: Mapped[str]
    config_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    baseline_id: Mapped[int | None] = mapped_column(ForeignKey("baseline.id"))
    trials: Mapped[int]
    space_size: Mapped[int] = mapped_column(BigInteger)
    count: Mapped[int] = mapped_column(BigInteger)
    expected_distance: Mapped[float | None]
    distance_bound: Mapped[float | None]


class MissRow(KeyColumns, Base):
    """A key that was asked for at run time and had no row, with how often."""

    __tablename__ = "miss"
    __table_args__ = (PrimaryKeyConstraint("problem_id", "device_id"),)

    count: Mapped[int] = mapped_column(BigInteger)


class LeaseRow(KeyColumns, Base):
    """Who is tuning a key, and until when (seconds of Unix time by the database's clock)."""

    __tablename__ = "lease"
    __table_args__ = (PrimaryKeyConstraint("problem_id", "device_id"),)

    holder: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int] = mapped_column(BigInteger)
    started: Mapped[int] = mapped_column(BigInteger)
    """When the process began, in the host's own ticks: another process may get its number."""
    expires_at: Mapped[float]
