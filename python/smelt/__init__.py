"""smelt from Python: trainings, their metrics and checkpoints, generation and tokens.

Every function runs the program `smelt`; this package computes nothing itself. docs/python.md and docs/python.ipynb show how to use it.
"""

from .checkpoint import Checkpoint
from .program import Error, Paused, program, version
from .run import Metrics, Record, Run, Sample
from .text import Completion, generate, tokenize
from .training import Training, train

__all__ = [
    "Checkpoint",
    "Completion",
    "Error",
    "Metrics",
    "Paused",
    "Record",
    "Run",
    "Sample",
    "Training",
    "generate",
    "program",
    "tokenize",
    "train",
    "version",
]
