"""Values put into rows, within a transaction that alone may write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy import Connection, bindparam, delete, or_, select, update

from tunekit.cache.models import (
    Base,
    BaselineRow,
    BestRow,
    ConfigRow,
    DeviceRow,
    EnvironmentRow,
    LeaseRow,
    MissRow,
    NumberedBase,
    ProblemRow,
    TrialRow,
)
from tunekit.cache.rows import (
    clean_error,
    config_text,
    device_values,
    distance_values,
    environment_values,
    measurement_values,
    provenance_values,
)
from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import StoreError
from tunekit.key import TuningKey
from tunekit.trial import Best, Measurement, Origin, Provenance, Trial

PLACE: dict[type[Base], tuple[str, ...]] = {
    DeviceRow: ("slug",),
    TrialRow: ("problem_id", "device_id", "environment_id", "source", "config_id"),
    BaselineRow: ("problem_id", "device_id", "environment_id"),
    BestRow: ("device_id", "problem_id", "compiler"),
    MissRow: ("problem_id", "device_id"),
    LeaseRow: ("problem_id", "device_id"),
}
"""The columns that no two rows of a table share, which are unique in `models`."""


class RowWriter:
    """Writes rows in one transaction, remembering the numbers of the rows they share."""

    def __init__(self, connection: Connection, known: Mapping[Any, int] | None = None) -> None:
        """`known` are numbers that earlier transactions, which were kept, have found."""
        self._connection = connection
        self._numbers: dict[Any, int] = dict(known or {})

    @property
    def numbers(self) -> Mapping[Any, int]:
        """The numbers of rows that are known now."""
        return self._numbers

    def device(self, device: DeviceInfo, *, keep: bool = False) -> None:
        """Store a device; one of the same slug is updated, or kept."""
        if keep:
            statement = _keep(self._connection.dialect.name, DeviceRow)
            self._connection.execute(statement, device_values(device))
        else:
            self._upsert(DeviceRow, device_values(device))

    def best(self, best: Best, *, imported: bool = False) -> None:
        """Make this the row of its key under its compiler, with its vendor measurement."""
        baseline_id = None
        if best.vendor is not None:
            baseline_id = self.baseline(best.key, best.vendor, best.provenance, imported=imported)
        values = {
            **self._place(best.key, best.provenance, imported=imported),
            **measurement_values(best.measurement),
            "compiler": best.provenance.fingerprint.compiler,
            "choice": best.choice.value,
            "config_id": self._config(best.config),
            "baseline_id": baseline_id,
            "trials": best.trials,
            "space_size": best.space_size,
            "count": best.count,
            **distance_values(best.distance),
        }
        self._upsert(BestRow, values)

    def effort(self, best: Best) -> None:
        """Say of the row that keeps its place what was tried for its key by now."""
        columns = BestRow.__table__.c
        place = {**self.place(best.key), "compiler": best.provenance.fingerprint.compiler}
        here = (columns[name] == value for name, value in place.items())
        found = {"trials": best.trials, "space_size": best.space_size}
        self._connection.execute(
            update(BestRow).where(*here).values(**found, **distance_values(best.distance))
        )

    def baseline(
        self,
        key: TuningKey,
        vendor: Measurement,
        provenance: Provenance,
        *,
        imported: bool = False,
    ) -> int:
        """Make this the vendor measurement of a key in its environment; return its number."""
        values = {
            **self._place(key, provenance, imported=imported),
            **measurement_values(vendor),
        }
        self._upsert(BaselineRow, values)
        place = {name: values[name] for name in PLACE[BaselineRow]}
        find, _ = _numbering(BaselineRow, tuple(place))
        return int(self._connection.execute(find, place).scalar_one())

    def trials(
        self,
        key: TuningKey,
        trials: Iterable[tuple[Trial, Provenance]],
        *,
        imported: bool = False,
    ) -> None:
        """Store trials; one of the same config in the same environment is updated.

        What was measured is not overwritten by what was only replayed, unless that is imported,
        which asks beforehand.
        """
        rows = [
            {
                **self._place(key, provenance, imported=imported),
                **measurement_values(trial.measurement),
                "config_id": self._config(trial.config),
                "status": trial.status.value,
                "error": clean_error(trial.error),
            }
            for trial, provenance in trials
        ]
        if rows:
            self._upsert(TrialRow, rows, measured_first=not imported)

    def misses(self, counts: Mapping[TuningKey, int]) -> None:
        """Add to the counts of keys that were missed."""
        rows = [{**self.place(key), "count": count} for key, count in counts.items()]
        if rows:
            self._connection.execute(_count_misses(self._connection.dialect.name), rows)

    def clear_misses(self, keys: Iterable[TuningKey]) -> None:
        """Drop the counts of keys."""
        places = [self.place(key) for key in keys]
        if places:
            columns = MissRow.__table__.c
            here = (columns[name] == bindparam(f"of_{name}") for name in PLACE[MissRow])
            self._connection.execute(
                delete(MissRow).where(*here),
                [{f"of_{name}": place[name] for name in PLACE[MissRow]} for place in places],
            )

    def leases(self, keys: Iterable[TuningKey], **columns: Any) -> None:
        """Make these the columns of the leases of keys."""
        rows = [{**self.place(key), **columns} for key in keys]
        if rows:
            self._upsert(LeaseRow, rows)

    def place(self, key: TuningKey) -> dict[str, int]:
        """Return the numbers of a key's problem and device, the problem's made if there is none.

        Raises:
            StoreError: the device was never put.
        """
        device_id = self._numbers.get(key.gpu)
        if device_id is None:
            find, _ = _numbering(DeviceRow, ("slug",))
            device_id = self._connection.scalar(find, {"slug": key.gpu})
            if device_id is None:
                raise StoreError(f"the cache does not know the device {key.gpu}: put it first")
            self._numbers[key.gpu] = device_id
        problem_id = self._number(ProblemRow, key.problem.to_dict())
        return {"problem_id": problem_id, "device_id": device_id}

    def _place(self, key: TuningKey, provenance: Provenance, *, imported: bool) -> dict[str, Any]:
        """Return the columns that say which key a row is for, and where it came from."""
        environment = self._number(EnvironmentRow, environment_values(provenance))
        return {
            **self.place(key),
            "environment_id": environment,
            **provenance_values(provenance, imported=imported),
        }

    def _config(self, config: Config) -> int:
        return self._number(ConfigRow, {"text": config_text(config)})

    def _number(self, table: type[NumberedBase], values: Mapping[str, Any]) -> int:
        """Return the number of the row with these values, made if there is none."""
        known = (table, *values.values())
        if known not in self._numbers:
            find, make = _numbering(table, tuple(values), self._connection.dialect.name)
            number = self._connection.scalar(find, dict(values))
            if number is None:
                number = self._connection.execute(make, dict(values)).scalar_one_or_none()
            if number is None:  # another, who wrote at the same time, has made it
                number = self._connection.execute(find, dict(values)).scalar_one()
            self._numbers[known] = number
        return self._numbers[known]

    def _upsert(self, table: type[Base], rows: Any, *, measured_first: bool = False) -> None:
        statement = _upsert(self._connection.dialect.name, table, measured_first=measured_first)
        self._connection.execute(statement, rows)


# As in `reading`, each statement is built once.
@cache
def _numbering(
    table: type[NumberedBase], names: tuple[str, ...], dialect: str = "sqlite"
) -> tuple[Any, Any]:
    """Return the statements that find and make a row with values for these columns.

    The one that makes it gives no number if the row is there by now.
    """
    columns = table.__table__.c
    find = select(columns.id).where(*(columns[name] == bindparam(name) for name in names))
    make = _insert(dialect, table)
    return find, make.on_conflict_do_nothing().returning(columns.id)


def _insert(dialect: str, table: type[Base]) -> Any:
    """Return a database's own INSERT, which knows ON CONFLICT."""
    # PostgreSQL's part of SQLAlchemy takes longer to load than all that a lookup needs.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


@cache
def _keep(dialect: str, table: type[Base]) -> Any:
    """Return the INSERT that leaves a row with the same place as it is."""
    return _insert(dialect, table).on_conflict_do_nothing()


@cache
def _upsert(dialect: str, table: type[Base], *, measured_first: bool) -> Any:
    """Return the INSERT that updates the row with the same place.

    `measured_first` leaves a measured row as it is where the other is only replayed.
    """
    statement = _insert(dialect, table)
    place, columns = PLACE[table], table.__table__.c
    changed = {
        column.name: statement.excluded[column.name]
        for column in columns
        if column.name not in place and not column.primary_key
    }
    guard = None
    if measured_first:
        measured = Origin.MEASURED.value
        guard = or_(columns.origin != measured, statement.excluded.origin == measured)
    return statement.on_conflict_do_update(index_elements=place, set_=changed, where=guard)


@cache
def _count_misses(dialect: str) -> Any:
    """Return the INSERT that adds to the count of a row with the same place."""
    statement = _insert(dialect, MissRow)
    total = MissRow.__table__.c.count + statement.excluded.count
    return statement.on_conflict_do_update(index_elements=PLACE[MissRow], set_={"count": total})
