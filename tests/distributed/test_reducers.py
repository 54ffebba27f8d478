"""Which reducers can be had from the sums and counts of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_metric_learning import losses, reducers

from pml_xbn import XBNWrapper


class OwnReducer(reducers.MeanReducer):
    def element_reduction(self, losses: Any, *_: Any) -> Any:
        return losses.median()


@pytest.mark.parametrize(
    "reducer",
    [
        OwnReducer(),
        reducers.DoNothingReducer(),
        reducers.MultipleReducers({"loss": OwnReducer()}),
        reducers.PerAnchorReducer(OwnReducer()),
    ],
    ids=lambda reducer: type(reducer).__name__,
)
def test_a_reducer_that_is_not_pmls_is_refused_with_gather_distributed(reducer: Any) -> None:
    message = r"(Own|DoNothing)Reducer, whose result .* pass one of AvgNonZeroReducer, .*ThresholdReducer"
    with pytest.raises(ValueError, match=message):
        XBNWrapper(losses.SupConLoss(reducer=reducer), 4, 8, gather_distributed=True)
    XBNWrapper(losses.SupConLoss(reducer=reducer), 4, 8)
