"""Generation and tokens, by `smelt generate` and `smelt data encode`."""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Union, overload

from .program import assignments, place, run_program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Prompt = Union[str, Mapping[str, Any]]

JSON_SETTINGS = ("stop", "logit_bias")  # of smelt generate


class Completion(Dict[str, Any]):
    """A result line of `smelt generate` (docs/generate.md); str() gives its text."""

    @property
    def text(self) -> str:
        return str(self["completion"])

    def __str__(self) -> str:
        return self.text


@overload
def generate(model: Union[str, "os.PathLike[str]"], prompts: Prompt, **settings: Any) -> Completion: ...
@overload
def generate(model: Union[str, "os.PathLike[str]"], prompts: Sequence[Prompt], **settings: Any) -> List[Completion]: ...
def generate(model: Union[str, "os.PathLike[str]"], prompts: Union[Prompt, Sequence[Prompt]], **settings: Any) -> Union[Completion, List[Completion]]:
    """Completes a prompt, or all prompts of a list together.

    A prompt is a text, or a mapping with "prompt", "messages" or "tokens"; its completion also contains its further members. `smelt generate --help`
    lists the settings, such as tokens=64, temperature=0.8, seed=1, stop=["END", "\\n\\n"] and samples=4. With samples above 1, give a list: the
    completions of a prompt follow one another."""
    if "out" in settings:
        raise TypeError("out= is the file of `smelt generate`, but smelt.generate returns the completions: leave out= out")
    several: Sequence[Prompt] = [prompts] if isinstance(prompts, (str, Mapping)) else prompts
    single = several is not prompts
    if single and settings.get("samples", 1) != 1:
        raise ValueError("one prompt has one completion: with samples above 1, give a list of prompts")
    lines = [{"prompt": prompt} if isinstance(prompt, str) else dict(prompt) for prompt in several]
    with tempfile.TemporaryDirectory(prefix="smelt-") as folder:
        given, results = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "results.jsonl")
        with open(given, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        run_program(["generate", place(model), given, f"out={results}", *assignments(settings, objects=JSON_SETTINGS)])
        with open(results, encoding="utf-8") as file:
            completions = [Completion(json.loads(line)) for line in file]
    return completions[0] if single else completions


@overload
def tokenize(model: Union[str, "os.PathLike[str]"], texts: str, **settings: Any) -> "NDArray[np.int32]": ...
@overload
def tokenize(model: Union[str, "os.PathLike[str]"], texts: Sequence[str], **settings: Any) -> "List[NDArray[np.int32]]": ...
def tokenize(model: Union[str, "os.PathLike[str]"], texts: Union[str, Sequence[str]], **settings: Any) -> Any:
    """The token ids of a text, or of each text of a list, by the tokenizer of a run, a model folder or a tokenizer.json.

    `smelt data encode --help` lists the settings: special=True parses special tokens, template=True adds the tokens around a text."""
    import numpy as np

    for name in ("documents", "field"):
        if name in settings:
            raise TypeError(f"{name}= says how `smelt data encode` reads a file, but smelt.tokenize is given texts: leave {name}= out")
    single = isinstance(texts, str)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ([texts] if single else texts))
    output = run_program(["data", "encode", place(model), "documents=json", *assignments(settings)], lines.encode())
    ids = [np.array(line.split(), dtype=np.int32) for line in output.decode().splitlines()]
    return ids[0] if single else ids
