"""Writes optim.h: what torch.optim.AdamW, torch.optim.Muon and lion_pytorch.Lion (PyPI: lion-pytorch) make of small matrices in 10 steps.

    python tests/golden/optim.py > tests/golden/optim.h

Parameters and gradients follow from an exact formula that tests/optim/test_optim.c repeats, so only results are stored. Everything is in float64; Muon
orthogonalises in bfloat16, and once more in float64, by giving its module float64 under the name bfloat16, to check the formula itself.
"""
import torch
from lion_pytorch import Lion

STEPS, LR, DECAY, MOMENTUM = 10, 0.02, 0.1, 0.95


def values(step, count):
    x = torch.arange(count, dtype=torch.int64) + 40 * step
    return ((x * x * 17 + x * 29 + 11) % 1009 - 504).double() / 256


def run(make, rows, columns):
    parameter = torch.nn.Parameter(values(0, rows * columns).view(rows, columns))
    optimizer = make([parameter])
    for step in range(1, STEPS + 1):
        parameter.grad = values(step, rows * columns).view(rows, columns)
        optimizer.step()
    return parameter.detach().flatten().tolist()


def run_projections(make, stack, projections, columns):
    """The projections in each matrix of a stack, with their counts of rows. Each projection is a parameter of its own."""
    rows = sum(projections)
    whole = values(0, stack * rows * columns).view(stack * rows, columns)
    cuts = list(projections) * stack
    parts = [torch.nn.Parameter(part.clone()) for part in whole.split(cuts)]
    optimizer = make(parts)
    for step in range(1, STEPS + 1):
        for part, gradient in zip(parts, values(step, stack * rows * columns).view(stack * rows, columns).split(cuts)):
            part.grad = gradient.clone()
        optimizer.step()
    return torch.cat([part.detach() for part in parts]).flatten().tolist()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)


def lion(parameters):
    return Lion(parameters, lr=LR, betas=(0.9, 0.95), weight_decay=DECAY)


def muon(parameters):
    return torch.optim.Muon(parameters, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=True, adjust_lr_fn="match_rms_adamw")


def write(name, numbers):
    print(f"static const double golden_{name}[] = {{")
    for i in range(0, len(numbers), 5):
        print("    " + " ".join(f"{x:.15g}," for x in numbers[i:i + 5]))
    print("};")


print(f"/* Made by tests/golden/optim.py with PyTorch {torch.__version__.split('+')[0]}: parameters after {STEPS} steps, row-major. */")
write("adamw", run(adamw, 8, 5))  # element by element, so of either shape
write("lion", run(lion, 8, 5))
for rows, columns in (8, 5), (5, 8):
    shape = f"{rows}x{columns}"
    write("muon_bf16_" + shape, run(muon, rows, columns))
    bfloat16 = torch.bfloat16
    torch.bfloat16 = torch.float64
    write("muon_fp64_" + shape, run(muon, rows, columns))
    torch.bfloat16 = bfloat16
write("muon_bf16_projections", run_projections(muon, 2, (8, 4), 5))
torch.bfloat16 = torch.float64
write("muon_fp64_projections", run_projections(muon, 2, (8, 4), 5))
torch.bfloat16 = bfloat16
