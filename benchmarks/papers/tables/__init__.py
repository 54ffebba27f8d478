"""The papers' experiments: what each one is called here, its flags, and the figures that it gave."""

from benchmarks.papers.tables.axbn import EXPERIMENTS as AXBN
from benchmarks.papers.tables.experiment import Experiment
from benchmarks.papers.tables.norm_softmax import EXPERIMENTS as NORM_SOFTMAX
from benchmarks.papers.tables.sgsl import EXPERIMENTS as SGSL
from benchmarks.papers.tables.thesis import EXPERIMENTS as THESIS
from benchmarks.papers.tables.xbm import EXPERIMENTS as XBM

EXPERIMENTS = (*AXBN, *THESIS, *XBM, *NORM_SOFTMAX, *SGSL)

__all__ = ["EXPERIMENTS", "Experiment"]
