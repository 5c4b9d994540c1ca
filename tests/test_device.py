"""What identifies a GPU, and how the one present (or a stand-in for it) is described."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.device import (
    KNOWN_DEVICES,
    DeviceInfo,
    cuda_expected,
    describe,
    detect,
    detect_early,
    driver_version,
    gpu_uuid,
    nvidia_gpus,
    product_slug,
)
from tunekit.errors import DeviceError
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings

H200 = KNOWN_DEVICES["sm_90"]


def gpu(name, arch, multiprocessors):
    return replace(H200, name=name, arch=arch, multiprocessors=multiprocessors)


# Slugs are in keys, rows and file names: one that changes loses every row stored under it.
SLUGS = [
    (gpu("NVIDIA H200", "sm_90", 132), "nvidia-h200-sm90-132"),
    (gpu("NVIDIA H200 MIG 1g.18gb", "sm_90", 16), "nvidia-h200-mig-1g-18gb-sm90-16"),
    (gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108), "nvidia-a100-sxm4-80gb-sm80-108"),
    (gpu("NVIDIA GH200 480GB", "sm_90", 132), "nvidia-gh200-480gb-sm90-132"),
    (gpu("Tesla T4", "sm_75", 40), "tesla-t4-sm75-40"),
    (gpu("Orin (nvgpu)", "sm_87", 16), "orin-nvgpu-sm87-16"),
    (gpu("Quadro RTX 6000/8000", "sm_75", 72), "quadro-rtx-6000-8000-sm75-72"),
    (
        gpu("NVIDIA Graphics Device (rev a1)", "sm_100", 148),
        "nvidia-graphics-device-rev-a1-sm100-148",
    ),
    (gpu("  NVIDIA  GeForce RTX 5090 ", "sm_120", 170), "nvidia-geforce-rtx-5090-sm120-170"),
    (gpu("NVIDIA GeForce GTX 1650 Ti\u2122", "sm_75", 16), "nvidia-geforce-gtx-1650-ti-sm75-16"),
    (gpu("AMD Instinct MI300X OAM", "gfx942", 304), "amd-instinct-mi300x-oam-gfx942-304"),
    (gpu("AMD Radeon Graphics", "gfx90a", 110), "amd-radeon-graphics-gfx90a-110"),
    (gpu("\u2122", "sm_90", 132), "gpu-sm90-132"),
]


@pytest.mark.parametrize(("device", "slug"), SLUGS, ids=[slug for _, slug in SLUGS])
def test_the_slug_of_a_device(device, slug):
    assert device.slug == slug


# Every line is one kind of product, under each of the names it is known by.
ONE_PRODUCT = {
    "nvidia-h200": ["NVIDIA H200", "H200", "nvidia h200", "NVIDIA® H200™", "NVIDIA(R) H200(TM) ",
                    "NVIDIA Corporation H200"],
    "nvidia-h200-nvl": ["NVIDIA H200 NVL", "H200-NVL"],
    "nvidia-h100-80gb-hbm3": ["NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB", "H100 80 GB HBM3",
                              "NVIDIA H100 80GB SXM5"],
    "nvidia-h100-pcie": ["NVIDIA H100 PCIe", "H100 PCIe", "NVIDIA H100 PCIE",
                         "NVIDIA H100 80GB PCIe"],
    "nvidia-h100-nvl": ["NVIDIA H100 NVL"],
    "nvidia-gh200-480gb": ["NVIDIA GH200 480GB", "GH200 480GB", "GH200 480 GB"],
    "nvidia-a100-sxm4-80gb": ["NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB"],
    "nvidia-a100-sxm4-40gb": ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"],
    "nvidia-a100-80gb-pcie": ["NVIDIA A100 80GB PCIe", "A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"],
    "nvidia-a100-pcie-40gb": ["NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"],
    "nvidia-a100-sxm4-80gb-mig-3g-40gb": ["NVIDIA A100-SXM4-80GB MIG 3g.40gb"],
    "nvidia-a100-sxm4-80gb-mig-1g-10gb": ["NVIDIA A100-SXM4-80GB MIG 1g.10gb"],
    "grid-a100-40c": ["GRID A100-40C", "NVIDIA GRID A100-40C"],
    "nvidia-a100-40c": ["NVIDIA A100-40C"],
    "nvidia-a10": ["NVIDIA A10", "A10"],
    "nvidia-a10g": ["NVIDIA A10G", "A10G"],
    "nvidia-l4": ["NVIDIA L4", "L4"],
    "nvidia-l40s": ["NVIDIA L40S"],
    "tesla-v100-sxm2-16gb": ["Tesla V100-SXM2-16GB", "NVIDIA Tesla V100-SXM2-16GB"],
    "tesla-v100-sxm2-32gb": ["Tesla V100-SXM2-32GB"],
    "tesla-v100-sxm2-32gb-ls": ["Tesla V100-SXM2-32GB-LS"],
    "tesla-v100-pcie-32gb": ["Tesla V100-PCIE-32GB"],
    "tesla-t4": ["Tesla T4", "NVIDIA Tesla T4", "NVIDIA T4", "T4"],
    "quadro-rtx-6000": ["Quadro RTX 6000", "NVIDIA Quadro RTX 6000"],
    "nvidia-geforce-rtx-4090": ["NVIDIA GeForce RTX 4090", "GeForce RTX 4090", "GeForce RTX™ 4090"],
    "nvidia-geforce-rtx-4090-d": ["NVIDIA GeForce RTX 4090 D", "GeForce RTX 4090 D"],
    "nvidia-geforce-rtx-4090-laptop-gpu": ["NVIDIA GeForce RTX 4090 Laptop GPU"],
    "nvidia-rtx-6000-ada-generation": ["NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"],
    "nvidia-titan-rtx": ["NVIDIA TITAN RTX", "TITAN RTX"],
    "nvidia-b200": ["NVIDIA B200", "B200"],
    "nvidia-gb200": ["NVIDIA GB200", "GB200"],
    "nvidia-graphics-device": ["NVIDIA Graphics Device", "Graphics Device"],
    "amd-instinct-mi300x": ["AMD Instinct MI300X", "Instinct MI300X", "MI300X",
                            "AMD Instinct™ MI300X"],
    "amd-instinct-mi300x-vf": ["AMD Instinct MI300X VF"],
    "amd-instinct-mi300x-oam": ["AMD Instinct MI300X OAM"],
    "amd-instinct-mi250x-mi250": ["AMD Instinct MI250X/MI250", "AMD Instinct MI250X / MI250"],
    "amd-radeon-graphics": ["AMD Radeon Graphics"],
}  # fmt: skip


@pytest.mark.parametrize("product", ONE_PRODUCT)
def test_a_product_has_one_slug_however_its_name_is_spelled(product):
    assert {name: product_slug(name) for name in ONE_PRODUCT[product]} == dict.fromkeys(
        ONE_PRODUCT[product], product
    )


@given(st.sampled_from([name for names in ONE_PRODUCT.values() for name in names]), st.data())
def test_case_spaces_and_trademark_signs_say_nothing(name, data):
    noise = st.sampled_from(["  ", " \u2122 ", "(R) ", "_", " (tm) "])
    noisy = "".join(data.draw(noise) if letter == " " else letter for letter in name)
    assert product_slug(noisy.swapcase()) == product_slug(name)


@given(st.text())
def test_a_slug_is_the_slug_of_itself(name):
    assert product_slug(product_slug(name)) == product_slug(name)


def test_the_slug_of_the_shipped_recording_and_of_what_was_tuned_from_it_stays():
    for path in shipped_recordings():
        assert Recording.load(path).device.slug == "nvidia-h200-sm90-132"


@given(st.text(), st.integers(1, 1000))
def test_any_name_gives_a_slug_that_is_a_file_name_and_no_option(name, multiprocessors):
    slug = gpu(name, "sm_90", multiprocessors).slug
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert slug.endswith(f"-sm90-{multiprocessors}")


def test_a_slice_or_another_chip_is_another_kind_of_gpu():
    kinds = [
        H200,
        replace(H200, multiprocessors=60),
        replace(H200, arch="sm_100"),
        replace(H200, name="NVIDIA H100"),
    ]
    assert len({device.slug for device in kinds}) == len(kinds)


def test_sizes_that_say_nothing_of_the_kind_do_not_change_the_slug():
    # what a driver or a MIG host reports of memory may differ from machine to machine
    assert replace(H200, memory_bytes=1, l2_bytes=1).slug == H200.slug


@pytest.mark.parametrize(
    ("arch", "capability"),
    [("sm_75", 75), ("sm_90", 90), ("sm_90a", 90), ("sm_120", 120), ("gfx942", 0), ("", 0)],
)
def test_capability(arch, capability):
    assert replace(H200, arch=arch).capability == capability


def test_known_devices_are_listed_under_their_own_architecture():
    assert all(info.arch == arch for arch, info in KNOWN_DEVICES.items())
    assert {info.backend for info in KNOWN_DEVICES.values()} == {"cuda", "hip"}
    assert len({info.slug for info in KNOWN_DEVICES.values()}) == len(KNOWN_DEVICES)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def properties(**change):
    return SimpleNamespace(
        **{
            "name": "NVIDIA H200",
            "major": 9,
            "minor": 0,
            "multi_processor_count": 132,
            "shared_memory_per_block_optin": 227 * 1024,
            "L2_cache_size": 60 << 20,
            "total_memory": 141 << 30,
            "warp_size": 32,
            **change,
        }
    )


def test_describe_a_cuda_device(torch, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    assert describe(properties()) == H200


def test_describe_a_rocm_device(torch, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    found = describe(
        properties(
            name="AMD Instinct MI300X",
            gcnArchName="gfx942:sramecc+:xnack-",
            multi_processor_count=304,
            shared_memory_per_block_optin=0,
            L2_cache_size=4 << 20,
            total_memory=192 << 30,
            warp_size=64,
        )
    )
    assert found == KNOWN_DEVICES["gfx942"]


def test_a_shared_memory_limit_torch_does_not_report_is_never_overstated(torch, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    unreported = properties(shared_memory_per_block_optin=None)

    assert describe(unreported).shared_bytes == H200.shared_bytes
    unreported.major, unreported.minor = 8, 7
    assert describe(unreported).shared_bytes == 48 * 1024


def test_no_device_is_one_line_that_says_what_to_do(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="--device replay") as raised:
        detect()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_device_past_those_present_is_an_error_that_counts_them(torch, monkeypatch, index):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=f"no device cuda:{index}: this machine has 2"):
        detect(index)


def test_two_devices_of_one_machine_are_described_apart(torch, monkeypatch):
    present = [properties(), properties(name="NVIDIA H200 MIG 1g.18gb", multi_processor_count=16)]
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", present.__getitem__)

    assert detect(0).slug == "nvidia-h200-sm90-132"
    assert detect(1).slug == "nvidia-h200-mig-1g-18gb-sm90-16"


class FakeNvml(SimpleNamespace):
    """NVML with a driver, or with none where `fails`."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self):
        if self.fails:
            raise self.NVMLError
        self.open = True

    def nvmlSystemGetDriverVersion(self):
        assert self.open
        return "575.57.08"

    def nvmlShutdown(self):
        self.open = False


def test_the_driver_version_is_nvmls_and_nvml_is_closed_again(monkeypatch):
    nvml = FakeNvml(fails=False, open=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    assert driver_version() == "575.57.08"
    assert not nvml.open


@pytest.mark.parametrize("nvml", [None, FakeNvml(fails=True, open=False)], ids=["absent", "fails"])
def test_the_driver_version_is_unknown_where_nvml_cannot_say(monkeypatch, nvml):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert driver_version() == "unknown"


class Driver:
    """A driver with some GPUs, one of which may be divided or somebody else's."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, count, *, divided=(), foreign=()):
        self.count, self.divided, self.foreign, self.open = count, divided, foreign, False

    def nvmlInit(self):
        self.open = True

    def nvmlShutdown(self):
        self.open = False

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        if index in self.foreign:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMigMode(self, handle):
        if handle not in self.divided:
            raise self.NVMLError_NotSupported
        return [1, 1]


@pytest.mark.parametrize(
    ("driver", "visible", "count"),
    [
        (Driver(8), None, 8),
        (Driver(8), "3", 1),
        (Driver(8), "5, 2,0", 3),
        (Driver(2), "GPU-5ab4", None),
        (Driver(2), "", None),
        (Driver(2), "0,7", None),
        (Driver(2), "1,1", None),
        (Driver(0), None, None),
        (Driver(4, divided=(2,)), None, None),
        (Driver(4, foreign=(0,)), None, None),
        (None, None, None),
    ],
)
def test_gpus_are_counted_by_their_driver_where_that_is_plain(monkeypatch, driver, visible, count):
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvidia_gpus() == count
    assert driver is None or not driver.open


@pytest.fixture
def unloaded_torch(monkeypatch, tmp_path):
    """Return what has a torch that is built for some CUDA and not loaded, and so many GPUs."""

    def there_is(cuda, gpus):
        package = tmp_path / "torch"
        package.mkdir()
        (package / "__init__.py").write_text("raise AssertionError('torch was loaded')\n")
        (package / "version.py").write_text(f"cuda = {cuda!r}\n")
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setitem(sys.modules, "pynvml", Driver(gpus))

    return there_is


@pytest.mark.parametrize(("version", "there"), [("13.0", True), (None, False)])
def test_a_gpu_is_expected_where_torch_is_built_for_it(unloaded_torch, version, there):
    """As it is without loading torch: its version file says what it is built for."""
    unloaded_torch(version, 1)
    assert cuda_expected() is there


class FakeCuda:
    """CUDA's driver, of one GPU."""

    def __init__(self, version=13010, fails=None):
        self.version, self.fails = version, fails
        self.attributes = {75: 9, 76: 0, 16: 132, 97: 227 << 10, 38: 60 << 20, 10: 32}

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            assert name == "cuInit" or self.is_up
            return 999 if name == self.fails else getattr(self, f"do_{name}")(*arguments)

        return call

    def do_cuInit(self, flags):
        self.is_up = flags == 0
        return 0

    def do_cuDriverGetVersion(self, found):
        return self.answer(found, self.version)

    def do_cuDeviceGet(self, found, index):
        return self.answer(found, 40 + index) if index == 0 else 101

    def do_cuDeviceGetName(self, found, room, device):
        found.value = b"NVIDIA H200"
        return 0

    def do_cuDeviceTotalMem_v2(self, found, device):
        return self.answer(found, 141 << 30)

    def do_cuDeviceGetUuid(self, found, device):
        return self.answer(found, bytes(range(16)))

    def do_cuDeviceGetAttribute(self, found, attribute, device):
        assert device.value == 40
        return self.answer(found, self.attributes[attribute])

    def answer(self, found, value):
        if isinstance(value, bytes):
            found._obj[:] = value
        else:
            found._obj.value = value
        return 0


@pytest.fixture
def early(monkeypatch, unloaded_torch):
    """Have one GPU and no torch loaded; returns what makes the driver say so."""

    def answers(driver, cuda="13.0", gpus=1):
        unloaded_torch(cuda, gpus)
        monkeypatch.setattr("ctypes.CDLL", lambda name: driver)

    return answers


def test_the_driver_describes_a_gpu_without_torch(early):
    early(FakeCuda())
    assert detect_early(0) == (H200, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")


@pytest.mark.parametrize(
    ("driver", "cuda", "gpus"),
    [
        (FakeCuda(), None, 1),  # torch's build for the CPU alone, or for ROCm
        (FakeCuda(version=12090), "13.0", 1),  # torch would say that the driver is too old
        (FakeCuda(), "13.0", 0),  # NVML does not know
        (FakeCuda(fails="cuInit"), "13.0", 1),
        (FakeCuda(fails="cuDeviceGetUuid"), "13.0", 1),
        (object(), "13.0", 1),  # a library that lacks a function
    ],
)
def test_what_the_driver_cannot_say_is_left_to_torch(early, driver, cuda, gpus):
    early(driver, cuda, gpus)
    assert detect_early(0) is None


def test_without_the_drivers_library_a_gpu_is_left_to_torch(early, monkeypatch):
    early(FakeCuda())

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert detect_early(0) is None


@pytest.mark.gpu
def test_the_driver_describes_a_gpu_as_torch_does(torch):
    assert detect_early(0) in (None, (detect(0), gpu_uuid(0)))
    assert nvidia_gpus() is None or detect_early(0) is not None


@pytest.mark.gpu
def test_the_driver_counts_as_many_gpus_as_torch(torch):
    assert nvidia_gpus() in (None, torch.cuda.device_count())


@pytest.mark.gpu
def test_the_gpu_present_is_described_as_torch_sees_it(torch):
    seen, found = torch.cuda.get_device_properties(0), detect(0)

    assert found.name == seen.name
    assert found.multiprocessors == seen.multi_processor_count
    assert found.shared_bytes >= 48 * 1024
    assert isinstance(found, DeviceInfo)
    assert driver_version()
