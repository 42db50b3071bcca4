"""Writes tests/golden/policy: a small Llama, samples of it with rewards, and what the losses of reinforcement learning make of them, in float64.

    python tests/golden/policy.py        (packages torch, transformers, safetensors)

The losses are written here from their papers; tests/golden/check_policy.py compares them with TRL's. The samples stay the same in all
updates. They are drawn from a changed copy of the model, so that ratios are not 1, and another copy is the reference.

model.safetensors and config.json are the model. In expected.safetensors, tokens [samples, LENGTH] are prompts and samples in groups of
GROUP, -1 behind them; token 0 ends a sample that is not cut; spans [samples, 2] the counts of tokens of the prompt and of the sample; cut [samples]; rewards [samples], NaN if
there is none; old and reference [samples, LIMIT] the log-probabilities of a sample's tokens. Of each case NAME of CASES: NAME/advantages;
the losses before each of STEPS updates by AdamW; metrics [STEPS, 8], sums over tokens in the order of PolicySum; gradient, before the
first update, and weights, after the last one: of all parameters in a row, of which offset/PARAMETER tells the place. NAME/logits/ has
the loss, the metrics and the gradient [rows, WORDS] of logits whose inputs, in logits/, have any advantages and shares. NAME/turns/ has the
loss, the metrics and the square of the gradient's norm if an environment has appended the tokens of appended(). Of ppo, advantages and returns are those
of tokens, [samples, LIMIT]; old_values are the values when the samples were drawn, and value_head is the first head.
"""
import math
import os
import statistics
from fractions import Fraction

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "policy")
STEPS, LR, VALUE_LR, DECAY, GROUP, LENGTH, LIMIT, WORDS = 10, 0.003, 0.01, 0.1, 4, 16, 9, 16
SIZES = dict(vocab_size=WORDS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=12,
             max_position_embeddings=32, initializer_range=0.5, bos_token_id=None, eos_token_id=None, pad_token_id=None,
             rope_parameters=dict(rope_type="default", rope_theta=1e4))
# Rewards of three groups: None is unknown; those of the second are equal, and their sum in fp64 is not three times one.
REWARDS = [1, 0.25, None, 0, 0.1, 0.1, None, 0.1, 0, -0.25, 2, 0.125]
CUT = [7, 10]
# The settings are rl.clip_low, rl.clip_high, rl.clip_dual, rl.kl_coef, rl.entropy, rl.penalty and rl.mask_truncated.
CASES = {
    "grpo": dict(low=0.2, high=0.2, kl=0.1),
    "dr_grpo": dict(low=0.2, high=0.2, entropy=0.02),
    "dapo": dict(low=0.2, high=0.28, dual=1.4, mask_truncated=1),
    "gspo": dict(low=0.02, high=0.03, kl=0.05),
    "cispo": dict(low=0, high=1.2, mask_truncated=1),
    "rloo": dict(low=0.2, high=0.2, entropy=0.01),
    "reinforce_pp": dict(low=0.1, high=0.3, kl=0.2),
    "maxrl": dict(low=0.2, high=0.2),
    "dppo": dict(low=0.02, high=0.03, penalty=0.05),
    "distill": dict(low=0.2, high=0.2),
    "ppo": dict(low=0.1, high=0.2, gamma=0.97, lam=0.9, vf_coef=0.3, cliprange_value=0.1, kl1=0.05, mask_truncated=1),
}
SETTINGS = ("low", "high", "dual", "kl", "entropy", "penalty", "mask_truncated", "gamma", "lam", "vf_coef", "cliprange_value", "kl1")

# -- Losses -------------------------------------------------------------------------------------------------------------


def settings_of(name, **others):
    return dict.fromkeys(SETTINGS, 0) | CASES[name] | others


def k3(d):
    """Schulman's estimate of a divergence from the log ratio of the other distribution to the sampled one."""
    return d.exp() - 1 - d


def ppo(ratio, advantage, s):
    """arXiv 1707.06347, equation 7, to be maximized; arXiv 1912.09729, equation 5, with two bounds."""
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - s["low"], 1 + s["high"]) * advantage)
    return torch.where(advantage < 0, torch.maximum(surrogate, s["dual"] * advantage), surrogate) if s["dual"] else surrogate


def token_clip(logp, old, advantage, s):
    """GRPO, Dr. GRPO, DAPO, REINFORCE++ and MaxRL: the ratio of each token."""
    return ppo((logp - old).exp(), advantage, s)


def gspo(logp, old, advantage, s):
    """arXiv 2507.18071, equations 5 and 7: the geometric mean of the ratios."""
    return ppo((logp - old).mean().exp(), advantage, s)


def rloo(logp, old, advantage, s):
    """arXiv 2402.14740: the whole sample is one action."""
    return ppo((logp.sum() - old.sum()).exp(), advantage, s)


def cispo(logp, old, advantage, s):
    """arXiv 2506.13585, equations 4 and 5, without a lower bound."""
    return (logp - old).exp().clamp(max=s["high"]).detach() * advantage * logp


def dppo(logp, old, advantage, s):
    """arXiv 2602.04879: no gradient where the probability has moved too far in the advantage's direction."""
    change = logp.detach().exp() - old.exp()
    trusted = ~(((advantage > 0) & (change > s["high"])) | ((advantage < 0) & (change < -s["low"])))
    return trusted * (logp - old).exp() * advantage - s["penalty"] * (logp - old) ** 2


OBJECTIVES = {"gspo": gspo, "rloo": rloo, "cispo": cispo, "dppo": dppo}


def entropy_term(logp):
    """The entropy of the drawn tokens, with the gradient of the distribution's: -E[log p grad log p]."""
    through = -logp ** 2 / 2
    return -logp.detach() + through - through.detach()


def clipped(name, logp, old, advantage, s):
    """Where the bounds act: the objective has no gradient, or CISPO's ratio is capped."""
    if name == "cispo":
        return (logp - old).exp() > s["high"]
    if name == "dppo":
        s = s | {"penalty": 0}
    free = logp.detach().clone().requires_grad_()
    objective = OBJECTIVES.get(name, token_clip)(free, old, advantage, s).expand_as(free)
    gradients = [torch.autograd.grad(objective[i], free, retain_graph=True)[0] for i in range(len(free))]
    return torch.tensor([bool(a != 0) and not g.any() for a, g in zip(advantage, gradients)], dtype=torch.bool)


def sample_losses(name, logp, old, reference, advantage, s):
    """The loss of each token of a sample; the same for all if the ratio is the sample's."""
    objective = OBJECTIVES.get(name, token_clip)(logp, old, advantage, s)
    loss = -objective - s["entropy"] * entropy_term(logp)
    return loss + s["kl"] * k3(reference - logp) if s["kl"] else loss


def sample_metrics(name, logp, old, reference, advantage, s):
    logp = logp.detach()
    return torch.stack([torch.tensor(float(len(logp))), -logp.sum(), clipped(name, logp, old, advantage, s).sum(), k3(logp - old).sum(),
                        (logp != old).sum(), k3(reference - logp).sum() if s["kl"] else torch.zeros(())]).double()


def value_losses(values, old, returns, s):
    """Of each token, and where the range bounds it: the code of arXiv 1707.06347 (section 5 has the loss without a range)."""
    bounded = old + (values - old).clamp(-s["cliprange_value"], s["cliprange_value"])
    free, other = (values - returns) ** 2, (bounded - returns) ** 2
    return torch.maximum(free, other) / 2, other > free


def reduce(name, losses, trained):
    """The mean of a loss over samples; a sample that is not trained has an empty list."""
    if name in ("dapo", "cispo", "reinforce_pp", "maxrl", "distill", "ppo"):
        return torch.cat(losses).sum() / max(1, sum(map(len, losses)))
    if name in ("dr_grpo", "dppo"):  # arXiv 2503.20783: a constant divisor
        return torch.cat(losses).sum() / (len(losses) * LIMIT)
    return torch.stack([loss.mean() if of else torch.zeros((), dtype=torch.float64) for loss, of in zip(losses, trained)]).mean()


# -- Advantages ---------------------------------------------------------------------------------------------------------


def advantages_of(name, rewards):
    """Of samples, from exact means; 0 for one without a reward."""
    rewards = [None if r is None else Fraction(r) for r in rewards]
    known = lambda values: [r for r in values if r is not None]
    above = lambda r, among: r - statistics.mean(among)
    scaled = lambda r, among: float(above(r, among)) / (statistics.stdev(among) + 1e-4)
    result = []
    for i, reward in enumerate(rewards):
        first = i // GROUP * GROUP
        group, others = known(rewards[first:first + GROUP]), known(rewards[first:i] + rewards[i + 1:first + GROUP])
        if reward is None or name in ("distill", "ppo"):
            result.append(0.0)
        elif name == "rloo":
            result.append(above(reward, others))
        elif name == "dr_grpo":
            result.append(above(reward, group))
        elif name == "reinforce_pp":
            result.append(scaled(reward, known(rewards)))
        elif name in ("maxrl", "dppo"):  # arXiv 2602.02710, whose rewards are 0 or 1
            result.append(above(reward, group) / statistics.mean(group) if statistics.mean(group) > 0 else 0)
        else:
            result.append(scaled(reward, group))
    return [float(a) for a in result]


def estimates(rewards, values, s):
    """arXiv 1506.02438, equations 11, 12 and 16: an advantage of each step of an episode that ends after the last one."""
    following = torch.cat([values[1:], torch.zeros(1, dtype=values.dtype)])
    errors = rewards + s["gamma"] * following - values
    return torch.stack([sum((s["gamma"] * s["lam"]) ** i * errors[t + i] for i in range(len(errors) - t)) for t in range(len(errors))])


def token_advantages(samples, old_values, rewards, trained, s, turns=False):
    """Of PPO: advantages and returns of the drawn tokens of each sample, a reward of None leaving 0."""
    advantages, returns = [], []
    for (_, ids, old, reference), values, reward in zip(samples, old_values, rewards):
        drawn = [t for t in range(len(ids)) if not turns or t not in appended(ids)]
        step_rewards = -s["kl1"] * (old - reference)[drawn]
        step_rewards[-1] += reward or 0
        advantages.append(estimates(step_rewards, values[drawn], s) if reward is not None else torch.zeros(len(drawn), dtype=torch.float64))
        returns.append(advantages[-1] + values[drawn] if reward is not None else torch.zeros(len(drawn), dtype=torch.float64))
    of = torch.cat([a for a, t in zip(advantages, trained) if t])
    return [(a - of.mean()) / (of.var() + 1e-8).sqrt() if t else a for a, t in zip(advantages, trained)], returns


# -- The model ----------------------------------------------------------------------------------------------------------


def rotate(x):
    """RoPE on [T, heads, D]."""
    length, _, width = x.shape
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 1e4 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def norm(x, gain):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def llama(w, tokens, head="lm_head.weight"):
    """Logits [T, WORDS]; values [T, 1] by the value head."""
    heads, kv_heads, length = SIZES["num_attention_heads"], SIZES["num_key_value_heads"], len(tokens)
    x = w["model.embed_tokens.weight"][tokens]
    above = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
    for layer in range(SIZES["num_hidden_layers"]):
        of = lambda name: w[f"model.layers.{layer}.{name}.weight"]
        h = norm(x, of("input_layernorm"))
        q, k, v = ((h @ of(f"self_attn.{p}_proj").T).view(length, n, -1) for p, n in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        q, k, v = rotate(q), rotate(k).repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1]) + above
        x = x + torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(length, -1) @ of("self_attn.o_proj").T
        h = norm(x, of("post_attention_layernorm"))
        x = x + (torch.nn.functional.silu(h @ of("mlp.gate_proj").T) * (h @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
    return norm(x, w["model.norm.weight"]) @ w[head].T


def log_probabilities(w, prompt, ids, temperature=1.0):
    logits = llama(w, torch.tensor(prompt + ids))[len(prompt) - 1:-1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]


def values_of(w, prompt, ids):
    """Before each token of a sample."""
    return llama(w, torch.tensor(prompt + ids), "value_head.weight")[len(prompt) - 1:-1, 0]


def make_model():
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), dtype=torch.float32, attn_implementation="eager")
    for p in model.parameters():
        if p.dim() == 1:
            p.data += 0.2 * torch.randn_like(p)
    model.save_pretrained(HERE)
    os.remove(os.path.join(HERE, "generation_config.json"))
    weights = {name: p.detach().double() for name, p in model.named_parameters()}
    tokens = torch.randint(0, WORDS, (LENGTH,))
    assert (model(tokens[None]).logits[0] - llama(weights, tokens)).abs().max() < 1e-5
    return weights


# -- Samples ------------------------------------------------------------------------------------------------------------


def changed(weights, seed, size):
    draw = torch.Generator().manual_seed(seed)
    return {name: w + size * torch.randn(w.shape, generator=draw, dtype=torch.float64) * w.std(correction=0) for name, w in weights.items()}


def make_samples(weights):
    """Lists of (prompt, ids, log-probabilities when drawn, log-probabilities in the reference)."""
    draw = torch.Generator().manual_seed(9)
    drawer, reference = changed(weights, 1, 0.1), changed(weights, 2, 0.1)
    samples = []
    for i in range(len(REWARDS)):
        if i % GROUP == 0:
            prompt = torch.randint(0, WORDS, (2 + i // GROUP * 2,), generator=draw).tolist()
        ids, count = [], LIMIT if i in CUT else int(torch.randint(0, LIMIT, (), generator=draw))
        while len(ids) < count:
            p = llama(drawer, torch.tensor(prompt + ids))[-1].softmax(-1)
            ids += (1 + torch.multinomial(p[1:], 1, generator=draw)).tolist()
        ids += [] if i in CUT else [0]
        samples.append((prompt, ids, log_probabilities(drawer, prompt, ids), log_probabilities(reference, prompt, ids)))
    return samples


def appended(ids):
    """Places of a sample's tokens that an environment might have appended."""
    return [t for t in range(len(ids) - 1) if t % 3 == 1]


def batch_loss(name, weights, samples, advantages, trained, s, temperature=1.0, turns=False, values=None):
    """Loss and metrics of all samples; trained[i] says whether sample i is trained. With turns, appended tokens are not. An advantage
    is that of a sample, or of its drawn tokens. `values` has old values and returns of the drawn tokens of each sample."""
    losses, metrics = [], torch.zeros(8, dtype=torch.float64)
    for i, ((prompt, ids, old, reference), advantage, of) in enumerate(zip(samples, advantages, trained)):
        if not of:
            losses.append(torch.zeros(0, dtype=torch.float64))
            continue
        drawn = [t for t in range(len(ids)) if not turns or t not in appended(ids)]
        logp, old, reference = log_probabilities(weights, prompt, ids, temperature)[drawn], old[drawn], reference[drawn]
        tokens = reference - old if name == "distill" else torch.as_tensor(advantage, dtype=torch.float64).expand_as(old)
        losses.append(sample_losses(name, logp, old, reference, tokens, s))
        metrics[:6] += sample_metrics(name, logp, old, reference, tokens, s)
        if values is not None:
            of_values, bounded = value_losses(values_of(weights, prompt, ids)[drawn], *(v[i] for v in values), s)
            losses[-1] = losses[-1] + s["vf_coef"] * of_values
            metrics[6:] += torch.stack([of_values.detach().sum(), bounded.sum().double()])
    return reduce(name, losses, trained), metrics


# -- Results ------------------------------------------------------------------------------------------------------------


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).float()


def open_adamw(weights):
    models = {key: w for key, w in weights.items() if key != "value_head.weight"}.values()
    groups = [{"params": [w for w in models if (w.dim() >= 2) == decays], "weight_decay": DECAY if decays else 0.0} for decays in (True, False)]
    if "value_head.weight" in weights:
        groups.append({"params": [weights["value_head.weight"]], "weight_decay": DECAY, "lr": VALUE_LR})
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)


def make_values(samples, start):
    """The first value head, and the values of samples when they were drawn."""
    draw = torch.Generator().manual_seed(6)
    head = 0.3 * torch.randn(1, SIZES["hidden_size"], generator=draw, dtype=torch.float64)
    drawer = changed(start, 1, 0.1) | {"value_head.weight": head}
    return head, [values_of(drawer, prompt, ids) for prompt, ids, _, _ in samples]


def train(name, start, samples):
    s, losses, metrics, advantages = settings_of(name), [], [], advantages_of(name, REWARDS)
    trained = [reward is not None and not (s["mask_truncated"] and i in CUT) for i, reward in enumerate(REWARDS)]
    extra, values, turns_advantages, turns_values = {}, None, advantages, None
    if name == "ppo":
        head, old_values = make_values(samples, start)
        pad = lambda rows: torch.stack([torch.cat([row, torch.zeros(LIMIT - len(row), dtype=torch.float64)]) for row in rows])
        start = start | {"value_head.weight": head}
        advantages, returns = token_advantages(samples, old_values, REWARDS, trained, s)
        values = (old_values, returns)
        turns_advantages, turns_returns = token_advantages(samples, old_values, REWARDS, trained, s, turns=True)
        turns_values = ([v[[t for t in range(len(v)) if t not in appended(v)]] for v in old_values], turns_returns)
        extra = {"value_head": head.clone(), "old_values": pad(old_values), "returns": pad(returns)}
    weights = {key: torch.nn.Parameter(w.clone()) for key, w in start.items()}
    turns_loss, turns_metrics = batch_loss(name, weights, samples, turns_advantages, trained, s, turns=True, values=turns_values)
    turns_gradient = sum(g.square().sum() for g in torch.autograd.grad(turns_loss, list(weights.values())))
    optimizer = open_adamw(weights)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, sums = batch_loss(name, weights, samples, advantages, trained, s, values=values)
        loss.backward()
        losses.append(loss.detach())
        metrics.append(sums)
        if step == 0:
            gradient = flat(w.grad for w in weights.values())
        optimizer.step()
    metrics = torch.stack(metrics)
    moves = sum(int(a != b) for a, b in zip(metrics[:-1, 2], metrics[1:, 2]))
    print(f"{name:12s} loss {losses[0]:9.6f} to {losses[-1]:9.6f}, clipped {metrics[0, 2]:.0f} to {metrics[-1, 2]:.0f} of {metrics[0, 0]:.0f} tokens")
    assert 0 < metrics[0, 2] < metrics[0, 0] and moves, "the bounds never act"
    if name == "ppo":
        assert 0 < metrics[0, 7] < metrics[0, 0] and metrics[-1, 7] > 0, "the range of values never acts"
        advantages = pad(advantages)
    return extra | {"advantages": torch.as_tensor(advantages, dtype=torch.float64), "losses": torch.stack(losses), "metrics": metrics,
            "gradient": gradient, "weights": flat(weights.values()), "turns/loss": turns_loss.detach().reshape(1), "turns/metrics": turns_metrics,
            "turns/gradient": turns_gradient.reshape(1)}


def make_logits():
    """Rows of three sequences, the first of whose rows belongs to a prompt, with terms of any size."""
    draw = torch.Generator().manual_seed(3)
    bounds = torch.tensor([[0, 7], [7, 10], [10, 19]], dtype=torch.int32)
    rows = int(bounds[-1, 1])
    targets = torch.randint(0, WORDS, (rows,), generator=draw)
    targets[bounds[:, 1].long() - 1] = -1  # no row predicts behind the end
    normal = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)
    logits = 2 * normal(rows, WORDS)
    drawn = logits.log_softmax(-1).gather(1, targets.clamp(min=0)[:, None])[:, 0]
    terms = torch.stack([drawn + 0.4 * normal(rows), drawn + 0.5 * normal(rows), normal(rows), normal(rows).abs()], dim=1)
    terms = torch.cat([terms, normal(rows, 2)], dim=1)
    for first, end in bounds.tolist():
        terms[first:end, 2] *= torch.arange(first, end) != first + 1  # an advantage of 0
    values = terms[:, 5] + 0.5 * normal(rows)
    return {"logits": logits, "targets": targets.int(), "bounds": bounds, "terms": terms, "values": values}


def loss_of_logits(name, inputs):
    s = settings_of(name, dual=1.5, kl=0.3, entropy=0.1, penalty=0.2)
    logits, loss, metrics = inputs["logits"].clone().requires_grad_(), 0, torch.zeros(8, dtype=torch.float64)
    values = inputs["values"].clone().requires_grad_()
    for first, end in inputs["bounds"].tolist():
        rows = [r for r in range(first, end) if inputs["targets"][r] >= 0]
        logp = logits[rows].log_softmax(-1).gather(1, inputs["targets"][rows].long()[:, None])[:, 0]
        old, reference, advantage, share, returns, old_values = inputs["terms"][rows].T
        loss = loss + (share * sample_losses(name, logp, old, reference, advantage, s)).sum()
        metrics[:6] += sample_metrics(name, logp, old, reference, advantage, s)
        if name == "ppo":
            of_values, bounded = value_losses(values[rows], old_values, returns, s)
            loss = loss + s["vf_coef"] * (share * of_values).sum()
            metrics[6:] += torch.stack([of_values.detach().sum(), bounded.sum().double()])
    loss.backward()
    assert name != "ppo" or 0 < metrics[7] < metrics[0]
    of_values = {"logits/values_gradient": values.grad} if name == "ppo" else {}
    return of_values | {"logits/loss": loss.detach().reshape(1), "logits/metrics": metrics, "logits/gradient": logits.grad}


def check_entropy():
    """The mean of entropy_term's gradient over all tokens is that of the entropy."""
    logits = torch.randn(WORDS, dtype=torch.float64, requires_grad=True)
    p = logits.softmax(-1)
    exact = torch.autograd.grad(-(p * p.log()).sum(), logits, retain_graph=True)[0]
    drawn = sum(p[y].item() * torch.autograd.grad(entropy_term(logits.log_softmax(-1)[y]), logits)[0] for y in range(WORDS))
    assert (exact - drawn).abs().max() < 1e-12


def main():
    check_entropy()
    weights = make_model()
    samples, offset = make_samples(weights), 0
    pad = lambda values, length, fill: values + [fill] * (length - len(values))
    expected = {"tokens": torch.tensor([pad(p + ids, LENGTH, -1) for p, ids, _, _ in samples], dtype=torch.int32),
                "spans": torch.tensor([(len(p), len(ids)) for p, ids, _, _ in samples], dtype=torch.int32),
                "cut": torch.tensor([i in CUT for i in range(len(samples))], dtype=torch.int32),
                "rewards": torch.tensor([math.nan if r is None else r for r in REWARDS], dtype=torch.float64),
                "old": torch.tensor([pad(old.tolist(), LIMIT, 0.0) for _, _, old, _ in samples], dtype=torch.float64),
                "reference": torch.tensor([pad(reference.tolist(), LIMIT, 0.0) for _, _, _, reference in samples], dtype=torch.float64)}
    for name, w in weights.items():
        expected["offset/" + name] = torch.tensor([offset], dtype=torch.int32)
        offset += w.numel()
    expected["offset/value_head.weight"] = torch.tensor([offset], dtype=torch.int32)
    inputs = make_logits()
    expected |= {"logits/" + key: value for key, value in inputs.items()}
    for name in CASES:
        results = train(name, weights, samples) | loss_of_logits(name, inputs)
        expected |= {f"{name}/{key}": value for key, value in results.items()}
    save_file({key: value.contiguous() for key, value in expected.items()}, os.path.join(HERE, "expected.safetensors"))


if __name__ == "__main__":
    main()
