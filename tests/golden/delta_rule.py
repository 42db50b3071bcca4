"""The layers of transformers with the gated delta rule, in float64 inside.

transformers computes the rule and norms in float32 even in a model in float64, with errors that the norm after the rule can multiply by a thousand.
"""
import importlib
import inspect


def widen(model_type):
    name = model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    parts = {key: inspect.unwrap(part) for key, part in vars(module).items() if key.endswith(("GatedDeltaNet", "RMSNorm", "RMSNormGated"))}
    for key, part in ({"torch_chunk_gated_delta_rule": inspect.unwrap(module.torch_chunk_gated_delta_rule)} | parts).items():
        source = inspect.getsource(part)
        begin = source.index("class " if inspect.isclass(part) else "def ")
        exec(source[begin:].replace("torch.float32", "torch.float64").replace(".float()", ".double()"), vars(module))
