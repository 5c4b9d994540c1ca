"""Where the cache is when nobody says."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://me:hunter2@host/db",
        "postgresql://me:hunter2@hunter2@host/db",
        "postgresql://me:a/hunter2?b@host/db",
        "postgresql://host/db?password=hunter2&sslpassword=hunter2&options=-c",
        "postgresql+psycopg://me:hunter2@host:1/db?PASSWORD=hunter2",
    ],
)
def test_no_password_of_a_url_is_shown(place):
    shown = location.shown_location(place)
    assert "hunter2" not in shown
    assert "***" in shown
    assert "host" in shown
    assert "db" in shown


def test_what_has_no_password_is_shown_as_it_is():
    for place in ("/a@b:c@d.db", "postgresql://me@host:1/db?sslmode=require", "sqlite:////x.db"):
        assert location.shown_location(place) == place


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


@pytest.mark.parametrize("planted", ["folder", "file", "link"])
@pytest.mark.parametrize("is_root", [True, False])
def test_a_default_cache_of_another_user_is_not_trusted_unless_that_is_root(
    monkeypatch, tmp_path, make, planted, is_root
):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".cache/tunekit/tunekit.db"
    if planted == "link":
        make.filled(tmp_path / "real.db").close()
        path.parent.mkdir(parents=True)
        path.symlink_to(tmp_path / "real.db")
    else:
        make.filled(path).close()
    theirs = path.parent if planted == "folder" else path
    look = Path.lstat if planted == "link" else Path.stat

    def owned_by_another(self, **options):
        found = look(self, **options)
        if self != theirs:
            return found
        return os.stat_result([*found[:4], 0 if is_root else 4242, *found[5:10]])

    monkeypatch.setattr(Path, "lstat" if planted == "link" else "stat", owned_by_another)
    if is_root:
        assert default_location() == str(path)
        return
    with pytest.raises(StoreError, match="belongs to another user") as raised:
        Store.open()
    assert f"{theirs} belongs" in str(raised.value)
    assert "set TUNEKIT_CACHE" in str(raised.value)
    monkeypatch.setenv("TUNEKIT_CACHE", str(path))
    assert len(Store.open().bests()) == 6


def test_two_users_without_a_home_have_folders_of_their_own(open_folder, monkeypatch, make):
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    monkeypatch.setenv("HOME", "/nowhere")

    def use_as(user):
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            with Store.open() as store:
                store.put_device(make.device)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    use_as(12345)
    use_as(12346)
    folders = sorted(open_folder.iterdir())
    assert [folder.name for folder in folders] == ["tunekit-12345", "tunekit-12346"]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    assert [folder.stat().st_uid for folder in folders] == [12345, 12346]
