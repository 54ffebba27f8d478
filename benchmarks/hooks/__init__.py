"""Adaptations that the thesis A Study of Cross Batch Memory proposes (§6.1), as hooks on a memory."""
