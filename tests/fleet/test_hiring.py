"""Which workers a host has, and how many compilers each."""

from __future__ import annotations

import pytest

from tunekit.fleet import hiring
from tunekit.key import Problem


@pytest.fixture
def posts(monkeypatch):
    """Return a function that gives the posts of a host with so many GPUs and cores."""

    def made(gpus, cores, workers=None, problems=()):
        monkeypatch.setattr(hiring, "gpu_count", lambda: gpus)
        monkeypatch.setattr(hiring, "cores", lambda: cores)
        return hiring._posts_on_gpus(lambda device: None, "cache.db", workers, 0, problems)

    return made


@pytest.mark.parametrize(
    ("gpus", "cores", "each"), [(1, 16, 16), (2, 32, 16), (8, 128, 16), (8, 4, 1), (2, 1, 1)]
)
def test_every_gpu_has_a_worker_and_its_share_of_the_cores(posts, gpus, cores, each):
    found = posts(gpus, cores)
    assert [post.device for post in found] == [f"cuda:{i}" for i in range(gpus)]
    assert {post.compilers for post in found} == {each}


def test_workers_say_spaces_without_being_asked_each_its_share(posts):
    problems = [Problem("matmul", m, 64, 64, "float16") for m in range(1, 6)]
    shares = [post.problems for post in posts(2, 32, problems=problems)]
    assert shares == [tuple(problems[0::2]), tuple(problems[1::2])]


def test_fewer_workers_have_more_compilers_and_more_than_there_are_gpus_is_told(posts, caplog):
    assert [post.compilers for post in posts(8, 128, workers=2)] == [64, 64]
    assert not caplog.records
    assert len(posts(2, 16, workers=5)) == 2
    assert "5 workers were asked for and there are 2 GPUs" in caplog.text
