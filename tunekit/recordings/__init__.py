"""Recordings that ship with tunekit: full sweeps measured on real GPUs, for `replay`."""
