"""Where a row's place is taken, the policy decides, and a dry run says what it will do."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tunekit.cache import Policy, Store, export_json, import_json
from tunekit.errors import ExchangeError, StoreError
from tunekit.trial import Choice, Origin


def anything_goes(config, problem, device):
    return None


@pytest.fixture
def full(tmp_path, make):
    return make.filled(tmp_path / "full.db")


@pytest.fixture
def empty(tmp_path):
    return Store.open(tmp_path / "empty.db")


def everything(store: Store) -> str:
    """Return all that a store holds, and which of it was imported."""
    shown = [(b.key, b.provenance, b.imported_replay) for b in store.bests()]
    try:
        return export_json(store, all_trials=True) + str(shown)
    except StoreError:  # nothing
        return ""


@pytest.fixture
def imported(tmp_path, make):
    """Import a file with the given bests into a store that has others, dry first and then truly."""
    numbers = itertools.count()

    def run(target, bests, *, policy, trials=(), all_trials=False):
        with Store.open(tmp_path / f"source-{next(numbers)}.db") as source:
            source.put_device(make.device)
            for best in bests:
                source.put_best(best, force=True)
            source.add_trials(make.key(), trials)
            text = export_json(source, all_trials=all_trials or bool(trials))
        before = everything(target)
        dry = import_json(target, text, policy=policy, legality=anything_goes, dry_run=True)
        assert everything(target) == before
        report = import_json(target, text, policy=policy, legality=anything_goes)
        assert dry == report
        return report

    return run


OLD, NEW = "2024-01-01T00:00:00Z", "2026-01-01T00:00:00Z"
STORED = [*itertools.product(["local", "imported"], [Origin.MEASURED, Origin.REPLAYED])]
FILES = [*itertools.product([Origin.MEASURED, Origin.REPLAYED], [9.0, 11.0], [OLD, NEW])]


def takes(policy: Policy, stored: Origin, file: Origin, *, faster: bool, newer: bool) -> bool:
    """Say what the page on the exchange says: docs/exchange.md, under conflicts."""
    if policy in (Policy.KEEP, Policy.FAIL):
        return False
    if policy is Policy.REPLACE:
        return True
    if (stored, file) == (Origin.MEASURED, Origin.REPLAYED):
        return False
    if policy is Policy.NEWER:
        return newer
    return faster or stored is not file


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize(("whose", "stored"), STORED)
def test_every_policy_for_every_origin(store, make, imported, policy, whose, stored):
    """The rows of the store are of 2025 and take 10 us; the file's have another config."""
    ours, theirs = [], []
    for number, (origin, median_us, created_at) in enumerate(FILES):
        key = make.key(m=100 + number)
        ours.append(make.best(10.0, key=key, provenance=make.provenance(origin=stored)))
        provenance = make.provenance(origin=origin, created_at=created_at)
        config = make.config(num_warps=8)
        theirs.append(make.best(median_us, key=key, config=config, provenance=provenance))
    if whose == "imported":
        imported(store, ours, policy=Policy.KEEP)
    else:
        for best in ours:
            store.put_best(best)
    before = store.bests()
    if policy is Policy.FAIL:
        for best in theirs:
            with pytest.raises(ExchangeError, match="nothing was imported"):
                imported(store, [best], policy=policy)
        assert store.bests() == before
        return
    taken = [
        takes(policy, stored, origin, faster=median_us < 10.0, newer=created_at == NEW)
        for origin, median_us, created_at in FILES
    ]
    report = imported(store, theirs, policy=policy)
    assert (report.added, report.replaced, report.kept) == (0, sum(taken), 8 - sum(taken))
    for after, old, new, gone in zip(store.bests(), before, theirs, taken, strict=True):
        if gone:
            assert (after.config, after.measurement) == (new.config, new.measurement)
            assert after.provenance.origin is Origin.IMPORTED
        else:
            assert after == old


@pytest.mark.parametrize("policy", [p for p in Policy if p is not Policy.FAIL])
def test_trials_go_by_the_same_rule(store, make, imported, policy):
    ours = make.trial(10.0)
    store.add_trials(make.key(), [(ours, make.provenance())])
    replayed = make.provenance(origin=Origin.REPLAYED, created_at=NEW)
    report = imported(store, [], policy=policy, trials=[(make.trial(1.0), replayed)])
    assert report.replaced == int(policy is Policy.REPLACE)
    failed = make.trial(None)
    report = imported(store, [], policy=policy, trials=[(failed, make.provenance(created_at=NEW))])
    taken = policy in (Policy.REPLACE, Policy.NEWER)
    assert report.replaced == int(taken)
    ((trial, _),) = store.trials(make.key())
    assert (trial == failed) is taken


@pytest.mark.parametrize(
    ("policy", "counts", "median_us"),
    [
        (Policy.KEEP, (6, 0, 1), 4.0),
        (Policy.FASTER, (6, 0, 1), 4.0),
        (Policy.NEWER, (6, 1, 0), 51.2),
        (Policy.REPLACE, (6, 1, 0), 51.2),
    ],
)
def test_a_taken_place_is_decided_by_the_policy(full, empty, make, policy, counts, median_us):
    """A dry run counts the same and changes nothing; rows the file does not name stay."""
    empty.put_device(make.device)
    older = make.provenance(created_at="2024-01-01T00:00:00Z")
    untouched = make.best(key=make.key(m=7))
    empty.put_best(make.best(4.0, provenance=older))
    empty.put_best(untouched)
    before = everything(empty)
    text = export_json(full)
    for dry_run in (True, False):
        report = import_json(empty, text, policy=policy, legality=anything_goes, dry_run=dry_run)
        assert (report.added, report.replaced, report.kept) == counts
        if dry_run:
            assert everything(empty) == before
            dry = report
    assert dry == report
    assert empty.best(make.key())[0].measurement.median_us == median_us
    assert untouched in empty.bests()
    again = import_json(empty, text, policy=policy, legality=anything_goes)
    assert (again.added, again.replaced) == (0, 0)


def test_the_fail_policy_refuses_a_file_that_differs(full, empty, make):
    text = export_json(full, all_trials=True)
    import_json(empty, text, legality=anything_goes)
    same = import_json(empty, text, policy=Policy.FAIL, legality=anything_goes)
    assert same.kept == 14
    empty.put_best(make.best(1.0, key=make.key(m=256)))
    before = everything(empty)
    with pytest.raises(ExchangeError, match=r"row \d+ \(256x1024x256 .* nothing was imported"):
        import_json(empty, text, policy=Policy.FAIL, legality=anything_goes)
    assert everything(empty) == before


def test_a_vendor_measurement_that_a_best_stands_on_is_not_changed_alone(store, make, imported):
    """A best of a later environment leaves one behind, which the file holds on its own."""
    ours = make.best(10.0)
    store.put_best(ours)
    earlier = make.best(10.0, vendor=make.vendor(13.0))
    later = make.provenance(driver="580.2")
    theirs = replace(make.best(9.0, provenance=later), key=make.key(m=7))
    old = replace(earlier, key=make.key(m=7))
    report = imported(store, [old, theirs], policy=Policy.REPLACE)
    assert report.added == 2
    clash = [earlier, make.best(11.0, provenance=later)]
    with pytest.raises(ExchangeError, match="differs"):
        imported(store, clash[1:], policy=Policy.FAIL)
    report = imported(store, clash, policy=Policy.KEEP)
    assert (report.replaced, report.kept) == (0, 2)
    assert store.best(make.key()) == [ours]


def test_a_dry_run_counts_right_where_a_best_leaves_its_vendor_measurement(store, make, imported):
    store.put_best(make.best(10.0))
    earlier = make.best(10.0, vendor=make.vendor(13.0))
    later = make.best(9.0, provenance=make.provenance(driver="580.2"))
    report = imported(store, [earlier, later], policy=Policy.REPLACE)
    assert (report.added, report.replaced, report.kept) == (0, 2, 0)
    again = imported(store, [earlier, later], policy=Policy.REPLACE)
    assert (again.added, again.replaced, again.kept) == (0, 0, 2)


@pytest.mark.parametrize("section", ["best", "baseline", "trial"])
def test_one_conflict_anywhere_fails_the_whole_file(store, make, imported, section):
    rows = {"bests": [make.best(key=make.key(m=7))], "trials": []}
    if section == "best":
        store.put_best(make.best(10.0))
        rows["bests"].append(make.best(11.0))
    elif section == "baseline":
        store.put_best(make.best(10.0))
        later = make.provenance(driver="580.2")
        store.put_best(make.best(9.0, provenance=later))
        same = make.best(9.0, provenance=later)
        rows["bests"] += [make.best(10.0, vendor=make.vendor(13.0)), same]
    else:
        store.add_trials(make.key(), [(make.trial(10.0), make.provenance())])
        rows["trials"] = [
            (make.trial(10.0, num_warps=8), make.provenance()),
            (make.trial(11.0), make.provenance()),
        ]
    before = everything(store)
    for dry_run in (True, False):
        with pytest.raises(ExchangeError, match=r"row \d+ \(.*nothing was imported"):
            imported(store, rows["bests"], policy=Policy.FAIL, trials=rows["trials"])
        assert everything(store) == before, dry_run


def test_what_was_measured_here_stays_by_default_whatever_a_file_says(store, make, imported):
    ours = make.best(10.0)
    store.put_best(ours)
    theirs = make.best(1.0, choice=Choice.VENDOR, vendor=make.vendor(0.5))
    assert imported(store, [theirs], policy=Policy.KEEP).kept == 1
    assert store.bests() == [ours]


@pytest.mark.parametrize("field", ["protocol", "tunekit", "triton", "torch", "driver"])
def test_only_a_version_that_differs_is_the_same_row(store, make, imported, field):
    """Which versions a row was made with says where it comes from, not what it is a row of."""
    store.put_best(make.best(10.0))
    theirs = make.best(9.0, provenance=make.provenance(**{field: "9.9"}))
    assert imported(store, [theirs], policy=Policy.KEEP).kept == 1
    assert imported(store, [theirs], policy=Policy.FASTER).replaced == 1
    (best,) = store.best(make.key())
    assert getattr(best.provenance, field) == "9.9"


def test_a_row_of_another_compiler_is_another_row(store, make, imported):
    """It stands beside the one made here, and a lookup that grades them chooses between."""
    ours = make.best(10.0)
    store.put_best(ours)
    theirs = make.best(1.0, provenance=make.provenance(compiler="triton-3.6+other"))
    for policy in (Policy.FAIL, Policy.REPLACE):
        imported(store, [theirs], policy=policy)
    rows = {best.provenance.fingerprint.compiler: best for best in store.best(make.key())}
    assert rows["triton-3.9"] == ours
    assert rows["triton-3.6+other"].measurement.median_us == 1.0


def test_a_card_of_another_name_is_another_key(store, make, tmp_path):
    twin = replace(make.device, name="NVIDIA H200 NVL")
    ours, theirs = make.best(10.0), make.best(1.0, key=make.key(gpu=twin.slug))
    store.put_best(ours)
    with Store.open(tmp_path / "twin.db") as source:
        source.put_device(twin)
        source.put_best(theirs)
        text = export_json(source)
    report = import_json(store, text, policy=Policy.FAIL, legality=anything_goes)
    assert report.added == 1
    assert store.best(make.key()) == [ours]
    assert {device.slug for device in store.devices()} == {make.device.slug, twin.slug}
