"""Which file system a path is on, as far as it matters to SQLite."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")

_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\w*|lustre|gpfs|beegfs\w*|fhgfs|ceph|glusterfs|afs|panfs|pvfs2|orangefs|wekafs"
    r"|ocfs2|gfs2|fuse\.(sshfs|glusterfs|ceph\S*|juicefs|gcsfuse|s3fs|rclone|beegfs\S*|mount-s3))"
)


def network_type(path: Path) -> str | None:
    """Return the type of the network file system that a path is on, or None for any other."""
    kind = file_system(path)
    return kind if kind is not None and _NETWORK.fullmatch(kind) else None


def file_system(path: Path) -> str | None:
    """Return the type of the file system that a path is on or would be on, if Linux says it."""
    try:
        real = path.resolve()
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError):  # no such file here, or a loop of links
        return None
    kind, longest = None, -1
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = Path(_unescaped(fields[1]))
        # Of two mounts at one place the later hides the earlier.
        if (mount == real or mount in real.parents) and len(mount.parts) >= longest:
            kind, longest = fields[2], len(mount.parts)
    return kind


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), field)
