"""First and second derivatives of PML's losses as functions of one matrix."""

from __future__ import annotations

import pytest
import torch
from lifted_structure import LiftedStructureOfPaper
from pytorch_metric_learning import losses
from stored_rows import stored_rows
from torch import Tensor

from pml_xbn.losses import _sums
from pml_xbn.losses._choice import all_pairs
from pml_xbn.losses._forms import FORMS
from pml_xbn.losses._seam import Comparison, loss_against

A, N, D = 4, 11, 3
OWN_ROWS = torch.arange(7, 11)
# Its weights are taken for constants, so that its derivatives are not those of its values.
BY_DIFFERENCES = sorted((cls for cls in FORMS if cls is not losses.CircleLoss), key=lambda cls: cls.__name__)


@pytest.fixture(params=["whole", "slices"], autouse=True)
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two anchors at a time, or all."""
    if request.param == "slices":
        monkeypatch.setattr(_sums, "_PAIRS_AT_ONCE", {"cpu": 2 * N, "gpu": 2 * N})


@pytest.fixture
def rows() -> Tensor:
    return torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


LABELS = torch.arange(N) % 3


def value_of(loss: object, anchors: Tensor, rows: Tensor) -> Tensor:
    """Of anchors that move away from their copies."""
    compared = Comparison(loss, None, anchors, LABELS[-A:], stored_rows(rows), LABELS, OWN_ROWS)
    return loss_against(compared)


@pytest.mark.parametrize("cls", BY_DIFFERENCES)
def test_derivatives_equal_differences(cls: type, rows: Tensor) -> None:
    anchors, loss = (rows[-A:] + 0.1).requires_grad_(), cls()
    # A second backward computes anew what the first has been given, and rounds otherwise.
    assert torch.autograd.gradcheck(lambda x: value_of(loss, x, rows), anchors, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(lambda x: value_of(loss, x, rows) ** 2, anchors)


@pytest.mark.parametrize("cls", FORMS)
def test_second_derivatives_equal_pmls(cls: type, rows: Tensor) -> None:
    pmls = LiftedStructureOfPaper(cls(), OWN_ROWS) if cls is losses.LiftedStructureLoss else cls()
    lists = all_pairs(LABELS[-A:], LABELS, OWN_ROWS).lists()

    def of_pml(anchors: Tensor) -> Tensor:
        return pmls(anchors, LABELS[-A:], lists, rows, LABELS)

    results = []
    for value_by in (of_pml, lambda anchors: value_of(cls(), anchors, rows)):
        anchors = (rows[-A:] + 0.1).requires_grad_()
        try:
            (gradient,) = torch.autograd.grad(value_by(anchors) ** 2, anchors, create_graph=True)
            gradient[:, 0].square().sum().backward()
        except (NotImplementedError, RuntimeError) as error:
            assert value_by is of_pml
            pytest.skip(f"PML has no second derivative: {error}")
        results.append(anchors.grad)
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)
