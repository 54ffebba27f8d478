from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pml_xbn.diagnostics import (
    AdaptedStaleness,
    ValidPairs,
    class_separability,
    common_mode_push,
    feature_drift,
    scalars,
    staleness,
)


def measured() -> dict[str, float]:
    rows = torch.randn(6, 3)
    stale = staleness(rows, rows + 1, torch.arange(6) // 2)
    return {
        **scalars("drift", {1: feature_drift(rows, rows + 1), 10: feature_drift(rows, rows + 2)}),
        **scalars("staleness", AdaptedStaleness(stale, stale)),
        **scalars("pairs", ValidPairs(*torch.tensor([1, 2, 3, 4]))),
        **scalars("push", common_mode_push(rows, rows, rows + 1)),
        **scalars("classes", class_separability(rows, torch.arange(6) % 2)),
    }


def test_names_are_joined_and_curves_left_out() -> None:
    numbers = measured()
    assert list(numbers) == [
        "drift_1_mean",
        "drift_1_maximum",
        "drift_10_mean",
        "drift_10_maximum",
        "staleness_before_mean",
        "staleness_before_maximum",
        "staleness_after_mean",
        "staleness_after_maximum",
        "pairs_positives_from_batch",
        "pairs_positives_from_memory",
        "pairs_negatives_from_batch",
        "pairs_negatives_from_memory",
        "push_push",
        "push_share",
        "push_cosine",
        "push_displacement",
        "classes_criterion",
        "classes_between",
        "classes_within",
    ]
    assert {type(value) for value in numbers.values()} == {float}
    assert numbers["drift_10_mean"] == pytest.approx(2 * 3**0.5, rel=1e-6)
    assert numbers["pairs_negatives_from_memory"] == 4


def test_plain_numbers_pass_through() -> None:
    assert scalars("loss", 2) == {"loss": 2.0}
    assert scalars("", {}) == {}


def test_what_is_no_number_is_named() -> None:
    with pytest.raises(TypeError, match="drift_1 is a str: pass a number"):
        scalars("drift", {1: "fast"})


def test_record_keeper_and_tensorboard_take_them(tmp_path: Path) -> None:
    record_keeper = pytest.importorskip("record_keeper")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = tensorboard.SummaryWriter(str(tmp_path / "tensorboard"))
    keeper = record_keeper.RecordKeeper(writer, record_keeper.RecordWriter(str(tmp_path / "records")))
    logged = [measured(), measured()]
    for step, numbers in enumerate(logged):
        keeper.update_records(numbers, global_iteration=step, parent_name="diagnostics")
    keeper.save_records()
    writer.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    columns = keeper.query("SELECT * FROM diagnostics", return_dict=True)
    for name in logged[0]:
        expected = [numbers[name] for numbers in logged]
        assert columns[name] == expected
        values = [event.value for event in events.Scalars(f"diagnostics/{name}")]
        assert values == pytest.approx(expected, rel=1e-6)
