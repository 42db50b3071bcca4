"""A run folder: its records as arrays, its checkpoints and samples."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Union

from .checkpoint import Checkpoint
from .program import Error, place, run_program, show

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .text import Completion


class Record(Dict[str, Any]):
    """A line of metrics.jsonl. An unknown number is None."""

    @property
    def kind(self) -> str:
        """The kind of the record: "step", "evaluation", "sample", "checkpoint", "start", "event", "end" and others."""
        return str(self["kind"])

    @property
    def step(self) -> int:
        return int(self["step"])


class Sample(NamedTuple):
    """A text that the model wrote at an evaluation."""

    step: int
    prompt: str
    text: str


class Metrics(Mapping[str, "NDArray[Any]"]):
    """The numbers of the records of one kind: an array per name, with an element per record. An unknown number is NaN; `step` has integers."""

    def __init__(self, records: List[Record]) -> None:
        self._records = records
        self._names: Dict[str, None] = {}
        for record in records:
            for name, value in record.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._names[name] = None

    def __getitem__(self, name: str) -> "NDArray[Any]":
        import numpy as np

        if name not in self._names:
            raise KeyError(name)
        if name == "step":
            return np.array([record.step for record in self._records], dtype=np.int64)
        values = (record.get(name) for record in self._records)
        return np.array([float("nan") if value is None else value for value in values], dtype=np.float64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def parse(line: bytes) -> Optional[Record]:
    """The record of a complete line, or None for anything else, such as the half-written last line of a killed run."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return Record(record) if isinstance(record, dict) and isinstance(record.get("kind"), str) and isinstance(record.get("step"), int) else None


class Run:
    """A run folder. It may be training; each property reads its present state."""

    def __init__(self, folder: Union[str, "os.PathLike[str]"]) -> None:
        self._at = os.getcwd()
        self.folder = os.path.join(self._at, folder)  # stays right after os.chdir

    def __repr__(self) -> str:
        return f"smelt.Run({self.folder!r})"

    def records(self, kind: Optional[str] = None) -> Iterator[Record]:
        """The records of the run, or only the records of one kind, in order."""
        path = os.path.join(self.folder, "metrics.jsonl")
        try:
            file = open(path, "rb")
        except FileNotFoundError:
            raise Error(f"{path} does not exist: give the folder of a run that has started", 7) from None
        with file:
            for line in file:
                record = parse(line)
                if record is not None and kind in (None, record.kind):
                    yield record

    @property
    def metrics(self) -> Metrics:
        """The numbers of all steps: loss, grad_norm, lr, tokens_per_second and others."""
        return Metrics(list(self.records("step")))

    @property
    def evaluations(self) -> Metrics:
        """The numbers of all evaluations."""
        return Metrics(list(self.records("evaluation")))

    @property
    def machine(self) -> Metrics:
        """Samples of the machine of rank 0: processors, memory, disks, networks, energy. Lists of GPUs are in records("system")."""
        return Metrics(list(self.records("system")))

    @property
    def samples(self) -> List[Sample]:
        """The texts that the model wrote at evaluations."""
        return [Sample(record.step, record["prompt"], record["text"]) for record in self.records("sample")]

    @property
    def info(self) -> Dict[str, Any]:
        """The output of `smelt show`: identity, history, state and checkpoints."""
        return dict(show(self.folder))

    @property
    def state(self) -> str:
        """What the run is doing: training, finished, paused, failed and others (docs/report.md)."""
        return str(self.info["state"]["status"])

    @property
    def checkpoints(self) -> List[int]:
        """The steps of all intact checkpoints, the newest first."""
        return [int(one["step"]) for one in self.info["checkpoints"] if "error" not in one]

    def checkpoint(self, step: Union[int, str, None] = None) -> Checkpoint:
        """The checkpoint of a step, "best" for that of the lowest validation loss, or else the newest one."""
        if isinstance(step, str) and step != "best":
            if not step.isdecimal():
                raise ValueError(f'checkpoint({step!r}): give the number of a step, "best", or nothing for the newest')
            step = int(step)
        info = self.info
        intact = [one for one in info["checkpoints"] if "error" not in one]
        chosen = [one for one in intact if step in (None, one["step"]) or (step == "best" and one.get("best"))]
        store = str(info["store"])  # may be relative
        if not chosen:
            steps = ", ".join(str(one["step"]) for one in intact) or "none"
            raise Error(f"{self.folder} has no checkpoint {'' if step is None else step}; it has {steps}", 7)
        if store.startswith("s3://"):
            raise Error(f"the checkpoints of {self.folder} are in a bucket: copy one and open it by smelt.Checkpoint(FOLDER), or use `smelt convert`", 2)
        return Checkpoint(os.path.join(self._at, store, "checkpoints", f"step-{chosen[0]['step']:08d}"))

    def generate(self, prompt: Any, **settings: Any) -> Any:
        """`smelt.generate` with the newest checkpoint."""
        from .text import generate

        return generate(self.folder, prompt, **settings)

    def tokenize(self, text: Any, **settings: Any) -> Any:
        """`smelt.tokenize` with the tokenizer of the run."""
        from .text import tokenize

        return tokenize(self.folder, text, **settings)

    def report(self) -> str:
        """Writes the page of the run, and returns its path."""
        run_program(["report", place(self.folder)])
        return os.path.join(self.folder, "report.html")
