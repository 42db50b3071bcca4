"""Writes the models of tests/model/test_fp8.c: what PyTorch makes in float32 of small models whose linear layers multiply numbers of its own fp8 types.

    python tests/golden/fp8.py

fp8/FAMILY/config.json and model.safetensors are what save_pretrained writes; expected.safetensors holds tokens, and for each recipe RECIPE/loss and
RECIPE/gradient/NAME. The recipes are those of torchao's float8 training (tensorwise with e5m2 gradients, rowwise and rowwise_with_gw_hp with scales
rounded down to powers of two), DeepSeek-V3's blocks (arXiv 2412.19437, 3.3.2) and MXFP8 with scales rounded up (arXiv 2506.08027), written from their descriptions. Layers of one input are one matrix,
as in smelt: its scale is that of all of them together, and so is that of the gradient of their output.

HEAD/... are those of `tensor` with the head in fp8 too, in models without experts: its logits and both of its gradients have one scale a matrix, and the
gradients of logits are scaled by the largest that they can be, 1 / tokens.

Delayed scaling (Transformer Engine's DelayedScaling, amax_compute_algo="max", with one entry of the history for a step): delayed/tokens are those of
STEPS steps of MICROBATCHES each, delayed/STEP/loss and delayed/STEP/gradient/NAME what each step gives before p -= RATE * gradient.
"""
import collections
import os

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, LENGTH, SIZE, MX_SIZE = 2, 24, 128, 32
STEPS, MICROBATCHES, HISTORY, RATE = 4, 2, 2, 0.125
COMMON = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.15)
FAMILIES = {
    "llama": dict(model_type="llama", intermediate_size=48),
    "qwen2": dict(model_type="qwen2", intermediate_size=48, tie_word_embeddings=True, num_hidden_layers=1),
    "zaya": dict(model_type="zaya", head_dim=8, moe_intermediate_size=16, num_experts=3, router_hidden_size=16),
}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
RECIPES = {  # of x, w, w in d_x, d_y; whether gradients of weights are in fp8
    "tensor": (("tensor", E4M3), ("tensor", E4M3), ("tensor", E4M3), ("tensor", E5M2), True),
    "row": (("line", E4M3), ("line", E4M3), ("line", E4M3), ("line", E4M3), True),
    "row_gw_hp": (("line", E4M3), ("line", E4M3), ("tensor", E4M3), ("line", E4M3), False),
    "block": (("group", E4M3), ("block", E4M3), ("block", E4M3), ("group", E4M3), True),
    "mxfp8": (("mx", E4M3), ("mx", E4M3), ("mx", E4M3), ("mx", E4M3), True),
}


def spread(values, lines, depth, x):
    """One value for each `lines` x `depth` elements of x."""
    return values.repeat_interleave(lines, 0).repeat_interleave(depth, 1)[: x.shape[0], : x.shape[1]]


class Delayed:
    """Histories of largest magnitudes, by what they are of."""

    def __init__(self, target):
        self.first = {E4M3: torch.finfo(E4M3).max, E5M2: torch.finfo(E5M2).max * target}
        self.histories, self.seen = collections.defaultdict(lambda: collections.deque(maxlen=HISTORY)), {}

    def amax(self, key, x, dtype):
        """What x is scaled by; x itself counts from the next step on."""
        self.seen[key] = max(self.seen.get(key, 0.0), x.abs().max().item() if x.numel() else 0.0)
        largest = max(self.histories[key], default=0.0)
        return torch.tensor(largest if largest > 0 else self.first[dtype], dtype=torch.float32)

    def end_step(self):
        for key, largest in self.seen.items():
            self.histories[key].append(largest)
        self.seen = {}


def cast(x, how, amax=None):
    """The numbers that x [lines, k] becomes, by its own largest magnitude unless one is given."""
    scaling, dtype = how
    lines = {"tensor": x.shape[0], "line": 1, "group": 1, "block": SIZE, "mx": 1}[scaling]
    depth = {"group": SIZE, "block": SIZE, "mx": MX_SIZE}.get(scaling, x.shape[1])
    padded = torch.nn.functional.pad(x.abs(), (0, -x.shape[1] % depth, 0, -x.shape[0] % lines))
    if amax is None:
        amax = padded.reshape(padded.shape[0] // lines, lines, padded.shape[1] // depth, depth).amax((1, 3))
    else:
        amax = amax.reshape(1, 1)
    largest = torch.finfo(dtype).max
    scale = (largest / amax.double().clamp(min=1e-12)).float()
    if scaling != "tensor":
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    scale = spread(scale, lines, depth, x)
    return (x * scale).clamp(-largest, largest).to(dtype).float() * scale.reciprocal()


def cast_slots(x, counts, how, amax):
    """What the columns of x [R, D], whose sums run over `counts[e]` rows of expert e each, become: [D, counts[e]] of each. A line that one scale serves
    goes through all experts; groups of elements along it begin anew with each."""
    if how[0] in ("group", "mx"):
        return [cast(part.T, how) if len(part) else part.T for part in x.split(counts)]
    return cast(x.T, how, amax).split(counts, 1)


class Product(torch.autograd.Function):
    """x [R, in] times the transpose of w [out, in], or of w[e] [E, out, in] for `counts[e]` rows of x each."""

    @staticmethod
    def forward(ctx, x, w, recipe, counts, delayed, name):
        of_x, of_w, _, _, _ = RECIPES[recipe]
        ctx.save_for_backward(x, w)
        ctx.recipe, ctx.counts, ctx.delayed, ctx.name = recipe, counts, delayed, name
        ctx.amax_x = delayed and delayed.amax((name, "x"), x, E4M3)
        ctx.amax_w = [delayed and delayed.amax((name, "w", e), matrix, E4M3) for e, matrix in enumerate(w if counts else [w])]
        rows = cast(x, of_x, ctx.amax_x)
        if counts is None:
            return rows @ cast(w, of_w, ctx.amax_w[0]).T
        return torch.cat([part @ cast(matrix, of_w, amax).T for part, matrix, amax in zip(rows.split(counts), w, ctx.amax_w)])

    @staticmethod
    def backward(ctx, d_y):
        x, w = ctx.saved_tensors
        of_x, _, of_w, of_d_y, fp8_weights = RECIPES[ctx.recipe]
        amax_d_y = ctx.delayed and ctx.delayed.amax((ctx.name, "d_y"), d_y, E5M2)
        rows = cast(d_y, of_d_y, amax_d_y)
        if ctx.counts is not None:
            d_x = torch.cat([part @ cast(matrix.T, of_w, amax).T for part, matrix, amax in zip(rows.split(ctx.counts), w, ctx.amax_w)])
            if fp8_weights:
                of_experts = zip(cast_slots(d_y, ctx.counts, of_d_y, amax_d_y), cast_slots(x, ctx.counts, of_x, ctx.amax_x))
                d_w = torch.stack([d @ part.T for d, part in of_experts])
            else:
                d_w = torch.stack([d.T @ part for d, part in zip(d_y.split(ctx.counts), x.split(ctx.counts))])
            return d_x, d_w, None, None, None, None
        d_w = cast(d_y.T, of_d_y, amax_d_y) @ cast(x.T, of_x, ctx.amax_x).T if fp8_weights else d_y.T @ x
        return rows @ cast(w.T, of_w, ctx.amax_w[0]).T, d_w, None, None, None, None


class Head(torch.autograd.Function):
    """Logits of x [R, width] by w [vocabulary, width], whose gradients are at most `most`."""

    @staticmethod
    def forward(ctx, x, w, most):
        ctx.save_for_backward(x, w)
        ctx.most = torch.tensor(most, dtype=torch.float32)
        return cast(x, ("tensor", E4M3)) @ cast(w, ("tensor", E4M3)).T

    @staticmethod
    def backward(ctx, d_y):
        x, w = (cast(t, ("tensor", E4M3)) for t in ctx.saved_tensors)
        rows = cast(d_y, ("tensor", E5M2), ctx.most)
        return rows @ w, rows.T @ x, None


class Stack:
    """Linear layers of one input, computed together when the first of them is."""

    def __init__(self, layers, recipe, delayed):
        self.layers, self.recipe, self.delayed, self.x, self.parts = layers, recipe, delayed, None, None
        for index, layer in enumerate(layers):
            layer.forward = lambda x, index=index: self.part(index, x)

    def part(self, index, x):
        if index == 0:
            self.x = x
            y = Product.apply(x.flatten(0, -2), torch.cat([layer.weight for layer in self.layers]), self.recipe, None, self.delayed, id(self))
            self.parts = [part.view(*x.shape[:-1], -1) for part in y.split([layer.out_features for layer in self.layers], -1)]
        layer = self.layers[index]
        y = self.parts[index] if x is self.x else torch.nn.functional.linear(x, layer.weight)
        return y if layer.bias is None else y + layer.bias


def convert_experts(experts, recipe, delayed):
    def forward(hidden, index, weights):
        index, hidden_rows = index.flatten(), hidden.flatten(0, -2)
        order = torch.argsort(index, stable=True)
        order = order[index[order] < experts.num_experts]
        counts = torch.bincount(index[order], minlength=experts.num_experts).tolist()
        gate, up = Product.apply(hidden_rows[order], experts.gate_up_proj, recipe, counts, delayed, (id(experts), "up")).chunk(2, -1)
        out = Product.apply(experts.act_fn(gate) * up, experts.down_proj, recipe, counts, delayed, (id(experts), "down")) * weights.flatten()[order, None]
        return torch.zeros_like(hidden_rows).index_add(0, order, out).view_as(hidden)
    experts.forward = forward


def convert(model, recipe, delayed=None):
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        if hasattr(attention, "qkv_proj"):
            p = attention.qkv_proj
            Stack([p.q_proj, p.k_proj, p.v_proj_current, p.v_proj_delayed], recipe, delayed)
            convert_experts(mlp.experts, recipe, delayed)
        else:
            Stack([attention.q_proj, attention.k_proj, attention.v_proj], recipe, delayed)
            Stack([mlp.gate_proj, mlp.up_proj], recipe, delayed)
            Stack([mlp.down_proj], recipe, delayed)
        Stack([attention.o_proj], recipe, delayed)


def build(settings):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(COMMON | settings)), dtype=torch.float32, attn_implementation="eager")
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if tensor.dim() == 1 and "inv_freq" not in name:
            tensor.data += torch.randn_like(tensor) * (0.02 if "balancing_biases" in name else 0.2)
        elif tensor.dim() >= 2 and tensor.requires_grad and not tensor.data.any():
            tensor.data = torch.randn_like(tensor) * 0.15
    return model


def loss_of(model, tokens, targets):
    logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / targets


def train_delayed(family, settings):
    """Losses and gradients of steps of gradient descent."""
    targets = MICROBATCHES * SEQUENCES * LENGTH
    model, delayed = build(settings), Delayed(1 / targets)
    convert(model, "tensor", delayed)
    torch.manual_seed(3)
    tokens = torch.randint(0, COMMON["vocab_size"], (STEPS, MICROBATCHES, SEQUENCES, LENGTH + 1))
    expected = {"delayed/tokens": tokens.int()}
    for step in range(STEPS):
        model.zero_grad()
        losses = [loss_of(model, tokens[step, i], targets) for i in range(MICROBATCHES)]
        for loss in losses:
            loss.backward()
        delayed.end_step()
        expected[f"delayed/{step}/loss"] = sum(loss.detach() for loss in losses).reshape(1)
        print(f"{family:8s} step {step} loss {expected[f'delayed/{step}/loss'].item():.6f}")
        for name, p in model.named_parameters():
            expected[f"delayed/{step}/gradient/{name}"] = p.grad.clone()
            p.data -= RATE * p.grad
    return expected


def write(family, settings):
    folder = os.path.join(HERE, "fp8", family)
    build(settings).save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    torch.manual_seed(2)
    tokens = torch.randint(0, COMMON["vocab_size"], (SEQUENCES, LENGTH + 1))
    expected = {"tokens": tokens.int()}
    for recipe in [None, *RECIPES] + ["head"] * (family != "zaya"):
        model = build(settings)
        if recipe:
            convert(model, "tensor" if recipe == "head" else recipe)
        if recipe == "head":
            head = model.lm_head
            head.forward = lambda x: Head.apply(x.flatten(0, 1), head.weight, 1 / (SEQUENCES * LENGTH)).view(*x.shape[:-1], -1)
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        print(f"{family:8s} {recipe or 'none':10s} loss {loss.item():.6f}")
        if recipe:
            expected[f"{recipe}/loss"] = loss.detach().reshape(1)
            expected |= {f"{recipe}/gradient/{name}": p.grad for name, p in model.named_parameters()}
    if family != "llama":
        expected |= train_delayed(family, settings)
    save_file({key: value.contiguous() for key, value in expected.items()}, os.path.join(folder, "expected.safetensors"))


for name, settings in FAMILIES.items():
    write(name, settings)
