"""Runs a training in a process of its own and iterates its records."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Set, Union

from .program import PREEMPTED, Error, assignments, failure, place, program
from .run import Record, Run, parse

POLL_SECONDS = 0.05
ENDING = (signal.SIGTERM, signal.SIGHUP)  # signals that end Python without its atexit functions
START = b'{"kind": "start",'
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
    and stops; the same call continues it. A loop that ends early leaves it running: use `with`, or call `stop`."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: Any, run: Run, earlier: Set[bytes], ranks: bool) -> None:
        self.run = run
        self._process, self._errors, self._earlier, self._ranks, self._stopped = process, errors, earlier, ranks, False
        self._path = os.path.join(run.folder, "metrics.jsonl")
        _running.difference_update([training for training in list(_running) if not training.running])
        _running.add(self)

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
        file = _Place(self._path, self._earlier)
        try:
            while True:
                ended = not self.running  # before the records are read, so that none is missed
                for line in file.lines():
                    record = parse(line)
                    if record is not None:
                        yield record
                if ended:
                    break
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.stop()
            self._process.wait()
            raise
        finally:
            file.close()
        self.wait()

    def stop(self) -> None:
        """Asks the training to write a checkpoint and to end, as SIGTERM does. Further calls do nothing."""
        if self.running and not self._stopped:
            self._stopped = True
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: Optional[float] = None) -> Run:
        """Waits for the end, and returns the run. Raises `Paused` if a signal from elsewhere stopped the training, and `Error` if it failed."""
        try:  # with a timeout, Popen polls: a signal that arrives just before a blocking waitpid would be handled only after it
            code = self._process.wait(threading.TIMEOUT_MAX if timeout is None else timeout)
        except KeyboardInterrupt:
            self.stop()
            self._process.wait()
            raise
        if code and not (self._stopped and code in (PREEMPTED, -signal.SIGTERM)):  # SIGTERM: before the program could handle it
            raise failure(code, self.output, self._ranks)
        return self.run

    @property
    def output(self) -> str:
        """What the training has printed so far; RUN/log.txt has it too."""
        with open(self._errors.name, "rb") as file:
            return str(file.read().decode(errors="replace"))


class _Place:
    """The position in a growing metrics.jsonl. A file begins with records of earlier starts, up to the first start record that is not in `earlier`.

    When a run continues, and after each restart of ranks, a file replaces it that lacks the records after the checkpoint and has the earlier start
    records unchanged. A file that begins with another record during a training is new, because somebody removed the last one."""

    def __init__(self, path: str, earlier: Set[bytes]) -> None:
        self._path, self._file, self._rest = path, None, b""  # type: str, Any, bytes
        self._earlier, self._own, self._begins = set(earlier), False, True

    def lines(self) -> Iterator[bytes]:
        """The whole lines of this training since the last call."""
        while True:
            if self._file is None:
                try:
                    self._file, self._rest, self._begins = open(self._path, "rb"), b"", True
                except FileNotFoundError:
                    return
            yield from self._read()
            try:
                now = os.stat(self._path)
            except FileNotFoundError:
                return
            mine = os.fstat(self._file.fileno())
            if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino) and now.st_size >= self._file.tell():
                return
            yield from self._read()  # lines that were written before the file was replaced
            self.close()

    def _read(self) -> Iterator[bytes]:
        while True:
            read = self._file.read(1 << 20)
            *lines, self._rest = (self._rest + read).split(b"\n")
            for line in lines:
                start = line.startswith(START)
                if self._begins:
                    self._own, self._begins = self._own and not start, False
                if start and line not in self._earlier:
                    self._own = True
                    self._earlier.add(line)
                if self._own:
                    yield line
            if not read:
                return

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _starts(path: str) -> Set[bytes]:
    """The start records in a metrics.jsonl. The time in them makes each one unique."""
    try:
        with open(path, "rb") as file:
            return {line.rstrip(b"\n") for line in file if line.startswith(START)}
    except OSError:
        return set()


_running: Set[Training] = set()  # the program must not outlive Python because a script dropped the object


def _stop_all() -> None:
    """Stops all trainings, and waits until they have ended."""
    trainings = [training for training in list(_running) if training.running]
    for training in trainings:
        training.stop()
    for training in trainings:
        try:  # not Popen.wait: a handler may interrupt it while it holds its lock
            os.waitid(os.P_PID, training.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass


atexit.register(_stop_all)


def _on_terminate(number: int, _: Any) -> None:
    """Stops all trainings, and then ends Python as the signal does by default. A second signal ends it at once."""
    for ending in ENDING:
        if signal.getsignal(ending) is _on_terminate:
            signal.signal(ending, signal.SIG_DFL)
    _stop_all()
    os.kill(os.getpid(), number)


def _handle_terminate() -> None:
    """Installs the handler, unless the program handles or ignores the signal. Python allows it only in the main thread."""
    for ending in ENDING if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _on_terminate)


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
    earlier = _starts(os.path.join(run.folder, "metrics.jsonl"))
    if config is not None and settings.get("fork"):  # its records begin with those of the run that it continues
        base = os.fspath(config)
        earlier |= _starts(os.path.join(base if os.path.isdir(base) else base.rpartition("@")[0], "metrics.jsonl"))
    errors = tempfile.NamedTemporaryFile(prefix="smelt-", suffix=".log")
    _handle_terminate()
    # In its own session: Ctrl-C in a terminal reaches only Python, which then asks the training to stop once.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=subprocess.STDOUT, start_new_session=True)
    return Training(process, errors, run, earlier, ranks is not None)
