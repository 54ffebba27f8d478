"""How test embeddings lie: by class, by superclass, and how far apart."""

from __future__ import annotations

from torch import Tensor

from pml_xbn.diagnostics import class_separability, embedding_distances, scalars, superclass_neighbours

_DISTANCES_OF = 4096  # images; the number of distances is the square of it


def embedding_diagnostics(
    embeddings: Tensor,
    labels: Tensor,
    superclasses: Tensor | None = None,
    features: Tensor | None = None,
) -> dict[str, float]:
    """Class separability, distances, and the shares of embeddings near their superclass, by name.

    Args:
        embeddings: (N, d), of unit length; distances are of 4,096 of the first classes.
        labels: (N,).
        superclasses: label -> superclass, or None.
        features: (N, d) of which separability is measured; None for the embeddings.
    """
    first = labels.argsort(stable=True)[:_DISTANCES_OF]
    numbers = {
        **scalars("separability", class_separability(embeddings if features is None else features, labels)),
        **scalars("distance", embedding_distances(embeddings[first], labels[first])),
    }
    if superclasses is not None:
        shares = superclass_neighbours(embeddings, superclasses.to(labels.device)[labels])
        numbers |= scalars("superclass_within", dict(enumerate(shares, start=1)))
    return numbers
