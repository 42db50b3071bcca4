"""Runs a training in a process of its own and iterates its records."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import tempfile
import time
import weakref
from typing import Any, Dict, Iterator, Mapping, Optional, Union

from .program import PREEMPTED, Error, assignments, failure, place, program
from .run import Record, Run, parse

POLL_SECONDS = 0.05
LIST_SETTINGS = (  # settings of smelt train that take a list with commas
    "lora.targets",
    "lora.modules_to_save",
    "lora.tokens",
    "model.rope_short_factors",
    "model.rope_long_factors",
    "resume.accept",
    "rl.reward",
)


class Training:
    """A running training. Iterating yields the record of each step as it ends; `records()` yields all kinds of records.

    If the training fails, iteration and `wait` raise its error at the end. If Python ends or is interrupted first, the training writes a checkpoint
    and stops; the same call continues it."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: Any, run: Run, began: float) -> None:
        self.run = run
        self._process, self._errors, self._began, self._stopped = process, errors, began, False
        self._path = os.path.abspath(os.path.join(run.folder, "metrics.jsonl"))
        atexit.register(_stop_at_exit, weakref.ref(self))

    def __repr__(self) -> str:
        return f"smelt.Training({self.run.folder!r})"

    def __iter__(self) -> Iterator[Record]:
        return (record for record in self.records() if record.kind == "step")

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.stop()
        if kind is None:
            self.wait()
        else:
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def records(self) -> Iterator[Record]:
        """The records that this training writes, as it writes them, until it ends. If `smelt launch` restarts the ranks, steps after the checkpoint are
        repeated."""
        latest, place = self._began, _Place(self._path)
        try:
            while True:
                ended = not self.running  # before the records are read, so that none is missed
                for line in place.lines():
                    record = parse(line)
                    if record is None or not isinstance(record.get("time"), (int, float)) or record["time"] < latest:
                        continue  # a record of an earlier start
                    latest = record["time"]
                    yield record
                if ended:
                    break
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.stop()
            self._process.wait()
            raise
        finally:
            place.close()
        self.wait()

    def stop(self) -> None:
        """Asks the training to write a checkpoint and to end, as SIGTERM does."""
        if self.running:
            self._stopped = True
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: Optional[float] = None) -> Run:
        """Waits for the end, and returns the run. Raises `Paused` if a signal from elsewhere stopped the training, and `Error` if it failed."""
        code = self._process.wait(timeout)
        if code and not (code == PREEMPTED and self._stopped):
            raise failure(code, self.output)
        return self.run

    @property
    def output(self) -> str:
        """What the training has printed so far; RUN/log.txt has it too."""
        with open(self._errors.name, "rb") as file:
            return str(file.read().decode(errors="replace"))


class _Place:
    """The position in a growing file. When a run continues, a shorter file may replace it."""

    def __init__(self, path: str) -> None:
        self._path, self._file, self._rest = path, None, b""  # type: str, Any, bytes

    def lines(self) -> Iterator[bytes]:
        """The whole lines since the last call."""
        while True:
            if self._file is None:
                try:
                    self._file, self._rest = open(self._path, "rb"), b""
                except FileNotFoundError:
                    return
            while True:
                read = self._file.read(1 << 20)
                *lines, self._rest = (self._rest + read).split(b"\n")
                yield from lines
                if not read:
                    break
            try:
                now = os.stat(self._path)
            except FileNotFoundError:
                return
            mine = os.fstat(self._file.fileno())
            if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino) and now.st_size >= self._file.tell():
                return
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _stop_at_exit(reference: "weakref.ref[Training]") -> None:
    training = reference()
    if training is not None and training.running:
        training.stop()
        training._process.wait()


def _run_folder(config: Union[str, "os.PathLike[str]", None], settings: Mapping[str, Any]) -> str:
    """The folder of the run that the settings name."""
    folder = settings.get("fork") or settings.get("run")
    if not folder and config is not None and os.path.exists(os.path.join(config, "config.yaml")):
        folder = config
    if not folder:
        raise ValueError('train needs the folder of the run: give run="runs/first"')
    return str(os.fspath(folder))


def train(config: Union[str, "os.PathLike[str]", None] = None, /, ranks: Optional[int] = None, **settings: Any) -> Training:
    """Starts `smelt train CONFIG key=value ...`, and returns the training.

    `config` is a YAML file, a run folder to continue, or None. `smelt train --help` lists the settings. A group is a mapping: train("llama.yaml",
    run="runs/a", steps=300, data={"train": "my-texts"}). With `ranks`, `smelt launch` starts that many ranks and restarts them after failures."""
    words = [place(config)] if config is not None else []
    words += assignments(settings, LIST_SETTINGS)
    command = [program(), *(["launch", "-n", str(ranks), "--"] if ranks is not None else []), "train", *words]
    run = Run(_run_folder(config, settings))
    errors = tempfile.NamedTemporaryFile(prefix="smelt-", suffix=".log")
    began = time.time()
    # In its own session: Ctrl-C in a terminal reaches only Python, which then asks the training to stop once.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=subprocess.STDOUT, start_new_session=True)
    return Training(process, errors, run, began)
