from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_xbn.diagnostics import staleness


@given(ages=st.lists(st.integers(0, 5), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_staleness_by_age_is_that_of_the_rows_of_each_age(ages: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, fresh = generator.normal(size=(2, len(ages), 3))
    measured = staleness(torch.tensor(rows), torch.tensor(fresh), torch.tensor(ages))
    distances = np.linalg.norm(rows - fresh, axis=1)
    np.testing.assert_allclose([measured.mean, measured.maximum], [distances.mean(), distances.max()])
    assert measured.ages.tolist() == sorted(set(ages))
    for i, age in enumerate(measured.ages.tolist()):
        of_age = distances[np.array(ages) == age]
        assert measured.rows_by_age[i] == len(of_age)
        np.testing.assert_allclose(measured.mean_by_age[i], of_age.mean())
        np.testing.assert_allclose(measured.maximum_by_age[i], of_age.max())
