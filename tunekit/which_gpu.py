"""Which GPU a command is about: the one named, the one that is here, or a cache's only one."""

from __future__ import annotations

from tunekit.cache import Store
from tunekit.device import DeviceInfo, cuda_available, detect
from tunekit.errors import StoreError


def which_gpu(gpu: str | None, store: Store) -> DeviceInfo:
    """Return the GPU with this slug, or without one the GPU that is here.

    Where none is here it is the only one that the store has rows of, if there is one.

    Raises:
        StoreError: no such GPU is here or in the store; those there are are named.
    """
    known = {device.slug: device for device in store.devices()}
    if gpu is not None and gpu in known:
        return known[gpu]
    here = detect() if cuda_available() else None
    if here is not None and gpu in (None, here.slug):
        return here
    if gpu is None and len(known) == 1:
        return next(iter(known.values()))
    others = f"the cache {store.location} has {', '.join(known) or 'none'}"
    if gpu is None:
        raise StoreError(f"no GPU is usable here: name one with --gpu: {others}")
    raise StoreError(f"the cache has no rows of the GPU {gpu!r}: {others}")
