"""The store of a cross-batch memory: rows and their map, queue, samples, hooks, state."""
