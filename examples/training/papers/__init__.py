"""The papers' experiments: what each one is called here, its flags, and the figures that it gave."""

from .axbn import EXPERIMENTS as AXBN
from .experiment import Experiment
from .norm_softmax import EXPERIMENTS as NORM_SOFTMAX
from .sgsl import EXPERIMENTS as SGSL
from .thesis import EXPERIMENTS as THESIS
from .xbm import EXPERIMENTS as XBM

EXPERIMENTS = (*AXBN, *THESIS, *XBM, *NORM_SOFTMAX, *SGSL)

__all__ = ["EXPERIMENTS", "Experiment"]
