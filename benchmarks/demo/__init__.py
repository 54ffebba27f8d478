"""The Glyphs retrieval task: network, distortion, batches, evaluation, methods and training."""
