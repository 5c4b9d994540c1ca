"""Network file systems are known from the table of mounts, and said to be unsafe to write on."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tunekit.cache import Store, filesystem
from tunekit.cache.filesystem import file_system, network_type


@pytest.fixture
def mounts(monkeypatch, tmp_path):
    """Return what makes a table of mounts the one that is read."""

    def write(*lines):
        table = tmp_path / "mounts"
        table.write_text("".join(f"{line} rw 0 0\n" for line in lines))
        monkeypatch.setattr(filesystem, "MOUNTS", table)

    return write


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "lustre", "cifs", "smb3", "gpfs", "beegfs", "ceph", "fuse.sshfs"]
)
def test_a_network_file_system_is_one(mounts, kind):
    mounts("/dev/sda / ext4", f"server:/home /home {kind}")
    assert network_type(Path("/home/me/tunekit.db")) == kind
    assert network_type(Path("/homely/tunekit.db")) is None


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "9p", "virtiofs"])
def test_a_local_one_is_none(mounts, kind):
    mounts(f"/dev/sda / {kind}")
    assert network_type(Path("/home/me/tunekit.db")) is None


def test_the_innermost_and_latest_mount_counts(mounts):
    mounts(
        "a / ext4", "b /data nfs4", "c /data/fast xfs", "d /over ext4", "e /over nfs",
        r"f /a\040b lustre",
    )  # fmt: skip
    assert file_system(Path("/data/x")) == "nfs4"
    assert file_system(Path("/data/fast/x")) == "xfs"
    assert file_system(Path("/over/x")) == "nfs"
    assert file_system(Path("/a b/x")) == "lustre"


def test_a_link_is_followed_to_where_the_file_is(mounts, tmp_path):
    mounts("a / ext4", f"b {tmp_path.resolve()}/net nfs4")
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "net")
    assert network_type(tmp_path / "link" / "tunekit.db") == "nfs4"


def test_where_there_is_no_such_table_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "none")
    assert file_system(Path("/")) is None


def test_the_table_of_this_machine_can_be_read():
    assert file_system(Path("/")) is not None


def test_a_cache_on_a_network_file_system_is_one_warning_with_the_way_out(
    mounts, tmp_path, make, caplog
):
    mounts("a / ext4", f"b {tmp_path.resolve()} nfs4")
    path = tmp_path / "tunekit.db"
    with Store.open(path) as store:
        store.put_device(make.device)
        store.put_best(make.best())
    (message,) = (record.getMessage() for record in caplog.records)
    assert "network file system (nfs4)" in message
    assert "local disk" in message
    assert "postgresql://" in message
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
    caplog.clear()
    assert len(Store.open(path, create=False).bests()) == 1  # reading harms nothing
    assert caplog.records == []


READ = """
import sys
from tunekit.cache import Store
from tunekit.errors import StoreError
store = Store.open(sys.argv[1])
print(len(store.bests()))
try:
    store.put_best(store.bests()[0], force=True)
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize("asset", ["schema-0001.db", "schema-0002.db"])
def test_a_file_on_a_read_only_mount_is_read_whatever_its_mode_says(tmp_path, asset):
    folder = tmp_path / "mounted"
    folder.mkdir()
    path = Path(shutil.copy(Path(__file__).parent / "assets" / asset, folder / "tunekit.db"))
    path.chmod(0o644)
    mounting = 'mount --bind -o ro "$1" "$1" && mount -o remount,bind,ro "$1"'
    try:
        mounted = subprocess.run(["unshare", "-m", "sh", "-c", mounting, "sh", folder])
    except FileNotFoundError:
        pytest.skip("there is no `unshare` here")
    if mounted.returncode:
        pytest.skip("this user may not mount")
    command = ["unshare", "-m", "sh", "-c", f'{mounting} && "$2" -c "$3" "$1/tunekit.db"', "sh"]
    done = subprocess.run(
        [*command, folder, sys.executable, READ], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, refusal = done.stdout.splitlines()
    assert count == "6"
    assert "cannot write" in refusal
    assert "read-only" in refusal or "not writable" in refusal
    assert list(folder.iterdir()) == [path]
