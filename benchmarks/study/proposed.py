"""The study's section on what the thesis A Study of Cross Batch Memory proposes as future work."""

from __future__ import annotations

from benchmarks.study.cases import PROPOSED, PROPOSED_SIZES, WITH_PROXIES
from benchmarks.study.data import Setting, Study
from benchmarks.study.figures import name_of
from benchmarks.study.tables import spread, table, text

_ALONE = "no-xbm" + WITH_PROXIES
_COLUMNS = ["setting", "method", "Recall@1", "to No-XBM", "to XBN", "to itself without proxies"]


def memories(study: Study, setting: Setting) -> list[str]:
    """Names of the methods measured in a setting, without those that have something beside the memory."""
    return [name for name in study.methods(setting) if "+" not in name]


def proposed(study: Study) -> str:
    """The section; empty before the first run."""
    settings = [(batch_size, ratio, "batch", "fast") for batch_size, ratio in PROPOSED_SIZES]
    lines = [
        _line(study, name, setting)
        for setting in settings
        for name in PROPOSED
        if name in study.methods(setting)
    ]
    if not lines:
        return ""
    return "\n\n".join(
        [
            "## What the thesis proposes",
            "Section 6.1 of A Study of Cross Batch Memory: *clusters*, group maps whose groups are 8 "
            "clusters of the memory, found anew every 100 steps; *spherical*, mean and spread on the sphere; "
            "*recency*, moments of the memory in which a row counts half as much as one that is newer by a "
            "quarter of the memory; and a classification loss beside that of the memory, here PML's "
            "`NormalizedSoftmaxLoss`, whose proxies begin at the classes' means.",
            "These runs were made later than those that they are compared with. One of the latter (xbn, "
            "batch 16, seed 0), made again beside them, ended half a point lower: the intervals hold such "
            "noise, too.",
            table([*_COLUMNS, "to proxies alone"], lines),
        ]
    )


def _line(study: Study, name: str, setting: Setting) -> list[str]:
    has_proxies = name.endswith(WITH_PROXIES)
    others = ["no-xbm", "xbn", name.removesuffix(WITH_PROXIES), _ALONE]
    are_told = [True, True, has_proxies, has_proxies and name != _ALONE]
    return [
        name_of(setting),
        name,
        spread(study, name, setting, "recall_at_1"),
        *(
            text(study.difference(name, other, setting, "recall_at_1")) if is_told else ""
            for other, is_told in zip(others, are_told, strict=True)
        ),
    ]
