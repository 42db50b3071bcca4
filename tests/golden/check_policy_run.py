"""Repeats runs of `smelt train rl.loss=...` in PyTorch: the samples are smelt's, all else is computed again.

    python tests/golden/check_policy_run.py [SMELT]        (packages torch, safetensors, tokenizers, transformers; SMELT: build/smelt)

Each loss trains the model of tests/golden/policy in fp64 for 12 steps, three to a rollout. From RUN/rollouts come tokens, rewards and log-probabilities.
The losses, the metrics and the last weights must be those that policy.py makes of them.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import policy

STEPS, UPDATES, TEMPERATURE, OVERLONG = 12, 3, 0.8, 3
# Settings of rl.*: names as in policy.SETTINGS; kl1 is the coefficient of rl.kl=reward.
RUNS = {
    "grpo": dict(low=0.02, high=0.03, kl=0.1),
    "dr_grpo": dict(low=0.02, high=0.02, kl1=0.2),
    "dapo": dict(low=0.02, high=0.03, mask_truncated=1),
    "gspo": dict(low=3e-3, high=4e-3, entropy=0.01),
    "cispo": dict(low=0, high=1.02, kl=0.1),
    "rloo": dict(low=0.02, high=0.02, kl1=0.1),
    "reinforce_pp": dict(low=0.02, high=0.02, entropy=0.02),
    "maxrl": dict(low=0.02, high=0.02, dual=1.03),
    "dppo": dict(low=2e-3, high=3e-3, penalty=0.05),
    "distill": dict(low=0.02, high=0.02),
    "ppo": dict(low=0.02, high=0.03, gamma=0.97, lam=0.9, vf_coef=0.3, cliprange_value=0.02, kl1=0.1, mask_truncated=1),
}
OPTIONS = dict(gamma="rl.gamma", lam="rl.lam", vf_coef="rl.vf_coef", cliprange_value="rl.cliprange_value",
               low="rl.clip_low", high="rl.clip_high", dual="rl.clip_dual", kl="rl.kl_coef", entropy="rl.entropy", penalty="rl.penalty")
JUDGE = '''def reward(prompt, completion, completion_ids, **fields):
    return 1 + sum(completion_ids) % 8 / 8
'''


def make_inputs(folder):
    for name in ("config.json", "model.safetensors"):
        os.link(os.path.join(policy.HERE, name), os.path.join(folder, "model", name))
    letters = Tokenizer(models.BPE({chr(ord("a") + i): i for i in range(policy.WORDS)}, []))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters.save(os.path.join(folder, "model", "tokenizer.json"))
    with open(os.path.join(folder, "model", "generation_config.json"), "w") as file:
        json.dump({"eos_token_id": 0}, file)
    draw = torch.Generator().manual_seed(4)
    prompts = [torch.randint(1, policy.WORDS, (1 + i % 5,), generator=draw).tolist() for i in range(24)]
    with open(os.path.join(folder, "prompts.jsonl"), "w") as file:
        file.writelines(json.dumps({"tokens": tokens}) + "\n" for tokens in prompts)
    with open(os.path.join(folder, "judge.py"), "w") as file:
        file.write(JUDGE)
    return prompts


def call(folder, *words):
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def run_smelt(smelt, folder, name, s):
    words = [f"{OPTIONS[key]}={value}" for key, value in s.items() if key in OPTIONS]
    words += [f"rl.kl_coef={s['kl1']}", "rl.kl=reward"] if "kl1" in s else []
    words += ["rl.mask_truncated=true"] if "mask_truncated" in s else []
    words += [f"rl.value_lr={policy.VALUE_LR}"] if name == "ppo" else []
    words += ["rl.reference=teacher"] if name == "distill" else ["rl.reward=python:judge.py", f"rl.overlong={OVERLONG}"]
    call(folder, smelt, "train", f"run={name}", "init=model", "data.train=prompts.jsonl", "precision=fp64", "device=cpu", f"rl.loss={name}", "rl.prompts=6",
                    f"rl.samples={policy.GROUP}", f"rl.updates={UPDATES}", f"rl.tokens={policy.LIMIT}", f"rl.temperature={TEMPERATURE}",
                    f"data.length={policy.LENGTH}", "batch.sequences=2", f"steps={STEPS}", f"optimizer.lr={policy.LR}",
                    f"optimizer.weight_decay={policy.DECAY}", "optimizer.clip=0", "schedule.kind=constant", "schedule.warmup=0", "threads=1",
                    f"checkpoint.every={STEPS}", *words)
    call(folder, smelt, "convert", name, f"{name}-folder")


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def judged(line, s, reference, name):
    """The reward with its penalties; PPO takes the divergence from the reward of each token."""
    count = len(line["ids"])
    penalty = min(1, max(0, count - (policy.LIMIT - OVERLONG)) / OVERLONG)
    divergence = sum(line["logprobs"]) - sum(reference) if "kl1" in s and name != "ppo" else 0
    return (line["reward"] or 0) - penalty - s.get("kl1", 0) * divergence


class Worst:
    def __init__(self):
        self.value = 0.0

    def compare(self, what, ours, theirs, most):
        """`ours` is smelt's."""
        difference = float((torch.as_tensor(ours, dtype=torch.float64) - torch.as_tensor(theirs, dtype=torch.float64)).abs().max())
        assert difference <= most, f"{what}: {difference:.2g}"
        self.value = max(self.value, difference)


def replay(folder, name, given, prompts, start, teacher):
    s, worst = dict.fromkeys(policy.SETTINGS, 0) | given, Worst()
    weights = {key: torch.nn.Parameter(w.clone()) for key, w in start.items()}
    if name == "ppo":
        weights["value_head.weight"] = torch.nn.Parameter(torch.zeros(1, policy.SIZES["hidden_size"], dtype=torch.float64))
    optimizer, values = policy.open_adamw(weights), None
    steps = [r for r in read_lines(os.path.join(folder, name, "metrics.jsonl")) if r["kind"] == "step"]
    assert len(steps) == STEPS
    clipped = 0
    for step, recorded in enumerate(steps):
        if step % UPDATES == 0:
            lines = read_lines(os.path.join(folder, name, "rollouts", f"{step + 1}.jsonl"))
            samples, cut = [], [line["finish"] == "length" for line in lines]
            for line in lines:
                prompt, ids = prompts[line["prompt"] - 1], line["ids"]
                with torch.no_grad():
                    logp = policy.log_probabilities(weights, prompt, ids, TEMPERATURE)
                    reference = policy.log_probabilities(teacher if name == "distill" else start, prompt, ids, TEMPERATURE)
                worst.compare(f"{name}: log-probabilities", line["logprobs"], logp, 1e-9)
                if "reference_logprobs" in line:
                    worst.compare(f"{name}: log-probabilities of the reference", line["reference_logprobs"], reference, 1e-9)
                samples.append((prompt, ids, torch.tensor(line["logprobs"], dtype=torch.float64), reference))
            rewards = [judged(line, given, reference.tolist(), name) for line, (_, _, _, reference) in zip(lines, samples)]
            if name == "ppo":
                with torch.no_grad():
                    values = [policy.values_of(weights, prompt, ids) for prompt, ids, _, _ in samples]
                advantages, returns = policy.token_advantages(samples, values, rewards, [not c for c in cut], s)
                worst.compare(f"{name}: values", sum((line["values"] for line in lines), []), torch.cat(values), 1e-9)
                worst.compare(f"{name}: advantages", sum((line["advantages"] for line in lines), []), torch.cat(advantages), 1e-8)
            elif name == "distill":
                advantages = [0.0] * len(lines)
            else:
                advantages = [line["advantage"] for line in lines]  # whose sign decides what counts as clipped
                worst.compare(f"{name}: advantages", advantages, policy.advantages_of(name, rewards), 1e-8)
        part = slice(step % UPDATES * len(samples) // UPDATES, (step % UPDATES + 1) * len(samples) // UPDATES)
        trained = [not (s["mask_truncated"] and c) for c in cut[part]]
        optimizer.zero_grad()
        of_values = (values[part], returns[part]) if values else None
        loss, metrics = policy.batch_loss(name, weights, samples[part], advantages[part], trained, s, TEMPERATURE, values=of_values)
        (loss + 0 * sum(w.sum() for w in weights.values())).backward()  # a step may train no sample
        worst.compare(f"{name}: loss of step {step + 1}", recorded["loss"], loss.detach(), 1e-8)
        worst.compare(f"{name}: clipped share", recorded["clipped_share"], metrics[2] / metrics[0].clamp(min=1), 1e-8)
        if s["kl"]:
            worst.compare(f"{name}: kl", recorded["kl"], metrics[5] / metrics[0].clamp(min=1), 1e-8)
        for i, key in ((6, "value_loss"), (7, "value_clipped_share")):
            if values:
                worst.compare(f"{name}: {key}", recorded[key], metrics[i] / metrics[0].clamp(min=1), 1e-8)
        clipped += int(metrics[2])
        optimizer.step()
    last = load_file(os.path.join(folder, f"{name}-folder", "model.safetensors"))
    for key, w in weights.items():
        if key == "value_head.weight":  # it is not exported; the values of each rollout depend on it
            continue
        worst.compare(f"{name}: {key}", last[key].double(), w.detach(), 1e-6)
    moved = max(float((weights[key].detach() - w).abs().max()) for key, w in start.items())
    print(f"{name:12s} largest difference {worst.value:.1e}; weights moved by {moved:.3f}; {clipped} tokens clipped")


def main():
    smelt = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/smelt")
    start = {key: w.double() for key, w in load_file(os.path.join(policy.HERE, "model.safetensors")).items()}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        os.mkdir(os.path.join(folder, "model"))
        prompts = make_inputs(folder)
        run_smelt(smelt, folder, "grpo", RUNS["grpo"])
        os.rename(os.path.join(folder, "grpo-folder"), os.path.join(folder, "teacher"))
        teacher = {key: w.double() for key, w in load_file(os.path.join(folder, "teacher", "model.safetensors")).items()}
        shutil.rmtree(os.path.join(folder, "grpo"))
        for name, given in RUNS.items():
            run_smelt(smelt, folder, name, given)
            replay(folder, name, given, prompts, start, teacher)


if __name__ == "__main__":
    main()
