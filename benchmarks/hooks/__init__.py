"""Further adaptations as hooks on a memory: one that the thesis proposes (§6.1), and one that is fitted."""
