"""Momentum Contrast with an adapted queue: data, encoders, methods, kNN accuracy and training."""
