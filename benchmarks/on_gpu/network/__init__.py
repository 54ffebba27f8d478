"""A whole training step: a network, the loss with its memory, and the backward pass."""
