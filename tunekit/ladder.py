"""What a store's rows say for a device: the same ladder that the run time climbs, read at once."""

from __future__ import annotations

from importlib.metadata import version

from tunekit.cache import Store
from tunekit.device import DeviceInfo
from tunekit.kernels import current_fingerprint, family
from tunekit.lookup import DecodedRow, RowTable


def row_table(store: Store, device: DeviceInfo, *, family_name: str = "matmul") -> RowTable:
    """Return the rows of a family that may serve on a device.

    Raises:
        StoreError: the store cannot be read.
    """
    return RowTable(
        map(DecodedRow, store.bests(family=family_name)),
        {known.slug: known for known in store.devices()},
        device=device,
        fingerprint=current_fingerprint,
        legality=family(family_name).violation,
        versions={"torch": version("torch")},
    )
