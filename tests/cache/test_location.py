"""Where the cache is when nobody says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tunekit.cache import Store, default_location, location
from tunekit.errors import StoreError


@pytest.fixture(autouse=True)
def no_named_cache(monkeypatch, open_folder):
    monkeypatch.delenv("TUNEKIT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))


def test_the_variable_wins_if_it_says_anything(monkeypatch):
    monkeypatch.setenv("TUNEKIT_CACHE", "postgresql://host/db")
    assert default_location() == "postgresql://host/db"
    monkeypatch.setenv("TUNEKIT_CACHE", "  ")
    assert default_location().endswith("tunekit.db")


def test_the_users_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_location() == str(tmp_path / ".cache/tunekit/tunekit.db")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_location() == str(tmp_path / "xdg/tunekit/tunekit.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/", None, "/proc/no-such-home"])
def test_without_a_usable_home_the_cache_is_in_a_folder_of_the_users_own(
    monkeypatch, as_plain_user, open_folder, make, home, caplog
):
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)

    def use():
        store = Store.open()
        store.put_device(make.device)
        folder = Path(store.location).parent
        return str(folder), folder.stat().st_mode & 0o777, len(caplog.records)

    folder, mode, warnings = as_plain_user(use)
    assert folder.startswith(f"{open_folder}/tunekit-")
    assert (mode, warnings) == (0o700, 1)


def test_a_cache_that_is_there_is_used_though_its_folder_cannot_be_written(
    monkeypatch, as_plain_user, open_folder, make
):
    monkeypatch.setenv("HOME", str(open_folder / "home"))
    path = open_folder / "home/.cache/tunekit/tunekit.db"
    make.filled(path).close()
    for folder in (path, *path.parents[:3]):
        folder.chmod(0o555)
    assert as_plain_user(lambda: len(Store.open(create=False).bests())) == 6


@pytest.mark.parametrize("planted", ["folder", "link"])
def test_a_fallback_folder_of_another_user_is_not_trusted(
    monkeypatch, as_plain_user, open_folder, planted
):
    monkeypatch.setenv("HOME", "/")

    def use():
        import os

        place = open_folder / f"tunekit-{os.getuid()}"
        if planted == "link":
            place.symlink_to("/tmp")
        else:
            place.mkdir()
            place.chmod(0o777)
        with pytest.raises(StoreError, match="trusted") as raised:
            default_location()
        return str(raised.value)

    assert "TUNEKIT_CACHE" in as_plain_user(use)


@pytest.mark.parametrize("missing", ["home", "temporary folder"])
def test_a_user_without_a_home_gets_the_fallback_or_one_error(monkeypatch, missing, caplog):
    def no_home(*names, **options):
        raise RuntimeError("could not determine the home directory")

    def no_folder():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(location, "user_cache_path", no_home)
    if missing == "home":
        assert "/tunekit-" in default_location()
        assert len(caplog.records) == 1
    else:
        monkeypatch.setattr(tempfile, "gettempdir", no_folder)
        with pytest.raises(StoreError, match="set TUNEKIT_CACHE"):
            Store.open()


def test_a_home_that_may_not_be_searched_is_passed_over(monkeypatch, as_plain_user, open_folder):
    locked = open_folder / "locked"
    locked.mkdir(mode=0o700)
    locked.chmod(0o000)
    monkeypatch.setenv("HOME", str(locked / "home"))
    assert as_plain_user(default_location).startswith(f"{open_folder}/tunekit-")
    locked.chmod(0o700)
