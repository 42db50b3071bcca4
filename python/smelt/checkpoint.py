"""A checkpoint on a file system: its tensors are views of the mapped files. docs/checkpoints.md explains the manifest.

Checksums are not verified here: `smelt` verifies them when it loads, and writes other formats (`smelt convert`)."""

from __future__ import annotations

import json
import mmap
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple, Union

from .program import Error

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

FORMATS = ("smelt checkpoint 1", "smelt checkpoint 2")
NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?", "BF16": "<u2"}
TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "BF16": "bfloat16"}


class Interval(NamedTuple):
    """`size` elements of a flattened tensor from `first` on, stored at byte `begin` of a file. With runs, the elements are `runs[0]` of each `runs[1]`
    elements of the tensor, and `runs[2]` elements of the first run lie before `first`."""

    first: int
    size: int
    file: int
    begin: int
    end: int
    runs: Tuple[int, ...]


class Checkpoint(Mapping[str, "NDArray[Any]"]):
    """Names and arrays of the tensors of a checkpoint: parameters in their state dtype, and the state of the optimizer.

    An array is a view of the mapped file, and writing to it changes only this process's memory. Two kinds of arrays are copies: a BF16 tensor becomes float32,
    because NumPy has no BF16, and a tensor that several ranks wrote in parts is joined."""

    def __init__(self, folder: Union[str, "os.PathLike[str]"]) -> None:
        self.folder = os.path.join(os.getcwd(), folder)  # stays right after os.chdir
        path = os.path.join(self.folder, "manifest.json")
        try:
            with open(path, "rb") as file:
                manifest = json.load(file)
        except (OSError, ValueError) as failed:
            raise Error(f"{path} is not readable: {failed}", 7) from None
        if manifest.get("format") not in FORMATS:
            raise Error(f"{path} has the format {manifest.get('format')}, but this package reads {' and '.join(FORMATS)}: install the wheel of the smelt that wrote it", 7)
        self.step = int(manifest["step"])
        self.metadata: Dict[str, Any] = manifest.get("metadata") or {}
        self._files = [os.path.join(self.folder, file["name"]) for file in manifest["files"]]
        self._maps: Dict[int, mmap.mmap] = {}
        self._tensors: Dict[str, Tuple[str, Tuple[int, ...]]] = {}
        self._intervals: Dict[str, List[Interval]] = {}
        for one in manifest["intervals"]:
            self._tensors[one["tensor"]] = one["dtype"], tuple(one["shape"])
            interval = Interval(one["first"], one["count"], one["file"], one["begin"], one["end"], tuple(one.get("runs", ())))
            self._intervals.setdefault(one["tensor"], []).append(interval)
        for intervals in self._intervals.values():
            intervals.sort()

    def __repr__(self) -> str:
        return f"smelt.Checkpoint({self.folder!r})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def dtype(self, name: str) -> str:
        """The stored dtype of a tensor, as safetensors names it, such as "F32" or "BF16"."""
        return self._tensors[name][0]

    def shape(self, name: str) -> Tuple[int, ...]:
        return self._tensors[name][1]

    def __getitem__(self, name: str) -> "NDArray[Any]":
        import numpy as np

        bits = self._bits(name)
        return (bits.astype(np.uint32) << 16).view(np.float32) if self.dtype(name) == "BF16" else bits

    def torch(self, name: str) -> "torch.Tensor":
        """The tensor for PyTorch, also in bfloat16, over the same memory. It needs torch."""
        import torch

        bits = self._bits(name)
        tensor = torch.from_numpy(bits.view("<i2") if self.dtype(name) == "BF16" else bits)
        return tensor.view(getattr(torch, TORCH[self.dtype(name)]))

    def _map(self, number: int) -> mmap.mmap:
        if number not in self._maps:
            with open(self._files[number], "rb") as file:
                self._maps[number] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[number]

    def _bits(self, name: str) -> "NDArray[Any]":
        """The array in its stored dtype; BF16 as uint16."""
        import numpy as np

        dtype, shape = self._tensors[name]
        if dtype not in NUMPY:
            raise Error(f"{name} has dtype {dtype}, which this package does not read: use `smelt convert`", 7)
        kind, parts = np.dtype(NUMPY[dtype]), self._intervals[name]
        size = sum(part.size for part in parts)
        if size != int(np.prod(shape)):
            raise Error(f"{name} has {size} of its {int(np.prod(shape))} elements in {self.folder}", 7)
        following = all(a.file == b.file and a.end == b.begin and a.first + a.size == b.first for a, b in zip(parts, parts[1:]))
        if following and not any(part.runs for part in parts):
            return np.frombuffer(self._map(parts[0].file), kind, size, parts[0].begin).reshape(shape)
        whole = np.empty(size, kind)
        for part in parts:
            values = np.frombuffer(self._map(part.file), kind, part.size, part.begin)
            if part.runs:
                run, stride, skip = part.runs
                at = np.arange(skip, skip + part.size)
                whole[part.first - skip + at // run * stride + at % run] = values
            else:
                whole[part.first : part.first + part.size] = values
        return whole.reshape(shape)
