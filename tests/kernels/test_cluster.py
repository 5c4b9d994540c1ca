"""The variant of clusters of two. Gluon has no interpreter: without a GPU it is only compiled."""

from __future__ import annotations

import pytest
import torch

from tunekit.device import KNOWN_DEVICES
from tunekit.key import LAYOUTS, Problem

cluster = pytest.importorskip("tunekit.kernels.cluster", reason="this Triton has no multicast")

from tunekit.kernels.matmul_family import MatmulFamily  # noqa: E402
from tunekit.kernels.reference import guard_is_intact  # noqa: E402

H200 = KNOWN_DEVICES["sm_90"]
FAMILY = MatmulFamily((cluster.ClusterTiles(),))


def test_corners_compile_and_what_is_shared_is_loaded_once(compile_corners):
    problem = {"family": "matmul", "m": 512, "n": 4096, "k": 4096, "dtype": "bfloat16"}
    cases = [("sm_90", {**problem, "layout": layout}) for layout in LAYOUTS]
    # lines of C that TMA cannot store
    cases += [("sm_90", {**problem, "n": 4090}), ("sm_90", {**problem, "dtype": "float16"})]
    wanted = {"wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg", "multicast::cluster"}
    for found in compile_corners("tunekit.kernels.cluster:ClusterTiles", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found
        assert wanted <= set(found["ptx"]), found


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_100", "gfx942"])
def test_it_is_for_hopper_alone(arch):
    space = FAMILY.space(Problem("matmul", 4096, 4096, 4096, "bfloat16"), KNOWN_DEVICES[arch])
    assert not space.configs
    assert set(space.pruned) == {"hopper"}


def test_no_pair_has_a_block_with_nothing_to_do():
    for m, n in ((64, 4096), (4096, 64), (128, 128)):
        for config in FAMILY.space(Problem("matmul", m, n, 4096, "bfloat16"), H200).configs:
            own, size = (config.block_m, m) if config.switch("tall") else (config.block_n, n)
            assert own < size


def test_both_ways_to_pair_are_tried():
    configs = FAMILY.space(Problem("matmul", 512, 4096, 4096, "bfloat16"), H200).configs
    assert {config.switch("tall") for config in configs} == {0, 1}
    assert 20 <= len(configs) <= 120


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(512, 768, 512), (500, 504, 200), (1, 640, 72), (129, 250, 64)])
def test_it_is_right_on_hopper(layout, shape):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    problem = Problem("matmul", *shape, "bfloat16", layout=layout)
    for config in FAMILY.space(problem, H200).configs[::5]:
        prepared = FAMILY.prepare(problem, H200, index=0, seed=0)
        FAMILY.poison(prepared)
        FAMILY.launch(config, prepared)()
        assert FAMILY.error_ratio(prepared) <= 1, f"{config} is wrong for {problem}"
        assert guard_is_intact(prepared)
        first = prepared.out.clone()
        FAMILY.launch(config, prepared)()
        assert torch.equal(first, prepared.out)
