"""Cross-Batch Memory for Embedding Learning: the rows of ResNet-50, its other backbones not being timm's."""

from __future__ import annotations

from benchmarks.papers.tables.experiment import Experiment, recall


def _experiment(dataset: str, source: str, figures: dict[str, str], flags: str = "") -> Experiment:
    return Experiment("xbm-paper", "Cont. w/ M, R128", dataset, f"--preset xbm{flags}", source, figures)


EXPERIMENTS = (
    _experiment("sop", "XBM, Table 3", recall(80.6, 91.6, 96.2, 98.7, at=(1, 10, 100, 1000))),
    _experiment(
        "in-shop",
        "XBM, Table 4",
        recall(91.3, 97.8, 98.4, 98.7, "99.0", 99.1, at=(1, 10, 20, 30, 40, 50)),
    ),
    _experiment("vehicle-id", "XBM, Table 5", recall(94.7, 96.8, at=(1, 5)), " --test-size small"),
    _experiment("vehicle-id", "XBM, Table 5", recall(93.7, 95.8, at=(1, 5)), " --test-size medium"),
    _experiment("vehicle-id", "XBM, Table 5", recall("93.0", 95.8, at=(1, 5)), " --test-size large"),
    _experiment("deep-fashion2", "XBM, suppl. Table 5", recall(41.9, 64.6, 70.7, at=(1, 10, 20))),
)
