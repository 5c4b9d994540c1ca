"""Clusters of two blocks, for Hopper: what both need of an operand is loaded once, for both.

Like the warp-specialised tiles, but two neighbouring tiles are computed by a cluster of two blocks,
one above the other (switch `tall` = 1) or side by side (0). The columns of B, or rows of A, that
they share travel from L2 once and arrive in the shared memory of both (TMA multicast). Where all
multiprocessors read the same operands again and again, L2's bandwidth is what limits them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.kernels import tile_rules
from tunekit.kernels.cluster_ring import cluster_kernel
from tunekit.kernels.descriptors import describes
from tunekit.kernels.gluon_tma import STAGES, deep, described, hopper, lines_fit, shared_bytes
from tunekit.kernels.protocol import KernelCall
from tunekit.kernels.tma_rules import TMA_WORTH
from tunekit.key import Problem
from tunekit.space import Rule, VariantSpace


def paired(config: Config) -> Config:
    """Return the config with the tile of a pair of blocks."""
    if config.switch("tall"):
        return replace(config, block_m=2 * config.block_m)
    return replace(config, block_n=2 * config.block_n)


def _on_pairs(rule: Rule) -> Rule:
    """Ask a rule about the tiles of pairs."""

    def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
        return rule.check(paired(config), problem, device)

    return Rule(rule.name, check, (*rule.fields, "switches"))


def _both_busy(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
    """Leave out pairs of which one would always lie outside of C."""
    name, own, size = (
        ("block_m", config.block_m, problem.m)
        if config.switch("tall")
        else ("block_n", config.block_n, problem.n)
    )
    return f"{name}={own}, one block covers {size}" if size <= own else None


class ClusterTiles:
    """The variant of clusters of two as the family knows it."""

    name = "cluster"
    kernels = (cluster_kernel,)
    space = VariantSpace(
        variant="cluster",
        choices={
            "block_m": (64, 128, 256),
            "block_n": (64, 128, 256),
            "block_k": (64, 128),
            "group_size": (1, 4, 8, 16),
            "split_k": (1,),
            "num_warps": (8,),
            "num_stages": STAGES,
            "tall": (0, 1),
        },
        rules=(
            Rule("hopper", hopper, ("variant",)),
            tile_rules.PLAIN,
            tile_rules.POWER_OF_TWO,
            *tile_rules.DOT_RULES,
            tile_rules.REGISTERS,
            tile_rules.shared_rule(shared_bytes),
        ),
        worth=(
            tile_rules.OVERSIZED,
            Rule("both-busy", _both_busy, ("block_m", "block_n", "switches")),
            *(_on_pairs(rule) for rule in TMA_WORTH if rule.name == "one-order"),
            *(rule for rule in TMA_WORTH if rule.name == "small-tiles"),
            Rule("deep-pipeline", deep, (*tile_rules.TILE, "split_k", "num_stages")),
        ),
    )

    def call(
        self, config: Config, problem: Problem, device: DeviceInfo, a: Any, b: Any, out: Any,
        *scales: Any,
    ) -> KernelCall:  # fmt: skip
        """Launch a cluster for every two multiprocessors, at most one for each pair of tiles."""
        pair = paired(config)
        tall = config.switch("tall")
        a_stored, b_stored = (major == "n" for major in problem.layout)
        store_tma = lines_fit(problem) and describes(out)
        m, n, k = pair.block_m, pair.block_n, pair.block_k
        args = (
            described(a, a_stored, m, k, ((1, 0),) if tall else ((0, 0),)),
            described(b, b_stored, k, n, ((0, 0),) if tall else ((0, 1),)),
            described(out, True, m, n, ((1, 0),) if tall else ((0, 1),)) if store_tma else out,
            problem.m, problem.n, problem.k,
            *((0, 0) if store_tma else out.stride()),
            config.group_size,
        )  # fmt: skip
        options = {
            "PAIR_M": m,
            "PAIR_N": n,
            "BLOCK_K": k,
            "STAGES": config.num_stages,
            "A_STORED": a_stored,
            "B_STORED": b_stored,
            "STORE_TMA": store_tma,
            "TALL": bool(tall),
            "num_warps": config.num_warps,
            "num_ctas": 2,
        }
        clusters = min(device.multiprocessors // 2, tile_rules.tile_count(pair, problem))
        return KernelCall(cluster_kernel, (clusters,), args, options)

    def shared_bytes(self, config: Config, problem: Problem, device: DeviceInfo) -> int:
        """Predict the shared memory of one block."""
        return shared_bytes(config, problem, device)
