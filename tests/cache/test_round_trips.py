"""Any key, config and measurement comes back the same, from the store and from a file."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunekit.cache import Store, export_json, import_json
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES, DeviceInfo
from tunekit.key import ITEMSIZE, LAYOUTS, MAX_SIZE, PRECISIONS, SCALINGS, TuningKey
from tunekit.trial import (
    Best,
    Choice,
    Distance,
    Fingerprint,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
)

sizes = st.integers(1, MAX_SIZE - 1)
names = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)
devices = st.builds(
    replace,
    st.sampled_from(list(KNOWN_DEVICES.values())),
    name=st.sampled_from(["NVIDIA H200", "Orin (nvgpu)", "A/B rev. 2", "卡 100"]),
)


@st.composite
def keys(draw: st.DrawFn, device: DeviceInfo) -> TuningKey:
    dtype = draw(st.sampled_from(list(ITEMSIZE)))
    return TuningKey(
        family=draw(st.sampled_from(["matmul", "other"])),
        m=draw(sizes),
        n=draw(sizes),
        k=draw(sizes),
        dtype=dtype,
        gpu=device.slug,
        out_dtype=draw(st.sampled_from(["", *ITEMSIZE])),
        precision=draw(st.sampled_from(PRECISIONS)) if dtype == "float32" else "ieee",
        layout=draw(st.sampled_from(LAYOUTS)),
        aligned=draw(st.booleans()),
        scaling=draw(st.sampled_from(SCALINGS)),
        batch=draw(sizes),
    )


fields = st.integers(1, 1 << 20)
configs = st.builds(
    Config,
    variant=names.filter(bool),
    block_m=fields,
    block_n=fields,
    block_k=fields,
    group_size=fields,
    split_k=fields,
    num_warps=fields,
    num_stages=fields,
    switches=st.dictionaries(names, st.integers(-9, 9), max_size=3).map(
        lambda switches: tuple(sorted(switches.items()))
    ),
)
times = st.floats(1e-3, 1e12)


@st.composite
def measurements(draw: st.DrawFn, ratios: st.SearchStrategy) -> Measurement:
    low, median, high = sorted(draw(times) for _ in range(3))
    p20, p80 = sorted(draw(times) for _ in range(2))
    ratio = draw(ratios)
    marks = draw(st.booleans()), draw(st.booleans())
    repetitions = draw(st.integers(1, 1 << 40))
    return Measurement(median, low, high, p20, p80, low, repetitions, draw(names), ratio, *marks)


distances = st.lists(st.floats(0, 1e9), min_size=2, max_size=2).map(
    lambda parts: Distance(*sorted(parts))
)
provenances = st.builds(
    Provenance,
    fingerprint=st.builds(Fingerprint, names, names),
    protocol=names,
    tunekit=names,
    triton=names,
    torch=names,
    driver=names,
    device_name=names,
    created_at=st.datetimes().map(lambda date: date.isoformat(timespec="seconds") + "Z"),
    origin=st.sampled_from([Origin.MEASURED, Origin.REPLAYED]),
)


@st.composite
def bests(draw: st.DrawFn, device: DeviceInfo) -> Best:
    measurement = draw(measurements(st.floats(0, 1)))
    vendor = draw(st.none() | measurements(st.none()))
    slower = vendor is not None and vendor.high_us < measurement.low_us
    return Best(
        key=draw(keys(device)),
        choice=Choice.VENDOR if slower else Choice.TRITON,
        config=draw(configs),
        measurement=measurement,
        vendor=vendor,
        trials=draw(st.integers(0, 1 << 20)),
        space_size=draw(st.integers(0, 1 << 40)),
        provenance=draw(provenances),
        count=draw(st.integers(1, 1 << 40)),
        distance=draw(st.none() | distances),
    )


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    status = draw(st.sampled_from(Status))
    if status is Status.OK:
        return Trial(draw(configs), status, draw(measurements(st.none() | st.floats(0, 1))))
    return Trial(draw(configs), status, None, draw(st.none() | names))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("stores")
    return (folder / f"{number}.db" for number in itertools.count())


@settings(max_examples=25)
@given(data=st.data(), device=devices)
def test_every_best_and_trial_comes_back_equal(paths, data, device):
    best = data.draw(bests(device))
    tried = data.draw(st.lists(st.tuples(trials(), provenances), max_size=4))
    apart = {
        (t.config, replace(p, created_at="", origin=Origin.MEASURED)): (t, p) for t, p in tried
    }
    with Store.open(next(paths)) as store:
        store.put_device(device)
        store.put_best(best)
        store.add_trials(best.key, apart.values())
        with Store.open(store.location) as again:
            assert again.best(best.key) == [best]
            assert again.trials(best.key) == list(apart.values())
            assert again.devices() == [device]


@settings(max_examples=15)
@given(data=st.data(), pair=st.lists(devices, min_size=1, max_size=2, unique_by=lambda d: d.slug))
def test_export_import_export_is_the_same_text(paths, data, pair):
    with Store.open(next(paths)) as first, Store.open(next(paths)) as second:
        for device in pair:
            first.put_device(device)
            for best in data.draw(st.lists(bests(device), min_size=1, max_size=3)):
                first.put_best(best)
                tried = data.draw(st.lists(st.tuples(trials(), provenances), max_size=3))
                first.add_trials(best.key, tried)
        text = export_json(first, all_trials=True)
        report = import_json(second, text, legality=lambda *_: None)
        assert report.refused == []
        assert export_json(second, all_trials=True) == text
        assert export_json(second) == export_json(first)
        assert json.loads(text)["format"] == "tunekit-cache"


def test_a_key_is_found_from_other_kinds_of_the_same_values_and_by_a_fresh_process(store, make):
    store.put_best(make.best(key=make.key(dtype="bf16")))
    assert store.best(make.key(dtype="torch.bfloat16")) == [make.best()]
    question = (
        "from tunekit.cache import Store\n"
        "from tunekit.key import TuningKey\n"
        f"key = TuningKey(**{make.key().to_dict()!r})\n"
        f"print(Store.open({store.location!r}, create=False).best(key)[0].config)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", question], capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stdout.strip() == str(make.best().config)
