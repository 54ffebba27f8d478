"""Tables, pictures and the page that the study's CSV files make."""

from pathlib import Path


def write_report(folder: Path) -> None: ...
