"""Stored rows of groups, and the maps that store them anew."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._parts import rows_at_a_time, slices
from ..adapters.affine import Affine


def rows_in_groups(stored: Tensor, slots: Tensor, num_groups: int) -> tuple[Tensor | slice, Tensor, Tensor]:
    """Returns places, slots and values of stored rows ``(n, d)``: on a CPU those of the groups, else all."""
    if slots.device.type == "cpu":  # on a GPU, to count them would make it wait for the host
        places = (slots < num_groups).nonzero().squeeze(1)
        # They are copied: of many, that would take more time than a pass over all.
        if 2 * len(places) < len(stored):
            return places, slots[places], stored[places]
    return slice(len(stored)), slots, stored


def maps_of_stored(of_group: Affine, of_others: Affine, is_adapted: Tensor) -> Affine:
    """Returns maps ``(g + 1, d)`` of stored rows, to where all rows are read by the map of others.

    Args:
        of_group: from stored rows to where those of the groups are to be read, ``(g, d)``.
        of_others: from stored rows to where all are read, ``(d,)``.
        is_adapted: which of the groups take their map, ``(g, 1)`` bool; the last slot is of no group.
    """
    zeros = of_group.scale.new_zeros(1, of_group.scale.shape[1])
    ones = zeros + 1
    own = Affine(of_group.scale / of_others.scale, (of_group.shift - of_others.shift) / of_others.scale)
    scale, shift = torch.where(is_adapted, own.scale, ones), torch.where(is_adapted, own.shift, zeros)
    return Affine(torch.cat([scale, ones]), torch.cat([shift, zeros]))


def mapped_in_groups(
    stored: Tensor, slots: Tensor, maps: Affine, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """Yields stored rows after the map of their slot ``(k,)``, a part at a time.

    Args:
        dtype: of the computation; a map that is not finite in it leaves its rows as they are.
    """
    maps = Affine(*(x.to(dtype) for x in maps))
    ones = torch.ones_like(maps.scale)
    scale, shift = maps.where_finite(Affine(ones, ones - 1))
    largest = torch.finfo(stored.dtype).max
    for part in slices(len(stored), max(1, rows_at_a_time(stored) // 8)):
        new = torch.addcmul(shift[slots[part]], stored[part].to(dtype), scale[slots[part]])
        yield part, new.clamp_(-largest, largest).to(stored.dtype)
