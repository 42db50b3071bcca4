"""Models of random shapes and fields in transformers and in smelt, in float32, from folders that transformers saves:

    python tests/golden/check_shapes.py BUILD [FAMILY [COUNT [FIRST]]]

Each of COUNT shapes (20; numbered from FIRST, which is 0) is drawn by its number. Its folder, in one file, in shards or with stacked experts, goes through `smelt convert` and comes
back bit by bit. `smelt train` takes ten steps of AdamW on one batch of packed documents: the first step's logits, loss and gradients, and the losses of all ten,
are those of transformers; so is the greedy text of `smelt generate`, which has caches. Other bytes in one document change no bit of the others' logits.
A run that stopped in the middle goes on with equal losses. Every fourth shape is trained on several ranks as well, with the losses of one process.

Needs torch and transformers 5. Exits with 1 when something differs by more than the tolerance that stands beside it.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import delta_rule

STEPS, LR, DECAY = 10, 0.002, 0.1
LOGITS, GRADIENT, LOSSES, EXACT = 1e-4, 5e-4, 1e-5, 1e-10  # of the largest logit; of a gradient's norm; of a loss; of a loss in float64
LAYOUTS = [(2, "layout.tp=2"), (2, "layout.pp=2"), (2, "layout.cp=2"), (2, "layout.ep=2"), (2, "layout.zero=3"), (4, "layout.ep=2 layout.pp=2"),
           (4, "layout.tp=2 layout.ep=2 layout.zero=1"), (4, "layout.pp=2 layout.pp_schedule=zero-bubble layout.cp=2"), (4, "layout.ep=4 layout.zero=2"),
           (4, "layout.pp=2 layout.pp_schedule=interleaved layout.zero=1"), (4, "layout.tp=2 layout.pp=2"), (4, "layout.cp=2 layout.ep=2 layout.zero=3")]


def draw_common(draw, heads):
    return dict(vocab_size=draw.randint(257, 400), num_hidden_layers=draw.randint(1, 5), num_attention_heads=heads, max_position_embeddings=128,
                rms_norm_eps=draw.choice([1e-6, 1e-5]), tie_word_embeddings=draw.random() < 0.4, initializer_range=0.15, bos_token_id=None, eos_token_id=None,
                pad_token_id=draw.choice([None, 97]), rope_parameters=draw.choice([
                    dict(rope_type="default", rope_theta=10000.0), dict(rope_type="default", rope_theta=1e6), dict(rope_type="linear", rope_theta=1e4, factor=2.5),
                    dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)]))


def draw_experts(draw):
    """A normalized gate of one expert is 1: its router has only rounding for a gradient, which AdamW would follow."""
    experts = draw.choice([2, 3, 4, 8, 12])
    chosen = draw.randint(1, min(experts, 4))
    return dict(num_experts=experts, num_experts_per_tok=chosen, norm_topk_prob=chosen > 1 and draw.random() < 0.5,
                output_router_logits=draw.random() < 0.5, router_aux_loss_coef=draw.choice([0.001, 0.05]))


def draw_qwen3_moe(draw):
    heads = draw.choice([2, 4, 6])
    settings = draw_common(draw, heads) | draw_experts(draw)
    layers = settings["num_hidden_layers"]
    dense = draw.choice([dict(), dict(), dict(decoder_sparse_step=2), dict(mlp_only_layers=[0]), dict(mlp_only_layers=list(range(1, layers, 2)))])
    if layers == 1 or (layers == 2 and "decoder_sparse_step" in dense and "mlp_only_layers" in dense):
        dense = {}
    return settings | dense | dict(hidden_size=8 * draw.randint(2, 9), head_dim=2 * draw.randint(4, 12), intermediate_size=draw.randint(8, 90),
        moe_intermediate_size=draw.randint(5, 50), num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]),
        use_sliding_window=draw.random() < 0.3, sliding_window=draw.choice([3, 9, 40]), hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_olmoe(draw):
    heads = draw.choice([2, 4, 6])
    return draw_common(draw, heads) | draw_experts(draw) | dict(hidden_size=heads * 2 * draw.randint(2, 9), intermediate_size=draw.randint(5, 50),
        num_key_value_heads=draw.choice([None, *(k for k in (1, 2, 3, 6) if heads % k == 0)]), clip_qkv=draw.choice([None, None, 1.5, 0.7]))


def draw_olmo3(draw):
    heads = draw.choice([2, 4, 6])
    settings = draw_common(draw, heads)
    full, layers = settings["rope_parameters"], settings["num_hidden_layers"]
    period, first, kinds = draw.randint(1, 4), draw.randint(0, 3), draw.sample(["full_attention", "sliding_attention"], 2)
    types = draw.choice([None, ["sliding_attention"] * layers, [kinds[i % period == first] for i in range(layers)]])
    return settings | dict(hidden_size=heads * 4 * draw.randint(2, 6), intermediate_size=draw.randint(8, 90), layer_types=types,
        num_key_value_heads=draw.choice([None, *(k for k in (1, 2, 3, 6) if heads % k == 0)]), sliding_window=draw.choice([1, 3, 9, 40]),
        rope_parameters={"full_attention": full, "sliding_attention": dict(rope_type="default", rope_theta=draw.choice([full["rope_theta"], 5e5]))})


def draw_gpt_oss(draw):
    heads = draw.choice([2, 4, 6])
    settings = draw_common(draw, heads) | draw_experts(draw)
    layers, experts, chosen = settings["num_hidden_layers"], settings.pop("num_experts"), settings["num_experts_per_tok"]
    settings.pop("norm_topk_prob")
    if chosen == 1:  # its gate is 1, and its router has only rounding for a gradient
        experts, settings["num_experts_per_tok"] = experts + 1, 2
    types = draw.choice([None, None, ["full_attention"] * layers, ["sliding_attention"] * layers, ["full_attention" if i % 3 == 1 else "sliding_attention" for i in range(layers)],
                         ["sliding_attention" if i % 3 == 1 else "full_attention" for i in range(layers)]])
    rope = draw.choice([None, settings["rope_parameters"], dict(rope_type="yarn", rope_theta=1.5e5, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                                original_max_position_embeddings=draw.choice([16, 4096]))])
    return settings | dict(num_local_experts=experts, hidden_size=8 * draw.randint(2, 9), head_dim=2 * draw.randint(4, 12), intermediate_size=draw.randint(5, 50),
        num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]), sliding_window=draw.choice([1, 3, 9, 40]), layer_types=types, rope_parameters=rope,
        attention_bias=draw.random() < 0.7, swiglu_limit=draw.choice([7.0, 0.5]), swiglu_alpha=draw.choice([1.702, 1.0]))


def draw_deepseek(draw, family):
    heads, experts, rotated = draw.choice([1, 2, 4, 5]), draw.choice([4, 6, 8, 12]), 2 * draw.randint(1, 8)
    settings = draw_common(draw, heads)
    if settings["rope_parameters"]["rope_type"] == "yarn":
        settings["rope_parameters"] |= draw.choice([{}, dict(mscale_all_dim=0.7), dict(mscale=1.0, mscale_all_dim=1.0), dict(mscale=0.7, mscale_all_dim=1.3)])
    groups = draw.choice([n for n in (1, 2, 3, 4) if experts % n == 0 and experts // n >= 2])
    chosen = draw.randint(1, groups)
    per_token = draw.randint(1, min(4, experts // groups * chosen))
    own = dict(topk_method=draw.choice(["greedy", "group_limited_greedy"])) if family == "deepseek_v2" else dict(
        norm_topk_prob=per_token > 1 and draw.random() < 0.7, rope_interleave=draw.random() < 0.7)
    return settings | own | dict(hidden_size=heads * 4 * draw.randint(3, 12), intermediate_size=draw.randint(8, 90), moe_intermediate_size=draw.randint(5, 50),
        num_key_value_heads=heads, n_routed_experts=experts, num_experts_per_tok=per_token, n_shared_experts=draw.randint(1, 3), n_group=groups, topk_group=chosen,
        routed_scaling_factor=draw.choice([1.0, 2.5, 0.6]), first_k_dense_replace=draw.randint(0, settings["num_hidden_layers"] - 1),
        q_lora_rank=draw.choice([None, draw.randint(4, 40)]), kv_lora_rank=2 * draw.randint(2, 20), qk_nope_head_dim=2 * draw.randint(1, 10), qk_rope_head_dim=rotated,
        v_head_dim=draw.randint(1, 24))


def draw_smollm3(draw):
    heads = draw.choice([2, 4, 6])
    settings = draw_common(draw, heads)
    period = draw.choice([1, 2, 3, 4])
    rotated = draw.choice([None, [int((i + 1) % period != 0) for i in range(settings["num_hidden_layers"])]])
    return settings | dict(hidden_size=heads * 2 * draw.randint(4, 12), intermediate_size=draw.randint(8, 90), no_rope_layers=rotated, no_rope_layer_interval=period,
        num_key_value_heads=draw.choice([None, *(k for k in (1, 2, 3, 6) if heads % k == 0)]), attention_bias=draw.random() < 0.4,
        use_sliding_window=draw.random() < 0.5, sliding_window=draw.choice([None, 1, 3, 9, 40]), hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_phi3(draw):
    heads, pairs = draw.choice([2, 4, 6]), draw.randint(2, 6)
    head_dim = 2 * pairs + draw.choice([0, 2, 4])
    original = draw.choice([16, 32, 4096])
    rope = draw.choice([dict(rope_type="default", rope_theta=1e4), dict(rope_type="longrope", rope_theta=1e4, **draw.choice([{}, dict(factor=4.0)]),
        short_factor=[1 + draw.random() for _ in range(pairs)], long_factor=[1 + 5 * draw.random() for _ in range(pairs)])])
    if "factor" not in rope and rope["rope_type"] == "longrope":
        original = min(original, 32)
    return draw_common(draw, heads) | dict(hidden_size=heads * head_dim, intermediate_size=draw.randint(8, 90), original_max_position_embeddings=original,
        num_key_value_heads=draw.choice([None, *(k for k in (1, 2, 3, 6) if heads % k == 0)]), sliding_window=draw.choice([None, 1, 9, 40]),
        rope_parameters=rope | dict(partial_rotary_factor=2 * pairs / head_dim), hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_granite(draw):
    heads = draw.choice([2, 4, 6])
    return draw_common(draw, heads) | dict(hidden_size=heads * 2 * draw.randint(4, 12), intermediate_size=draw.randint(8, 90),
        num_key_value_heads=draw.choice([None, *(k for k in (1, 2, 3, 6) if heads % k == 0)]), embedding_multiplier=draw.choice([1.0, 12.0, 0.3]),
        residual_multiplier=draw.choice([1.0, 0.22]), attention_multiplier=draw.choice([1.0, 0.1]), logits_scaling=draw.choice([1.0, 8.0, 0.6]),
        attention_bias=draw.random() < 0.4, hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_granitemoe(draw):
    experts = draw_experts(draw)
    experts["num_local_experts"] = experts.pop("num_experts")
    experts.pop("norm_topk_prob")
    experts["num_experts_per_tok"] = max(2, experts["num_experts_per_tok"])  # as in draw_experts
    return draw_granite(draw) | experts


def draw_rotated(draw, head_dim):
    return dict(partial_rotary_factor=2 * draw.randint(1, head_dim // 2) / head_dim)


def draw_glm4_moe(draw):
    settings = draw_deepseek(draw, "deepseek_v3")
    heads, head_dim = draw.choice([2, 4, 6]), 2 * draw.randint(4, 12)
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave"):
        settings.pop(name)
    for name in ("mscale", "mscale_all_dim"):
        settings["rope_parameters"].pop(name, None)
    return settings | dict(num_attention_heads=heads, hidden_size=8 * draw.randint(2, 9), head_dim=head_dim, use_qk_norm=draw.random() < 0.5,
        num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]), attention_bias=draw.random() < 0.5,
        rope_parameters=settings["rope_parameters"] | draw_rotated(draw, head_dim), hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_minimax_m2(draw):
    heads, head_dim = draw.choice([2, 4, 6]), 2 * draw.randint(4, 12)
    settings, experts = draw_common(draw, heads), draw_experts(draw)
    return settings | dict(hidden_size=8 * draw.randint(2, 9), head_dim=head_dim, intermediate_size=draw.randint(5, 50), num_local_experts=max(3, experts["num_experts"]),
        num_experts_per_tok=max(2, experts["num_experts_per_tok"]), num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]),
        rope_parameters=settings["rope_parameters"] | draw_rotated(draw, head_dim), hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_glm4_moe_lite(draw):
    settings = draw_deepseek(draw, "deepseek_v3")
    dense = settings.pop("first_k_dense_replace")
    return settings | dict(mlp_layer_types=draw.choice([["dense"] * dense + ["sparse"] * (settings["num_hidden_layers"] - dense)] + [None] * (settings["num_hidden_layers"] > 1)))


def draw_ministral3(draw):
    heads = draw.choice([2, 4, 6])
    rope = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=draw.choice([4, 16, 32]), llama_4_scaling_beta=draw.choice([0.1, 0.5]),
                **draw.choice([{}, dict(mscale=1.0, mscale_all_dim=1.0)]))
    return draw_common(draw, heads) | dict(hidden_size=8 * draw.randint(2, 9), head_dim=2 * draw.randint(4, 12), intermediate_size=draw.randint(8, 90),
        num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]), sliding_window=draw.choice([None, 1, 9, 40]), rope_parameters=rope,
        pad_token_id=97, hidden_act=draw.choice(["silu", "silu", "gelu_pytorch_tanh"]))


def draw_qwen3_5(draw):
    """A small epsilon of the norm after the rule would multiply rounding errors by up to a thousand."""
    heads, key_heads, layers = draw.choice([2, 4, 6]), draw.choice([1, 2, 3]), draw.randint(1, 5)
    kinds = ["linear_attention", "full_attention"]
    period = draw.choice([1, 2, 3, 4, 9])
    rope = draw.choice([dict(rope_type="default", rope_theta=1e4), dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)])
    return draw_common(draw, heads) | dict(num_hidden_layers=layers, hidden_size=8 * draw.randint(2, 9), head_dim=8 * draw.randint(1, 4), intermediate_size=draw.randint(8, 90),
        num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]), linear_num_key_heads=key_heads, linear_num_value_heads=key_heads * draw.choice([1, 2, 3]),
        linear_key_head_dim=draw.randint(2, 20), linear_value_head_dim=draw.randint(2, 20), linear_conv_kernel_dim=draw.choice([2, 4, 4, 5]),
        layer_types=[kinds[(i + 1) % period == 0] for i in range(layers)], rms_norm_eps=draw.choice([1e-4, 1e-3]), rope_parameters=rope | dict(partial_rotary_factor=draw.choice([0.25, 0.5, 1.0])))


def draw_qwen3_5_moe(draw):
    settings, experts = draw_qwen3_5(draw), draw_experts(draw)
    width = draw.randint(5, 50)
    return settings | experts | dict(num_experts_per_tok=2, moe_intermediate_size=width, shared_expert_intermediate_size=width * draw.choice([1, 2]))


def draw_qwen3_next(draw):
    settings = draw_qwen3_5_moe(draw)
    layers = settings["num_hidden_layers"]
    dense = draw.choice([{}, {}, dict(decoder_sparse_step=2), dict(mlp_only_layers=[0]), dict(mlp_only_layers=list(range(1, layers, 2)))])
    return settings | (dense if layers > 1 else {})


def draw_gemma2(draw):
    settings, rope = draw_gemma3(draw), draw_common(draw, 2)["rope_parameters"]
    return settings | dict(rope_parameters=rope, attn_logit_softcapping=draw.choice([None, 50.0, 1.5]),
        final_logit_softcapping=draw.choice([None, 30.0, 2.0]))


def draw_gemma3(draw):
    """transformers demands that heads divide the width, which is one of the kernels' of norms after blocks."""
    heads = draw.choice([2, 4, 6])
    settings, head_dim = draw_olmo3(draw), 2 * draw.randint(4, 12)
    return settings | dict(num_attention_heads=heads, hidden_size=heads * 4 * draw.randint(2, 6), head_dim=head_dim,
        num_key_value_heads=draw.choice([k for k in (1, 2, 3, 6) if heads % k == 0]), query_pre_attn_scalar=draw.choice([head_dim, 256, 17]),
        hidden_activation=draw.choice(["gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu"]))


FAMILIES = {"deepseek_v2": lambda draw: draw_deepseek(draw, "deepseek_v2"), "deepseek_v3": lambda draw: draw_deepseek(draw, "deepseek_v3"), "gpt_oss": draw_gpt_oss, "qwen3_moe": draw_qwen3_moe, "olmoe": draw_olmoe, "olmo3": draw_olmo3, "gemma2": draw_gemma2, "gemma3_text": draw_gemma3, "smollm3": draw_smollm3, "phi3": draw_phi3, "granite": draw_granite, "granitemoe": draw_granitemoe, "glm4_moe": draw_glm4_moe, "minimax_m2": draw_minimax_m2, "glm4_moe_lite": draw_glm4_moe_lite, "ministral3": draw_ministral3, "qwen3_5_text": draw_qwen3_5, "qwen3_5_moe_text": draw_qwen3_5_moe, "qwen3_next": draw_qwen3_next}


def smelt(build, *arguments):
    result = subprocess.run([os.path.join(build, "smelt"), *arguments], capture_output=True)
    if result.returncode:
        raise SystemExit(f"smelt {' '.join(arguments)}: {result.stderr.decode()}")
    return result.stdout.decode()


def make_model(family, settings, number):
    torch.manual_seed(number)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings), dtype=torch.float32, attn_implementation="eager", **(dict(experts_implementation="eager") if "num_experts_per_tok" in settings else {}))
    for name, p in model.named_parameters():
        if p.dim() == 1 or name.endswith("_bias"):
            p.data += torch.randn_like(p) * 0.2
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data += torch.randn_like(buffer) * 0.1
    if model.config.pad_token_id is not None:  # its row starts as zeros, for which all experts tie
        model.get_input_embeddings().weight.data[model.config.pad_token_id].normal_(std=0.15)
    return model.eval()


def stored(folder):
    tensors = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            tensors |= load_file(os.path.join(folder, name))
    return tensors


def check_round_trip(build, model, folder, copy):
    """Whatever the folder's files and layout, the copy has the tensors of save_pretrained's own layout."""
    smelt(build, "convert", folder, copy, "tokenizer=none")
    model.save_pretrained(copy + "-plain")
    theirs, ours = stored(copy + "-plain"), stored(copy)
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs), "tensors changed in a copy"
    configs = [json.load(open(os.path.join(f, "config.json"))) for f in (folder, copy)]
    assert configs[0] == configs[1], "config.json changed in a copy"


class Batch:
    """A batch as smelt packs it: documents of random letters, a separator after each."""

    def __init__(self, draw, folder, length, sequences):
        self.length, self.sequences, self.microbatch = length, sequences, sequences
        self.path, self.folder = os.path.join(folder, "text"), folder
        left, self.documents = length * sequences + 1, []  # a line feed and a separator end each document
        while left > 0:
            size = draw.randint(1, 2 * length + 2)
            size = left - 2 if size + 5 > left else size
            self.documents.append(bytes(draw.choices(range(97, 123), k=size)))
            left -= size + 2
        self.write(self.documents)

    def write(self, documents):
        with open(self.path, "wb") as file:
            file.write(b"\n%\n".join(documents) + b"\n")

    def settings(self):
        return ["data.train=" + self.path, "data.tokenizer=bytes", "data.valid_fraction=0", "data.separator=%", f"data.length={self.length}", f"batch.sequences={self.microbatch}",
                f"batch.tokens={self.length * self.sequences}"]


def train(build, model, run, batch, *more, ranks=0, precision="fp32"):
    """Returns the reason when smelt refuses the layout."""
    launch = ["launch", "-n", str(ranks), "--"] if ranks else []
    arguments = [*launch, "train", "init=" + model, "run=" + run, *batch.settings(), "precision=" + precision, "device=cpu", f"steps={STEPS}", f"optimizer.lr={LR}",
                 f"optimizer.weight_decay={DECAY}", "optimizer.balance_lr=0", "optimizer.clip=0", "schedule.kind=constant", "schedule.warmup=0", "eval.every=0",
                 "tensorboard=false", *more]
    result = subprocess.run([os.path.join(build, "smelt"), *arguments], capture_output=True, env=os.environ | ({"OMP_NUM_THREADS": "1"} if ranks else {}))
    reason = result.stderr.decode()
    if result.returncode and not (ranks and "layout." in reason and "; set layout." in reason):
        raise SystemExit(f"smelt {' '.join(arguments)}: {reason}")
    return reason if result.returncode else None


def losses(run):
    records = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    steps = {record["step"]: record["loss"] for record in records if record["kind"] == "step"}
    return [steps[step] for step in sorted(steps)]


def read_dump(folder):
    with safe_open(os.path.join(folder, "step.safetensors"), "pt") as file:
        step = {name: file.get_tensor(name) for name in file.keys()}
    return step, load_file(os.path.join(folder, "gradients.safetensors"))


def choose_factors(model, batch):
    """smelt chooses longrope's factors by the length of sequences, transformers by the largest position within a document."""
    rotary = getattr(model.model, "rotary_emb", None)
    if getattr(rotary, "rope_type", None) == "longrope" and batch.length > model.config.original_max_position_embeddings:
        rotary(torch.zeros(1), torch.zeros((1, 1), dtype=torch.long))  # which makes long_inv_freq
        rotary.original_inv_freq.copy_(rotary.long_inv_freq)


def run_documents(model, tokens, positions, **options):
    """Layers with states have no masks: each document by itself, in the form of the whole batch. Sequences cut documents."""
    rows, router = [], []
    for sequence in range(len(tokens)):
        begins = [0] + [at for at in range(1, tokens.shape[1]) if positions[sequence, at] == 0] + [tokens.shape[1]]
        for begin, end in zip(begins, begins[1:]):
            part = slice(begin, end)
            out = model.model(tokens[sequence:sequence + 1, part], position_ids=positions[sequence:sequence + 1, part], use_cache=False, **options)
            rows.append(out.last_hidden_state[0])
            router.append(getattr(out, "router_logits", None) or ())
    return torch.cat(rows).view(*tokens.shape, -1), [torch.cat(layer) for layer in zip(*router)]


def run_theirs(model, step, batch):
    """Logits, cross-entropy and the router's weighted loss of the packed batch: tokens attend within their document and the window."""
    shape = (batch.sequences, batch.length)
    choose_factors(model, batch)
    tokens, targets, positions = (step[name].view(shape).long() for name in ("tokens", "targets", "positions"))
    at = torch.arange(batch.length)
    starts = at - positions
    seen = (at[None, :, None] >= at[None, None, :]) & (starts[:, :, None] == starts[:, None, :])
    near, least = at[None, :, None] - at[None, None, :] < (getattr(model.config, "sliding_window", None) or batch.length), torch.finfo(torch.float32).min
    mask, full = (torch.where(rows[:, None], 0.0, least) for rows in (seen & near, seen))
    experts = hasattr(model.config, "router_aux_loss_coef")
    if model.config.model_type in ("olmo3", "gpt_oss", "gemma2", "gemma3_text", "smollm3"):
        mask = {"sliding_attention": mask, "full_attention": full}
    options = dict(output_router_logits=True) if experts else {}
    if model.config.model_type.startswith(("qwen3_5", "qwen3_next")):
        hidden, router = run_documents(model, tokens, positions, **options)
    else:
        out = model.model(tokens, attention_mask=mask, position_ids=positions, use_cache=False, **options)
        hidden, router = out.last_hidden_state, getattr(out, "router_logits", None)
    experts_of = getattr(model.config, "num_local_experts", None) or getattr(model.config, "num_experts", None)
    logits, cap = model.lm_head(hidden).flatten(0, 1), getattr(model.config, "final_logit_softcapping", None)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    logits = logits / getattr(model.config, "logits_scaling", 1)
    cross = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1)
    balance = torch.zeros(())
    if experts and model.config.output_router_logits:
        balance = model.config.router_aux_loss_coef * load_balancing_loss_func(tuple(router), experts_of, model.config.num_experts_per_tok)
    return logits, cross, balance


def relative(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm().clamp_min(1e-12)).item()


def check_first_step(model, step, gradients, batch):
    logits, cross, balance = run_theirs(model, step, batch)
    model.zero_grad()
    (cross + balance).backward()
    worst = {"logits": ((step["logits"] - logits).abs().max() / logits.abs().max()).item(),
             "loss": abs(step["loss"][0] - cross).item(), "gradient": 0.0}
    names = dict(model.named_parameters())
    whole = torch.sqrt(sum(p.grad.square().sum() for p in names.values() if p.grad is not None)).item()
    for name, p in names.items():
        theirs = p.grad if p.grad is not None else torch.zeros_like(p)
        if theirs.norm() < 1e-6 * whole:  # nothing but rounding
            assert gradients[name].norm() < 1e-5 * whole, name
            continue
        worst["gradient"] = max(worst["gradient"], relative(gradients[name], theirs))
    assert worst["logits"] < LOGITS and worst["gradient"] < GRADIENT and worst["loss"] < LOSSES, worst
    return worst


def steps_of(model, step, batch):
    tables = [p for name, p in model.named_parameters() if p.dim() >= 2 and not name.endswith("_bias")]
    vectors = [p for name, p in model.named_parameters() if p.dim() < 2 or name.endswith("_bias")]
    adamw = torch.optim.AdamW([dict(params=tables, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    found = []
    for _ in range(STEPS):
        _, cross, balance = run_theirs(model, step, batch)
        found.append(cross.item())
        adamw.zero_grad()
        (cross + balance).backward()
        adamw.step()
    return found


def check_steps(build, folder, family, settings, number, step, batch, ours):
    """Rounding grows from step to step, through choices of experts and bounds of clip_qkv: where transformers is further than LOSSES from its own losses in
    float64, smelt may be twice as far from them. Where smelt is further still, its own losses in float64 decide."""
    exact, theirs = (steps_of(make_model(family, settings, number).to(dtype), step, batch) for dtype in (torch.float64, torch.float32))
    off, far = (max(abs(a - b) / b for a, b in zip(found, exact)) for found in (ours, theirs))
    if off >= max(LOSSES, 2 * far):
        run = os.path.join(batch.folder, "run-fp64")
        train(build, folder, run, batch, "precision=fp64")
        off = max(abs(a - b) / b for a, b in zip(losses(run), exact))
    assert len(ours) == STEPS and off < max(LOSSES, 2 * far), ("losses", off, far)
    return off


@torch.no_grad()
def check_greedy(build, folder, model, draw):
    ids = draw.choices(range(97, 123), k=draw.choice([1, 5, 17]))
    cache = [] if (model.config.rope_parameters or {}).get("rope_type") != "longrope" else ["cache=false"]  # docs/formats.md
    ours = [int(token) for token in smelt(build, "generate", folder, " ".join(map(str, ids)), "text=false", "tokens=24", "temperature=0", "device=cpu", *cache).split()]
    theirs = list(ids)
    for _ in range(24):
        theirs.append(model(torch.tensor([theirs]), use_cache=False).logits[0, -1].argmax().item())
    assert ours == theirs, (ours, theirs)


def check_documents(build, folder, batch, step):
    """Other letters in the longest document change no bit of the logits of others."""
    longest = max(range(len(batch.documents)), key=lambda i: len(batch.documents[i]))
    other = list(batch.documents)
    other[longest] = bytes(219 - letter for letter in other[longest])
    batch.write(other)
    train(build, folder, os.path.join(batch.folder, "run-other"), batch, "dump=" + os.path.join(batch.folder, "dump-other"), "stop_at=1")
    batch.write(batch.documents)
    changed, _ = read_dump(os.path.join(batch.folder, "dump-other"))
    begins = (step["positions"] == 0).int()
    begins.view(batch.sequences, -1)[:, 0] = 1
    document = begins.cumsum(0) - 1
    touched = set(document[step["tokens"] != changed["tokens"]].tolist())
    kept = torch.tensor([number not in touched for number in document.tolist()])
    assert touched and torch.equal(step["logits"][kept], changed["logits"][kept]), "documents are not isolated"
    return int(kept.sum())


def check_resumed(build, folder, batch, whole):
    run = os.path.join(batch.folder, "run-parts")
    train(build, folder, run, batch, f"stop_at={STEPS // 2}")
    train(build, folder, run, batch)
    assert losses(run) == whole, "a run that went on has other losses"


def check_layouts(build, folder, draw, scratch):
    """A random layout that the model has, on four microbatches. If rounding changes a choice of experts or crosses a bound, the losses in float64 decide."""
    batch = Batch(draw, scratch, draw.choice([16, 32, 48]), 4)
    batch.microbatch = 1
    one, several = os.path.join(scratch, "run-one"), os.path.join(scratch, "run-several")
    train(build, folder, one, batch)
    for ranks, layout in draw.sample(LAYOUTS, len(LAYOUTS)):
        if not train(build, folder, several, batch, *layout.split(), ranks=ranks):
            worst = max(abs(a - b) / b for a, b in zip(losses(several), losses(one)))
            if worst >= LOSSES:
                exact = [os.path.join(scratch, name) for name in ("run-one-exact", "run-several-exact")]
                train(build, folder, exact[0], batch, precision="fp64")
                train(build, folder, exact[1], batch, *layout.split(), ranks=ranks, precision="fp64")
                worst = max(abs(a - b) / b for a, b in zip(losses(exact[1]), losses(exact[0])))
                assert worst < EXACT, (layout, worst)
            return f"  {layout}: {worst:.1e}"
    return "  no layout"


def check(build, family, number):
    draw = random.Random(f"{family} {number}")
    settings = FAMILIES[family](draw)
    with tempfile.TemporaryDirectory() as scratch:
        model, folder, run = make_model(family, settings, number), os.path.join(scratch, "model"), os.path.join(scratch, "run")
        model.save_pretrained(folder, **draw.choice([{}, dict(max_shard_size="20KB"), dict(save_original_format=False)]))
        check_round_trip(build, model, folder, os.path.join(scratch, "copy"))
        batch = Batch(draw, scratch, draw.choice([1, 7, 16, 33, 48, 65]), draw.choice([2, 4]))
        train(build, folder, run, batch, "dump=" + os.path.join(scratch, "dump"))
        train(build, folder, run, batch)
        step, gradients = read_dump(os.path.join(scratch, "dump"))
        check_greedy(build, folder, model, draw)
        kept = check_documents(build, folder, batch, step)
        check_resumed(build, folder, batch, losses(run))
        worst = check_first_step(model, step, gradients, batch)
        steps = check_steps(build, folder, family, settings, number, step, batch, losses(run))
        layout = check_layouts(build, folder, draw, scratch) if number % 4 == 0 else ""
        print(f"{family} {number:2d}: {batch.sequences} x {batch.length:2d} tokens, {kept:3d} rows kept  logits {worst['logits']:.1e}  loss {worst['loss']:.1e}  "
              f"gradients {worst['gradient']:.1e}  ten steps {steps:.1e}{layout}", flush=True)


def main():
    build, families = sys.argv[1], [sys.argv[2]] if len(sys.argv) > 2 else FAMILIES
    count, first = (int(sys.argv[3]) if len(sys.argv) > 3 else 20), (int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    for family in families:
        if family.startswith(("qwen3_5", "qwen3_next")):
            delta_rule.widen(family)
        for number in range(first, first + count):
            check(build, family, number)


main()
