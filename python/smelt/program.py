"""The program: where it is, its arguments, and its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from numbers import Number
from typing import Any, Collection, Iterable, List, Mapping, Optional, Union

PREEMPTED = 8  # docs/exit-codes.md
RANK_MESSAGES = 4  # most messages of ranks in an error


class Error(RuntimeError):
    """A command of smelt failed. `code` is its exit code (docs/exit-codes.md), or the negative number of the signal that killed it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Paused(Error):
    """A signal stopped a training after it wrote a checkpoint. The same call continues it."""


def program() -> str:
    """The path of the program: $SMELT, else the program that was installed with this package, else the one in $PATH."""
    chosen = os.environ.get("SMELT")
    if chosen:
        found = shutil.which(chosen)
        if not found:
            raise Error(f"SMELT={chosen} is not a program: set SMELT to the path of smelt, or unset it to use the installed one", 2)
        return found
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (os.path.dirname(sys.executable), os.path.join(package, "bin")):  # an environment; pip install --target
        path = os.path.join(folder, "smelt")
        if os.access(path, os.X_OK):
            return path
    import sysconfig

    for found in (os.path.join(sysconfig.get_path("scripts"), "smelt"), os.path.join(os.path.expanduser("~/.local/bin"), "smelt")):
        if os.access(found, os.X_OK):
            return found
    in_path = shutil.which("smelt")
    if not in_path:
        raise Error("the program smelt is not installed: install the wheel of smelt, or set SMELT to the program's path", 2)
    return in_path


def version() -> str:
    """The first line of `smelt --version`."""
    return run_program(["--version"]).decode().splitlines()[0]


def place(path: Union[str, "os.PathLike[str]"]) -> str:
    """A path in the notation of the command line, where a leading - or an = would make an option of it."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{path!r} is not a path: give a str or os.PathLike, such as os.fsdecode(PATH)")
    return f"./{text}" if "://" not in text and (text.startswith("-") or "=" in text) and not text.startswith(("/", "./")) else text


def word(name: str, value: Any) -> str:
    """A value in the notation of the command line."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a scalar of NumPy or PyTorch
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (str, Number)):
        return str(value)
    raise TypeError(f"{name}={value!r} is of type {type(value).__name__}: a setting is a str, a number, a bool, a path, or a mapping for a group")


def assignments(settings: Mapping[str, Any], lists: Collection[str] = (), objects: Collection[str] = (), prefix: str = "") -> List[str]:
    """key=value for each setting. A mapping is a group: optimizer={"lr": 1e-3} becomes optimizer.lr=0.001. None leaves a setting out.

    `lists`: the settings that take a list with commas. `objects`: the settings that take JSON."""
    words: List[str] = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if name in objects and isinstance(value, (list, tuple, Mapping)):
            words.append(f"{name}={json.dumps(value)}")
        elif isinstance(value, Mapping):
            words += assignments(value, lists, objects, f"{name}.")
        elif isinstance(value, (list, tuple)):
            if name not in lists:
                raise TypeError(f"{name}={value!r} is a list, but only these settings take one: {', '.join([*lists, *objects]) or 'none'}")
            words.append(f"{name}={','.join(word(name, item) for item in value)}")
        elif value is not None:
            words.append(f"{name}={word(name, value)}")
    return words


def failure(code: int, errors: str, ranks: bool = False) -> Error:
    """The error of a command that ended with this exit code and wrote `errors` to stderr. `ranks`: `smelt launch` wrote them after those of its ranks."""
    if code == PREEMPTED:
        return Paused(last_message(errors, "stopped by a signal"), code)
    if code < 0:  # the last line is any output
        said = last_message(errors, "") if any(line.startswith("error: ") for line in errors.splitlines()) else ""
        return Error(f"signal {-code} ended smelt" + (f": {said}" if said else ""), code)
    message = last_message(errors, f"smelt ended with exit code {code}")
    if ranks:
        own = [line[len("error: ") :] for line in errors.splitlines() if line.startswith("error: ")][:-1]
        message = "\n".join([*list(dict.fromkeys(own))[-RANK_MESSAGES:], message])
    return Error(message, code)


def last_message(errors: str, otherwise: str) -> str:
    """The message after the last `error: `, else the last line."""
    lines = [line for line in errors.splitlines() if line.strip()]
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith("error: "):
            return "\n".join(lines[at:])[len("error: ") :]
    return lines[-1] if lines else otherwise


def run_program(arguments: Iterable[str], given: Optional[bytes] = None) -> bytes:
    """Runs the program with `given` as its standard input, and returns its standard output."""
    result = subprocess.run([program(), *arguments], input=given, stdin=None if given is not None else subprocess.DEVNULL, capture_output=True)
    if result.returncode:
        raise failure(result.returncode, result.stderr.decode(errors="replace"))
    return result.stdout


def show(folder: str) -> Any:
    """The object that `smelt show RUN json=true` prints."""
    return json.loads(run_program(["show", place(folder), "json=true"]))
