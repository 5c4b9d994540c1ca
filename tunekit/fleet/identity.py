"""What results depend on as it is installed: on every host of a run it has to be the same."""

from __future__ import annotations

from collections.abc import Mapping

from tunekit.config import Config
from tunekit.device import DeviceInfo, torch_version
from tunekit.errors import ConfigError
from tunekit.kernels import FAMILIES, family
from tunekit.trial import PROTOCOL, Fingerprint, Origin, Provenance, timestamp
from tunekit.version import VERSION


def made_by(origin: Origin) -> dict[str, str]:
    """Return versions and fingerprints by name. What is only replayed depends on few of them."""
    found = {"tunekit": VERSION}
    if origin is Origin.REPLAYED:
        return found
    import triton  # which a replay has no need of

    found |= {"torch": torch_version(), "triton": triton.__version__, "protocol": PROTOCOL}
    for name in FAMILIES:
        kernels = family(name)
        for variant in (v.name for v in kernels.variants):
            mark = kernels.fingerprint(variant)
            found |= {_kernels_of(variant): mark.source, _COMPILER: mark.compiler}
    return found


def provenance(
    made: Mapping[str, str], config: Config, device: DeviceInfo, driver: str
) -> Provenance:
    """Say where a config's result comes from that is measured now, by what made it.

    Raises:
        ConfigError: there is no such variant.
    """
    if _kernels_of(config.variant) not in made:
        raise ConfigError(f"unknown variant {config.variant!r}")
    return Provenance(
        fingerprint=Fingerprint(made[_kernels_of(config.variant)], made[_COMPILER]),
        protocol=made["protocol"],
        tunekit=made["tunekit"],
        triton=made["triton"],
        torch=made["torch"],
        driver=driver,
        device_name=device.name,
        created_at=timestamp(),
    )


_COMPILER = "the compiler"


def _kernels_of(variant: str) -> str:
    return f"the kernels of {variant}"
