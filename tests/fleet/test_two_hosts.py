"""Two hosts, one store, one Ray cluster, and a link between them that is cut.

The hosts are network namespaces with names of their own. What cannot be told apart this way is
their processes and files, which nothing here relies on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tunekit.cache import Store

SUBNET = "10.213.7"
TRIALS, TRIAL_S = 64, 0.25
NOBODY = 65534


class Host:
    """A namespace: what runs in it sees its own link alone, and its own host name."""

    def __init__(self, name, number):
        self.name, self.address = name, f"{SUBNET}.{number}"
        self.running = []

    def command(self, *words):
        script = f'hostname {self.name}; exec "$@"'
        inside = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", script, "sh"]
        return [*inside, *map(str, words)]

    def start(self, *words, **settings):
        process = subprocess.Popen(self.command(*words), start_new_session=True, **settings)
        self.running.append(process)
        return process

    def link(self, state):
        ip("-n", self.name, "link", "set", "eth", state)

    def close(self):
        pids = subprocess.check_output(["ip", "netns", "pids", self.name], text=True).split()
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        for process in self.running:
            process.wait(30)
        ip("netns", "del", self.name)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Two hosts that are linked, or skip."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    made = []
    try:
        for number, side in enumerate("ab", 1):
            name = f"tk{os.getpid()}{side}"
            ip("netns", "add", name)
            made.append(Host(name, number))
        one, two = made
        ends = ("eth", "netns", one.name, "type", "veth", "peer", "eth", "netns", two.name)
        ip("link", "add", *ends)
        for host in made:
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth")
            ip("-n", host.name, "link", "set", "lo", "up")
            host.link("up")
    except subprocess.CalledProcessError as error:
        for host in made:
            host.close()
        pytest.skip(f"no network namespaces can be made here: {error.stderr.strip()}")
    yield made
    for host in made:
        host.close()


@pytest.fixture
def database(hosts, tmp_path, request):
    """A PostgreSQL server on the first host; gives the URL that both reach it by."""
    pytest.importorskip("psycopg", reason="no PostgreSQL driver: install tunekit-triton[postgres]")
    programs = request.getfixturevalue("postgres_programs")
    folder = Path("/tmp") / f"tk{os.getpid()}-pg"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
    command = [programs / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust"]
    subprocess.run([*command, "--no-sync"], check=True, capture_output=True, **user)
    with (folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {SUBNET}.0/24 trust\n")
    first = hosts[0]
    asked = [programs / "postgres", "-D", folder / "data", "-k", folder]
    asked += ["-c", f"listen_addresses={first.address}", "-c", "fsync=off"]
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with (folder / "log").open("w") as log:
        server = first.start(*as_nobody, *asked, stdout=log, stderr=log, cwd="/")
    yield f"postgresql://postgres@{first.address}/postgres?host={first.address}", folder
    server.send_signal(signal.SIGINT)  # ends it at once, with whoever is connected
    server.wait(60)
    shutil.rmtree(folder)


@pytest.fixture
def cluster(hosts, tmp_path):
    """A Ray head on the first host, and a node on the second that comes back when it is lost."""
    pytest.importorskip("ray", reason="no Ray: install tunekit-triton[ray]")
    paths = [str(Path(__file__).parents[2] / "scripts"), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_USAGE_STATS_ENABLED": "0",
        # A host that says nothing is given up after seconds, not half a minute.
        "RAY_health_check_initial_delay_ms": "2000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "4",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    }
    one, two = hosts
    ray = Path(sys.executable).with_name("ray")
    plain = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000", "--block"]
    head = f"{one.address}:6379"
    settings = {"env": environ, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    one.start(
        ray, "start", "--head", f"--node-ip-address={one.address}", "--port=6379",
        "--include-dashboard=false", *plain, **settings,
    )  # fmt: skip
    node = f'"{ray}" start --address={head} --node-ip-address={two.address}'
    again = f"while sleep 1; do {node} $*; done"
    two.start("sh", "-c", again, "sh", *plain, **settings)
    return head, environ


def leader_on(host, slow, head, environ, place, recording, log):
    asked = slow.command(f"ray:{head}", 2, place, recording, TRIALS, TRIAL_S, log)
    return host.start(
        *asked, env=environ, stdout=subprocess.PIPE, stderr=(log.parent / "errors").open("w")
    )


def hosts_of(place, folder):
    with Store.open(f"postgresql://postgres@/postgres?host={folder}") as store:
        return {lease.holder.host.split()[0] for lease in store.leases().values()}


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_two_hosts_share_a_run_and_a_cut_link_heals(
    hosts, database, cluster, slow, recording, tmp_path
):
    place, folder = database
    (head, environ), log = cluster, tmp_path / "log"
    one, two = hosts
    leader = leader_on(one, slow, head, environ, place, recording, log)

    def working():
        return hosts_of(place, folder)

    wait_for(lambda: leader.poll() is not None or log.exists(), 60, "nothing was tried")
    wait_for(lambda: working() == {one.name, two.name}, 60, "one host alone has keys")
    two.link("down")
    wait_for(lambda: working() == {one.name}, 90, "the lost host's keys are with nobody else")
    two.link("up")
    wait_for(lambda: working() == {one.name, two.name}, 60, "the host has not come back to work")
    out, _ = leader.communicate(timeout=200)
    assert leader.returncode == 0, (tmp_path / "errors").read_text()
    assert out.decode().splitlines()[-1] == "bests 4"
    with Store.open(f"postgresql://postgres@/postgres?host={folder}") as store:
        assert store.leases() == {}
        assert sum(store.tried().values()) == TRIALS * 4
        assert len(store.bests()) == 4
