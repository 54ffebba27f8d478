from __future__ import annotations

import losses_on_ranks
import pytest
from loss_worker import LOSSES, OTHERS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> losses_on_ranks.Results:
    return losses_on_ranks.run(2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("loss", [*LOSSES, *OTHERS])
def test_two_ranks_have_loss_and_gradient_of_one_process(results: losses_on_ranks.Results, loss: str) -> None:
    losses_on_ranks.check(results, loss)
