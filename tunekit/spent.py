"""Where the wall time of a run went, as the measuring process saw it."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds. The first five add up to the time since the runner was opened.

    `search_s` is the search's own time, most of which the GPU does not wait for;
    `compiling_s` is that of all compilers together.
    """

    start_s: float = 0.0
    """Until the measuring process was ready, and waiting for the GPU's lock."""
    compile_s: float = 0.0
    """The GPU waited for a compilation: nothing that was to be tried was built yet."""
    verify_s: float = 0.0
    """Operands, references, loading kernels, comparing results."""
    time_s: float = 0.0
    """Timed launches, with their warm-up and flushes."""
    idle_s: float = 0.0
    """The GPU had nothing to do: the search, the store or the caller had not asked."""
    search_s: float = 0.0
    compiling_s: float = 0.0
    compilations: int = 0
    compiled_late: int = 0
    """Kernels the measuring process had to compile itself: 0, or the pool's keys are wrong."""
    restarts: int = 0
    """How often the measuring process was started anew after a fault."""

    @property
    def wall_s(self) -> float:
        """Seconds since the runner was opened."""
        return self.start_s + self.compile_s + self.verify_s + self.time_s + self.idle_s

    @property
    def busy_share(self) -> float:
        """Share of the wall time in which the GPU verified or timed."""
        wall = self.wall_s
        return (self.verify_s + self.time_s) / wall if wall > 0 else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return the fields and what follows from them, rounded for people."""
        values = {**asdict(self), "wall_s": self.wall_s, "gpu_busy_share": self.busy_share}
        return {name: round(value, 4) for name, value in values.items()}
