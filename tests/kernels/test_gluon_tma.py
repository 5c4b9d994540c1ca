"""The warp-specialised variant. Gluon has no interpreter: without a GPU it is only compiled."""

from __future__ import annotations

import pytest
import torch

from tunekit.device import KNOWN_DEVICES
from tunekit.key import LAYOUTS, Problem

gluon_tma = pytest.importorskip("tunekit.kernels.gluon_tma", reason="this Triton has no such Gluon")

from tunekit.kernels.matmul_family import MatmulFamily  # noqa: E402
from tunekit.kernels.reference import guard_is_intact  # noqa: E402

H200 = KNOWN_DEVICES["sm_90"]
FAMILY = MatmulFamily((gluon_tma.WarpSpecialised(),))


def test_corners_compile_and_need_the_shared_memory_predicted(compile_corners):
    problem = {"family": "matmul", "m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16"}
    cases = [("sm_90", {**problem, "layout": layout}) for layout in LAYOUTS]
    # lines of C that TMA cannot store
    cases += [("sm_90", {**problem, "n": 4090}), ("sm_90", {**problem, "dtype": "float16"})]
    for found in compile_corners("tunekit.kernels.gluon_tma:WarpSpecialised", cases):
        assert found["shared"] <= found["predicted"] <= 1.1 * found["shared"], found
        assert {"wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"} <= set(found["ptx"]), found


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_100", "gfx942"])
def test_it_is_for_hopper_alone(arch):
    space = FAMILY.space(Problem("matmul", 4096, 4096, 4096, "bfloat16"), KNOWN_DEVICES[arch])
    assert not space.configs
    assert set(space.pruned) == {"hopper"}


@pytest.mark.parametrize("fields", [{"dtype": "float32"}, {"dtype": "float16", "aligned": False}])
def test_what_tma_or_a_warpgroup_cannot_do_is_refused(fields):
    assert not FAMILY.space(Problem("matmul", 4096, 4096, 4096, **fields), H200).configs


def test_the_space_is_small_and_its_rings_are_deep():
    configs = FAMILY.space(Problem("matmul", 4096, 4096, 4096, "bfloat16"), H200).configs
    assert 20 <= len(configs) <= 200
    widest = {c.num_stages for c in configs if (c.block_m, c.block_n, c.block_k) == (128, 256, 64)}
    assert widest == {2, 3}


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(512, 768, 512), (500, 504, 200), (1, 64, 72), (129, 250, 64)])
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
