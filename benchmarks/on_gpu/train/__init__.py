"""Runs of the study, several side by side on one device."""
