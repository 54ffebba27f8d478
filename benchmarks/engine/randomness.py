"""Random numbers that depend on a key alone, so that a run can be resumed anywhere."""

import hashlib

import torch


def seed_for(*key: int | str) -> int:
    """Returns a 32-bit seed that differs between keys, such as (seed, epoch) and (seed, epoch, step)."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")


def generator_for(*key: int | str) -> torch.Generator:
    """Returns a CPU generator seeded from ``key``; the CPU's, so that every device sees the same draws."""
    return torch.Generator().manual_seed(seed_for(*key))
