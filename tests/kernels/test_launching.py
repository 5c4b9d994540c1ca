"""Prepared launches, on stand-ins for what Triton compiles and launches."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tunekit.kernels import launching
from tunekit.kernels.bare import Built, bare_steps
from tunekit.kernels.launching import fixed, prepared
from tunekit.kernels.protocol import KernelCall

SIZES = {"M": 8, "N": 8}


# The bare function is a partial, for Triton's is written in C: what is a function encodes first.


class FlatLauncher:
    """Passes the kernel's arguments on one by one, as Triton 3.6 does."""

    def __init__(self, launched, encoded=None):
        def bare(*passed):
            front, values = passed[:13], passed[13:]
            launched.append((front[3], front[:3], list(values)))

        self.launch = partial(bare) if encoded is None else with_maps(bare, encoded)

    def __call__(self, x, y, z, stream, function, *rest):
        packed, metadata, enter, leave, *values = rest
        self.launch(
            x, y, z, stream, function, False, False, None, None, packed, metadata, enter, leave,
            *values,
        )  # fmt: skip


class NestedLauncher:
    """Passes the kernel's arguments on as one sequence, as Triton 3.9 does."""

    def __init__(self, launched, encoded=None):
        def bare(*passed):
            launched.append((passed[3], passed[:3], list(passed[-1])))

        self.launch = partial(bare) if encoded is None else with_maps_nested(bare, encoded)

    def __call__(self, x, y, z, stream, function, packed, metadata, enter, leave, *values):
        self.launch(
            x, y, z, stream, function, False, False, packed, metadata, enter, leave, None, None,
            ("annotations",), b"signature", values,
        )  # fmt: skip


class Encoded(str):
    """An encoded descriptor: what Triton makes of a TensorDescriptor."""


def expanded(value, encoded):
    if not isinstance(value, TensorDescriptor):
        return [value]
    encoded.append(value.base.data_ptr())
    return [Encoded(f"map of {value.base.data_ptr()}"), *value.shape, *value.strides]


def with_maps(launcher, encoded):
    def inner(*passed):
        values = [part for one in passed[13:] for part in expanded(one, encoded)]
        return launcher(*passed[:13], *values)

    return inner


def with_maps_nested(launcher, encoded):
    def inner(*passed):
        return launcher(*passed[:-1], [p for one in passed[-1] for p in expanded(one, encoded)])

    return inner


class Kernel:
    """A jitted kernel that 'compiles' to a launcher."""

    def __init__(self, launcher, names):
        self.arg_names = names
        self.compilations = 0
        self._launcher = launcher

    def warmup(self, *args, grid, **options):
        self.compilations += 1
        return SimpleNamespace(run=self._launcher, function=7, packed_metadata=("packed",))


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    """The driver's current stream, for the tests to change."""
    now = SimpleNamespace(stream=11, capturing=False)
    active = SimpleNamespace(
        get_current_stream=lambda index: now.stream, get_current_device=lambda: 0
    )
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now.capturing)
    return now


@pytest.fixture(params=[FlatLauncher, NestedLauncher])
def launcher(request):
    return request.param


def tensors():
    return torch.zeros(8, 8), torch.zeros(8, 8), torch.zeros(8, 8)


def pointer_call(kernel):
    def call(a, b, out):
        return KernelCall(kernel, (3, 2), (a, b, out, out, 8, 16), {"BLOCK": 64, "num_warps": 4})

    return call


NAMES = ["a", "b", "c", "again", "M", "N", "BLOCK"]


def test_a_call_fills_in_addresses_stream_and_nothing_else(launcher, stream):
    launched = []
    kernel = Kernel(launcher(launched), NAMES)
    launch = prepared(pointer_call(kernel), *tensors())
    assert launched == []  # preparing launches nothing
    for stream.stream in (11, 12):
        a, b, out = tensors()
        launch(a, b, out)
        place, grid, values = launched.pop()
        assert (place, grid) == (stream.stream, (3, 2, 1))
        addresses = [a.data_ptr(), b.data_ptr(), out.data_ptr(), out.data_ptr()]
        assert values == [*addresses, 8, 16, 64]
    assert kernel.compilations == 1


def test_a_fixed_launch_passes_on_its_own_operands_and_the_current_stream(launcher, stream):
    launched, encoded = [], []
    a, b, out = tensors()
    first = pointer_call(Kernel(launcher(launched), NAMES))(a, b, out)
    call = described_call(Kernel(launcher(launched, encoded), DESCRIBED))(a, b, out)
    launch = fixed(replace(call, before=(first,)))
    assert launched == []
    for stream.stream in (11, 12):
        launch()
        streams, grids, values = zip(*launched, strict=True)
        assert streams == (stream.stream,) * 2
        assert grids == ((3, 2, 1), (1, 1, 1))
        at = [one.data_ptr() for one in (a, b, out)]
        assert values[0] == [*at, at[2], 8, 16, 64]
        maps = [f"map of {address}" for address in at[:2]]
        assert values[1] == [maps[0], 8, 8, 8, 1, maps[1], 8, 8, 8, 1, at[2], 8, 64]
        launched.clear()
    assert len(encoded) == 2  # once each, when it was made


def test_a_fixed_launch_keeps_its_operands(launcher):
    launched = []
    out = torch.zeros(8, 8)
    known = weakref.ref(out)
    launch = fixed(pointer_call(Kernel(launcher(launched), NAMES))(*tensors()[:2], out))
    del out
    launch()
    assert known() is not None


def test_a_fixed_launch_that_is_not_understood_is_called_as_it_is(launcher, stream):
    launched = []
    strange = launcher(launched)
    strange.global_scratch_size = 1
    a, b, out = tensors()
    fixed(pointer_call(Kernel(strange, NAMES))(a, b, out))()
    assert launched == [(11, (3, 2, 1), [a, b, out, out, 8, 16, 64])]


def test_two_operands_that_were_one_tensor_are_told_apart_later(launcher):
    launched = []
    launch = prepared(pointer_call(Kernel(launcher(launched), NAMES)), *(tensors()[0],) * 2,
                      tensors()[2])  # fmt: skip
    a, b, out = tensors()
    launch(a, b, out)
    assert launched[0][2][:3] == [a.data_ptr(), b.data_ptr(), out.data_ptr()]


def test_operands_of_more_dimensions_are_the_same_memory(launcher):
    launched = []
    launch = prepared(pointer_call(Kernel(launcher(launched), NAMES)), *tensors())
    a, b, out = torch.zeros(2, 4, 8), torch.zeros(8, 8), torch.zeros(2, 4, 8)
    launch(a, b, out)
    assert launched[0][2][0] == a.data_ptr()


def described_call(kernel):
    def call(a, b, out):
        args = (*(TensorDescriptor.from_tensor(one, [8, 8]) for one in (a, b)), out, 8)
        return KernelCall(kernel, (1,), args, {"BLOCK": 64})

    return call


DESCRIBED = ["a", "b", "c", "M", "BLOCK"]


def test_descriptors_are_encoded_once_for_each_address(launcher):
    launched, encoded = [], []
    launch = prepared(described_call(Kernel(launcher(launched, encoded), DESCRIBED)), *tensors())
    weights, kept = torch.zeros(8, 8), []
    for _ in range(3):
        a, out = torch.zeros(8, 8), torch.zeros(8, 8)
        kept += [a, out]
        for _ in range(2):
            launch(a, weights, out)
            _, _, values = launched.pop()
            maps = [f"map of {one.data_ptr()}" for one in (a, weights)]
            assert values == [maps[0], 8, 8, 8, 1, maps[1], 8, 8, 8, 1, out.data_ptr(), 8, 64]
    before = len(encoded)
    launch(kept[0], weights, kept[1])
    assert len(encoded) == before


def test_keeping_descriptors_can_be_turned_off_to_measure_it(launcher):
    launched, encoded = [], []
    kernel = Kernel(launcher(launched, encoded), DESCRIBED)
    launch = prepared(described_call(kernel), *tensors(), keep_maps=False)
    a, b, out = tensors()
    for _ in range(3):
        before = len(encoded)
        launch(a, b, out)
        assert encoded[before:] == [a.data_ptr(), b.data_ptr()]
    assert kernel.compilations == 1


def test_kept_descriptors_are_bounded(launcher, monkeypatch):
    monkeypatch.setattr(launching, "MOST_MAPS", 4)
    launched, encoded = [], []
    launch = prepared(described_call(Kernel(launcher(launched, encoded), DESCRIBED)), *tensors())
    held = [tensors() for _ in range(20)]
    counts = []
    for _ in range(2):
        for a, b, out in held:
            launch(a, b, out)
            assert launched.pop()[2][0] == f"map of {a.data_ptr()}"
        counts.append(len(encoded))
    assert counts[1] >= counts[0] + 16  # what was kept of the first was dropped for the last


def split_call(kernel, made):
    def call(a, b, out):
        workspace = torch.zeros(64)
        made.append(workspace)
        return KernelCall(kernel, (1,), (a, b, out, workspace, 8), {"BLOCK": 64})

    return call


SPLIT = ["a", "b", "c", "w", "M", "BLOCK"]


def test_memory_of_a_launch_is_kept_for_each_stream(launcher, stream):
    launched, made = [], []
    launch = prepared(split_call(Kernel(launcher(launched), SPLIT), made), *tensors())
    seen = {}
    for stream.stream in (11, 12, 11, 12, 11):
        launch(*tensors())
        place, _, values = launched.pop()
        assert seen.setdefault(place, values[3]) == values[3]
    assert seen[11] != seen[12]
    assert len(made) == 3  # one to prepare, one for each stream


def test_a_captured_launch_shares_memory_with_no_other(launcher, stream):
    launched, made = [], []
    launch = prepared(split_call(Kernel(launcher(launched), SPLIT), made), *tensors())
    launch(*tensors())
    eager = launched.pop()[2][3]
    stream.capturing = True
    captured = []
    for _ in range(2):
        launch(*tensors())
        captured.append(launched.pop()[2][3])
    assert eager not in captured
    assert captured[0] != captured[1]
    stream.capturing = False
    launch(*tensors())
    assert launched.pop()[2][3] == eager


def test_whether_it_is_captured_is_not_asked_of_the_stream_that_cannot_be(launcher, stream):
    launched, made = [], []
    launch = prepared(split_call(Kernel(launcher(launched), SPLIT), made), *tensors())
    stream.stream, stream.capturing = 0, True  # by another thread, on a stream of its own
    launch(*tensors())
    launch(*tensors())
    assert launched[0][2][3] == launched[1][2][3]


def test_a_capture_that_comes_first_leaves_nothing_to_the_eager_calls(launcher, stream):
    launched, made = [], []
    stream.capturing = True
    launch = prepared(split_call(Kernel(launcher(launched), SPLIT), made), *tensors())
    launch(*tensors())
    captured = launched.pop()[2][3]
    stream.capturing = False
    launch(*tensors())
    assert launched.pop()[2][3] != captured


def test_launches_that_hand_something_on_are_not_mixed_with_another_threads(launcher):
    launched = []
    copying, product = (Kernel(launcher(launched), ["a", "c", "which"]) for _ in range(2))
    copy = torch.zeros(64)

    def call(a, b, out):
        first = KernelCall(copying, (1,), (a, copy, 1), {})
        return KernelCall(product, (1,), (copy, out, 2), {}, before=(first,))

    launch = prepared(call, *tensors())
    threads = [threading.Thread(target=lambda: [launch(*tensors()) for _ in range(50)])
               for _ in range(4)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [values[2] for _, _, values in launched] == [1, 2] * 200


@pytest.mark.parametrize(
    "spoil",
    [
        lambda launcher: setattr(launcher, "global_scratch_size", 64),
        lambda launcher: setattr(launcher, "gsan_enabled", True),
        lambda launcher: delattr(launcher, "launch"),
        lambda launcher: setattr(launcher, "launch", lambda *passed: None),
    ],
)
def test_a_launcher_that_is_not_understood_is_called_as_it_is(launcher, spoil):
    made = launcher([])
    spoil(made)
    kernel = Kernel(made, NAMES)
    a, b, out = tensors()
    call = pointer_call(kernel)(a, b, out)
    compiled = kernel.warmup(*call.args, grid=call.grid)
    assert bare_steps([compiled], Built((call,), (a, b, out))) is None


def test_descriptors_that_are_passed_on_in_parts_are_left_to_triton(launcher, monkeypatch):
    def in_parts(value, encoded):  # as for a GPU without TMA
        if not isinstance(value, TensorDescriptor):
            return [value]
        return [value.base, *value.shape, *value.strides, False, *value.shape, *value.strides]

    monkeypatch.setitem(globals(), "expanded", in_parts)
    launched = []
    launch = prepared(described_call(Kernel(launcher(launched, []), DESCRIBED)), *tensors())
    a, b, out = tensors()
    launch(a, b, out)
    assert launched[-1][2][0].data_ptr() == a.data_ptr()


def test_an_operand_in_another_guise_is_not_taken_for_memory_of_its_own(launcher):
    launched = []
    kernel = Kernel(launcher(launched), ["a", "b", "c"])

    def call(a, b, out):
        return KernelCall(kernel, (1,), (a[1:], b, out), {})

    launch = prepared(call, *tensors())
    a, b, out = tensors()
    launch(a, b, out)
    passed = launched[-1][2]
    assert passed[0].data_ptr() == a[1:].data_ptr()  # as Triton's launcher takes it


def nvidias_launcher(bare, signature, monkeypatch):
    """Return Triton's own launcher for NVIDIA, on a bare function and an encoder of ours."""
    driver = pytest.importorskip("triton.backends.nvidia.driver")

    def encode(address, *rest):
        return Encoded(f"map of {address}")

    names = ("fill_tma_descriptor", "fill_tma_descriptor_tiled")
    utils = SimpleNamespace(**dict.fromkeys(names, encode))
    active = SimpleNamespace(utils=utils, get_current_stream=lambda index: 11)
    monkeypatch.setattr(driver.triton.runtime, "driver", SimpleNamespace(active=active))
    made = object.__new__(driver.CudaLauncher)
    meta = {
        "swizzle": 1, "elem_size": 4, "elem_type": 7, "block_size": [8, 8], "fp4_padded": False,
    }  # fmt: skip
    described = [meta for kind in signature.values() if kind.startswith("tensordesc")]
    made.launch = driver.wrap_handle_tensordesc(bare, signature, described)
    made.global_scratch_size = made.profile_scratch_size = 0
    made.global_scratch_align = made.profile_scratch_align = 1
    made.launch_cooperative_grid = made.launch_pdl = False
    made.num_ctas, made.gsan_enabled = 1, False
    made.arg_annotations, made.kernel_signature = ("annotations",), b"signature"
    return made


@pytest.mark.parametrize("described", [False, True])
def test_tritons_own_launcher_passes_on_what_is_kept(described, monkeypatch):
    launched = []
    kinds = ["tensordesc<fp32[8, 8]>", "tensordesc<fp32[8, 8]>"] if described else ["*fp32"] * 2
    signature = dict(enumerate([*kinds, "*fp32", "i32", "constexpr"]))
    made = nvidias_launcher(
        partial(lambda *passed: launched.append(passed)), signature, monkeypatch
    )
    kernel = Kernel(made, DESCRIBED)

    def plain(a, b, out):
        return KernelCall(kernel, (1,), (a, b, out, 8), {"BLOCK": 64})

    launch = prepared(described_call(kernel) if described else plain, *tensors())
    a, b, out = tensors()
    launch(a, b, out)
    ours = launched.pop()
    kernel._launcher(1, 1, 1, 11, 7, ("packed",), None, None, None, *(
        described_call(kernel) if described else plain)(a, b, out).args, 64)  # fmt: skip
    theirs = launched.pop()

    def plain_values(passed):
        nested = list(passed[-1]) if isinstance(passed[-1], (list, tuple)) else []
        values = [*passed[: -1 if nested else None], *nested]
        return [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]

    assert plain_values(ours) == plain_values(theirs)
    assert not any(isinstance(value, torch.Tensor) for value in ours)
