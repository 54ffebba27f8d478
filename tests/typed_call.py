"""A user's lines, which mypy reads with the package: it finds the misspelt keyword, or says so here."""

from pytorch_metric_learning.losses import SupConLoss

from pml_xbn import XBNWrapper


def build() -> tuple[XBNWrapper, XBNWrapper]:
    return (
        XBNWrapper(SupConLoss(), embedding_size=16, memory_size=64),
        XBNWrapper(SupConLoss(), embedding_size=16, memory_sizee=64),  # type: ignore[call-arg]
    )
