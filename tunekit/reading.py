"""What a process reads from the store for one device, into memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.errors import NoStoreError, StoreError
from tunekit.kernels import current_fingerprint, family
from tunekit.key import Problem
from tunekit.lookup import RowTable, StoredRow, same_silicon
from tunekit.space import Violation

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Read:
    """What was read for a device; `failed_at` (seconds) says that it is nothing, for a `fault`."""

    device: DeviceInfo
    table: RowTable
    location: str
    where: str = field(repr=False)
    """The location as it is: it may hold a password."""
    failed_at: float | None = None
    fault: str = ""

    def require(self) -> None:
        """Refuse to go on without the store, as a deterministic policy does.

        Raises:
            StoreError: it could not be read.
        """
        if self.failed_at is not None:
            raise StoreError(f"deterministic, and the cache cannot be read: {self.fault}")


def read_table(device: DeviceInfo, now: float, *, before: Read | None = None) -> Read:
    """Read every row that may answer on a device, once, at the time `now` (seconds).

    A store that cannot be read leaves an empty table and one warning.
    """
    from tunekit.cache import default_location, shown_location

    location, where = "the default cache", ""
    rows: list[StoredRow] = []
    devices: dict[str, DeviceInfo] = {}
    failed_at, fault = None, ""
    try:
        where = default_location()
        location = shown_location(where)
        rows, devices = _read_rows(where, device)
    except NoStoreError as error:
        logger.info("%s", error)
    except StoreError as error:
        failed_at, fault = now, str(error)
        level = logging.WARNING if before is None else logging.INFO
        logger.log(level, "tunekit goes on without its cache: %s", error)
    if before is not None and failed_at is None:
        logger.info("the cache %s can be read again", location)
    table = RowTable(
        rows, devices, device=device, fingerprint=current_fingerprint, legality=_legality,
        versions={"torch": torch.__version__},
    )  # fmt: skip
    return Read(device, table, location, where, failed_at, fault)


def _read_rows(where: str, device: DeviceInfo) -> tuple[list[StoredRow], dict[str, DeviceInfo]]:
    """Read the rows that may answer on a device, again where a fault comes and goes."""
    from tunekit.cache import Store

    for last in (False, True):
        try:
            with Store.open(where, create=False) as store:
                devices = {info.slug: info for info in store.devices()}
                alike = [
                    s for s, o in devices.items() if s == device.slug or same_silicon(o, device)
                ]
                return [row for slug in alike for row in store.unread_bests(gpu=slug)], devices
        except StoreError as error:
            if last or not error.passing:
                raise
    raise AssertionError("the last try either returns or raises")


def _legality(config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
    return family(problem.family).violation(config, problem, device)
