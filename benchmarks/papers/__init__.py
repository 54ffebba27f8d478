"""The papers' experiments: data, augmentation, model, methods, optimisation, evaluation, presets."""
