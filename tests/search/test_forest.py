"""Trees as plain arrays: what they say is what scikit-learn's own would."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.tree import ExtraTreeRegressor

from tunekit.search.forest import Trees


def grown(seed, count, rows=300, width=9):
    random = np.random.default_rng(seed)
    x = random.integers(0, 6, size=(rows, width)).astype(np.float32)  # with ties, as configs have
    y = random.normal(size=rows)
    trees = []
    for i in range(count):
        tree = ExtraTreeRegressor(min_samples_leaf=2, max_features=0.5, random_state=seed + i)
        trees.append(tree.fit(x, y if i else np.zeros(rows)))  # one is a single leaf
    return trees, x


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 7])
def test_arrays_say_what_the_trees_say_to_the_bit(seed, count):
    trees, x = grown(seed, count)
    assert trees[0].tree_.node_count == 1
    plain = Trees(trees)
    assert len(plain) == count
    other = np.random.default_rng(seed).normal(3, 3, size=(77, x.shape[1])).astype(np.float32)
    for rows in (x, other, other[:1], other[:0]):
        expected = np.array([tree.tree_.predict(rows)[:, 0] for tree in trees])
        assert np.array_equal(plain.predict(rows, np.arange(count)), expected)
        some = np.arange(0, count, 2)
        assert np.array_equal(plain.predict(rows, some), expected[some])


AGAIN = """
import pickle, sys
import numpy as np
trees, rows = pickle.load(sys.stdin.buffer)
found = trees.predict(rows, np.arange(len(trees)))
assert not any(name.startswith("sklearn") for name in sys.modules)
sys.stdout.buffer.write(pickle.dumps(found))
"""


def test_another_process_asks_them_without_scikit_learn():
    trees, x = grown(1, 3)
    plain = Trees(trees)
    asked = subprocess.run(
        [sys.executable, "-c", AGAIN], input=pickle.dumps((plain, x)), capture_output=True,
        check=True,
    )  # fmt: skip
    assert np.array_equal(pickle.loads(asked.stdout), plain.predict(x, np.arange(3)))
