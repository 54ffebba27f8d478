"""A step of the loss by itself and behind a busy device: eager, compiled and captured."""
