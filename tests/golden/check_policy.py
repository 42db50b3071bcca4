"""Compares the losses of tests/golden/policy.py with TRL's: loss, gradients of all parameters, and advantages.

    python tests/golden/check_policy.py        (packages torch, transformers, trl, datasets, safetensors)

TRL's GRPOTrainer and RLOOTrainer score the samples of tests/golden/policy and compute their losses on its model. The log-probabilities
when drawn and of the reference are given to them. TRL computes in fp32.

TRL had a PPOTrainer up to 1.12. If it is there, its own lines, taken from its source, compute advantages, returns, loss and gradients of
random numbers for samples of equal lengths. (It rewards a shorter sample one step after its end.)
"""
import inspect
import os
import tempfile
import textwrap
from types import SimpleNamespace

import torch
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

import policy

# TRL's settings for each loss.
GRPO = {
    "grpo": dict(loss_type="grpo"),
    "dr_grpo": dict(loss_type="dr_grpo", scale_rewards="none"),
    "dapo": dict(loss_type="dapo"),
    "bnpo": dict(loss_type="bnpo"),  # dapo in one microbatch
    "gspo": dict(loss_type="grpo", importance_sampling_level="sequence"),
    "cispo": dict(loss_type="cispo"),
}
SETTINGS = {  # of rl.*
    "plain": dict(low=0.2, high=0.28),
    "dual": dict(low=0.1, high=0.2, dual=1.3),
    "kl": dict(low=0.2, high=0.2, kl=0.3),
    "cut": dict(low=0.2, high=0.2, mask_truncated=1),
}


def make_tokenizer():
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(policy.WORDS)}, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0", pad_token="w0")


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence([row.detach() for row in rows], batch_first=True)


def fixed(trainer_class, samples):
    """A trainer that has generated these samples."""

    class Fixed(trainer_class):
        def _generate(self, prompts):
            asked, drawn, texts = [p for p, _, _, _ in samples], [ids for _, ids, _, _ in samples], [""] * len(samples)
            return (asked, drawn, texts) if trainer_class is RLOOTrainer else (asked, drawn, None, texts, None, {}, None, None)

        def _get_per_token_logps_and_entropies(self, model, *arguments, **named):
            if not torch.is_grad_enabled():  # scoring
                return padded(r if model is self.ref_model else old for _, _, old, r in samples), None, None
            return super()._get_per_token_logps_and_entropies(model, *arguments, **named)

    return Fixed


def open_trainer(trainer_class, config_class, samples, rewards, folder, **settings):
    model = AutoModelForCausalLM.from_pretrained(policy.HERE, dtype=torch.float64, attn_implementation="sdpa")
    count = len(samples)
    config = config_class(output_dir=folder, per_device_train_batch_size=count, num_generations=policy.GROUP, max_completion_length=policy.LIMIT,
                          report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, **settings)
    trainer = fixed(trainer_class, samples)(model=model, reward_funcs=lambda completions, **_: rewards, args=config,
                                            train_dataset=Dataset.from_list([{"prompt": "w1"}] * count), processing_class=make_tokenizer())
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    return trainer


def compare(what, theirs, ours, most):
    difference = float((theirs - ours).norm() / ours.norm().clamp(min=0.1))
    assert difference <= most, f"{what}: {difference:.2g}"
    return difference


def compare_trainer(what, trainer, samples, weights, name, s, rewards, old_name, old):
    inputs = trainer._generate_and_score_completions([{"prompt": "w1"}] * len(samples))
    inputs[old_name] = old
    advantages = torch.tensor(policy.advantages_of(name, rewards), dtype=torch.float64)
    compare(f"{what}: advantages", inputs["advantages"].double(), advantages, 1e-6)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    leaves = {key: w.clone().requires_grad_() for key, w in weights.items()}
    trained = [not (s["mask_truncated"] and i in policy.CUT) for i in range(len(samples))]
    ours, metrics = policy.batch_loss(name, leaves, samples, advantages, trained, s)
    ours.backward()
    differences = [compare(f"{what}: loss", loss.detach(), ours.detach(), 1e-5)]
    differences += [compare(f"{what}: gradient of {key}", p.grad, leaves[key].grad, 1e-5) for key, p in trainer.model.named_parameters()]
    logged = {key: values[-1] for key, values in trainer._metrics["train"].items()}
    print(f"{what:14s} loss {ours.item():10.7f}, largest relative difference {max(differences):.1e}; clipped share {metrics[2] / metrics[0]:.4f}, "
          f"TRL {logged.get('clip_ratio/region_mean', logged.get('cispo_clip_ratio')):.4f}")
    if s["kl"]:
        compare(f"{what}: kl", torch.tensor(logged["kl"]), metrics[5] / metrics[0], 1e-6)


def lines_between(source, first, last):
    lines = source.splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if i > start and last in line)
    return textwrap.dedent("\n".join(lines[start:end + 1]))


def check_ppo():
    try:
        from trl.experimental.ppo import ppo_trainer
    except ImportError:
        print("ppo            not compared: this TRL has no PPOTrainer")
        return
    source, count, length, s = inspect.getsource(ppo_trainer.PPOTrainer.train), 6, 7, policy.settings_of("ppo")
    draw = torch.Generator().manual_seed(2)
    normal = lambda: torch.randn(count, length, generator=draw, dtype=torch.float64)
    old, values, scores = normal(), normal(), normal()[:, 0].clone()
    reference, new, new_values = old + 0.3 * normal(), (old + 0.3 * normal()).requires_grad_(), (values + 0.3 * normal()).requires_grad_()
    none = torch.zeros(count, length, dtype=torch.bool)
    args = SimpleNamespace(kl_estimator="k1", kl_coef=s["kl1"], whiten_rewards=False, gamma=s["gamma"], lam=s["lam"], cliprange_value=s["cliprange_value"],
                           cliprange=s["low"], vf_coef=s["vf_coef"])
    s["high"] = s["low"]  # TRL has one range
    last = torch.full((count,), length - 1)
    theirs = vars(ppo_trainer) | dict(args=args, logprobs=old, ref_logprobs=reference, values=values, scores=scores, responses=none, padding_mask=none,
                                      padding_mask_p1=none, sequence_lengths=last, sequence_lengths_p1=last + 1)
    exec(lines_between(source, "# 4. compute rewards", "advantages = masked_whiten"), theirs)
    rows = slice(0, count)
    theirs |= dict(micro_batch_inds=rows, mb_values=values, mb_return=theirs["returns"], mb_advantage=theirs["advantages"], mb_logprobs=old,
                   new_logprobs=new, vpred=new_values)
    exec(lines_between(source, "vpredclipped = torch.clamp", "loss = pg_loss +"), theirs)
    gradients = torch.autograd.grad(theirs["loss"], [new, new_values])
    samples = [([], [1] * length, old[i], reference[i]) for i in range(count)]
    advantages, returns = policy.token_advantages(samples, values, scores.tolist(), [True] * count, s)
    of_values, bounded = policy.value_losses(new_values, values, torch.stack(returns), s)
    ours = torch.stack([policy.sample_losses("ppo", new[i], old[i], reference[i], advantages[i], s) for i in range(count)]) + s["vf_coef"] * of_values
    ours = policy.reduce("ppo", list(ours), [True] * count)
    pairs = {"advantages": (theirs["advantages"], torch.stack(advantages)), "returns": (theirs["returns"], torch.stack(returns)),
             "loss": (theirs["loss"].detach(), ours.detach()), "bounded values": (theirs["vf_clipfrac"].double(), bounded.double().mean())}
    pairs |= {f"gradient {i}": pair for i, pair in enumerate(zip(gradients, torch.autograd.grad(ours, [new, new_values])))}
    # TRL counts tokens in fp32
    worst = max(compare(f"ppo: {what}", *pair, 1e-12 if what == "returns" else 1e-7) for what, pair in pairs.items())
    print(f"{'ppo':14s} loss {ours.item():10.7f}, largest relative difference {worst:.1e}; bounded values {bounded.double().mean():.4f}")


def main():
    known = [0.75 if r is None else r for r in policy.REWARDS]  # TRL trains a sample without a reward with an advantage of 0
    weights = {key: w.double() for key, w in load_file(os.path.join(policy.HERE, "model.safetensors")).items()}
    samples = policy.make_samples(weights)
    old = padded(old for _, _, old, _ in samples)
    with tempfile.TemporaryDirectory() as folder:
        for name, trl in GRPO.items():
            loss = "dapo" if name == "bnpo" else name
            for title, settings in SETTINGS.items():
                s = dict.fromkeys(policy.SETTINGS, 0) | settings | ({"high": 1.2} if name == "cispo" else {})
                trainer = open_trainer(GRPOTrainer, GRPOConfig, samples, known, folder, epsilon=s["low"], epsilon_high=s["high"],
                                       delta=s["dual"] or None, beta=s["kl"], use_bias_correction_kl=False, mask_truncated_completions=bool(s["mask_truncated"]), **trl)
                compare_trainer(f"{name}, {title}", trainer, samples, weights, loss, s, known, "old_per_token_logps", old)
        for title, beta in (("plain", 0.0), ("kl", 0.3)):
            s = dict.fromkeys(policy.SETTINGS, 0) | SETTINGS["plain"]
            divergences = [float((old - reference).sum()) for _, _, old, reference in samples]  # k1
            rewards = [r - beta * d for r, d in zip(known, divergences)]
            trainer = open_trainer(RLOOTrainer, RLOOConfig, samples, known, folder, epsilon=s["low"], epsilon_high=s["high"], beta=beta,
                                   normalize_advantages=False)
            compare_trainer(f"rloo, {title}", trainer, samples, weights, "rloo", s, rewards, "old_logps", old.sum(1))
    check_ppo()


if __name__ == "__main__":
    main()
