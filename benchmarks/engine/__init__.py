"""What the examples have in common: batches, randomness, checkpoints, accuracy and logs."""
