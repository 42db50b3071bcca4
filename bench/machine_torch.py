"""What `smelt bench gemm` and `bench memory` are compared with on a GPU (bench/machine.py): PyTorch's products and copy, measured as smelt measures its own
(src/bench/timing.c): random normal numbers laid over operands that rotate through 512 MiB; two calls, half of the repeats uncounted, then as many repeats
as smelt has, each between two events. Reads a measurement a line and answers with the rates of the median and of the best repeat, in TFLOP/s or GB/s, or
with what is missing.

    gemm bf16|fp8 M N K REPEATS SECONDS        driver_copy BYTES REPEATS SECONDS
"""
import statistics
import sys

import torch

POOL = 262139
ROTATION = 512 << 20


def fp8_type():
    amd = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "")
    return torch.float8_e4m3fnuz if amd.startswith("gfx94") else torch.float8_e4m3fn


def round_up(count):
    return (count + 255) // 256 * 256


def make_arena(set_bytes, dtype):
    size = max(ROTATION, set_bytes)
    pool = torch.randn(POOL, device="cuda").to(dtype).view(torch.uint8)
    arena = torch.empty(size, dtype=torch.uint8, device="cuda")
    filled = min(size, pool.numel())
    arena[:filled] = pool[:filled]
    while filled < size:
        more = min(filled, size - filled)
        arena[filled:filled + more] = arena[:more]
        filled += more
    return arena


def matrix(arena, start, rows, columns, dtype):
    return arena[start:start + rows * columns * dtype.itemsize].view(dtype).view(rows, columns)


def seconds_of(work, first, count):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for call in range(first, first + count):
        work(call)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def measure(work, amount, repeats, seconds):
    seconds_of(work, 0, 1)
    calls = max(1, min(1 << 20, int(seconds / repeats / seconds_of(work, 1, 1))))
    first = 2 + (repeats + 1) // 2 * calls
    seconds_of(work, 2, first - 2)
    samples = [seconds_of(work, first + i * calls, calls) / calls for i in range(repeats)]
    return amount / statistics.median(samples), amount / min(samples)


def product(kind, m, n, k, repeats, seconds):
    dtype = fp8_type() if kind == "fp8" else torch.bfloat16
    a_bytes = round_up(m * k * dtype.itemsize)
    in_bytes, out_bytes = a_bytes + round_up(n * k * dtype.itemsize), round_up(m * n * 2)
    inputs, outputs = make_arena(in_bytes, dtype), make_arena(out_bytes, torch.bfloat16)
    operands = [(matrix(inputs, i * in_bytes, m, k, dtype), matrix(inputs, i * in_bytes + a_bytes, n, k, dtype).t()) for i in range(inputs.numel() // in_bytes)]
    results = [matrix(outputs, i * out_bytes, m, n, torch.bfloat16) for i in range(outputs.numel() // out_bytes)]
    one = torch.ones((), device="cuda")

    def multiply(call):
        a, b = operands[call % len(operands)]
        c = results[call % len(results)]
        if kind == "fp8":
            torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True, out=c)
        else:
            torch.mm(a, b, out=c)

    return measure(multiply, 2e-12 * m * n * k, repeats, seconds)


def copy(size, repeats, seconds):
    each = size // 2 // 4096 * 4096
    memory = torch.zeros(2 * each, dtype=torch.uint8, device="cuda")
    return measure(lambda call: memory[each:].copy_(memory[:each]), 2e-9 * each, repeats, seconds)


def answer(words):
    repeats, seconds = int(words[-2]), float(words[-1])
    try:
        rates = product(words[1], *map(int, words[2:5]), repeats, seconds) if words[0] == "gemm" else copy(int(words[1]), repeats, seconds)
        return "%.6f %.6f" % rates
    except RuntimeError as error:
        return "none: " + str(error).splitlines()[0]
    finally:
        torch.cuda.empty_cache()


for line in sys.stdin:
    print(answer(line.split()), flush=True)
