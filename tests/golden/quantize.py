"""Writes what tests/base/test_quantize.c compares with: NF4 with double quantization as bitsandbytes rounds it on a CPU.

    python tests/golden/quantize.py            needs torch and bitsandbytes (made with 2.15.0 and 0.50.2)

quantize.safetensors holds for each case values/CASE, codes/CASE (packed, the first of two in the upper half), inner/CASE and outer/CASE, the scales in 8 bits and
the scales of these, offset/CASE, and result/CASE, what bitsandbytes makes of them again.

The scales are rounded by its generic code, which takes the nearest value as its CUDA kernels do: given float32, its CPU library looks a table up that is off
beside the middle of two values, so they are given as float64.
"""
import os

import torch
from bitsandbytes import functional
from safetensors.torch import save_file

torch.manual_seed(1)
CASES = {
    "normal": torch.randn(96, 128) * 0.02,
    "bf16": (torch.randn(320, 64) * 0.05).bfloat16().float(),  # two scales of scales
    "outliers": torch.randn(40, 64) * torch.exp(3 * torch.randn(40, 1)),
    "zeros": torch.cat([torch.zeros(2, 64), torch.randn(3, 64)]),
    "tail": torch.randn(3, 50) * 0.1,
}
expected = {}
for name, values in CASES.items():
    codes, plain = functional.quantize_4bit(values, blocksize=64, compress_statistics=False, quant_type="nf4")
    codes, state = functional.quantize_4bit(values, blocksize=64, compress_statistics=True, quant_type="nf4")
    rest = (plain.absmax - state.offset).double()
    state.absmax, state.state2.absmax = torch.ops.bitsandbytes.quantize_blockwise.default(rest, state.state2.code, 256)
    expected |= {"values/" + name: values, "codes/" + name: codes.flatten(), "inner/" + name: state.absmax, "outer/" + name: state.state2.absmax}
    expected |= {"offset/" + name: state.offset.reshape(1), "result/" + name: functional.dequantize_4bit(codes, state)}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quantize.safetensors")
save_file({name: tensor.contiguous() for name, tensor in expected.items()}, path)
print(len(CASES), "cases,", os.path.getsize(path), "bytes")
