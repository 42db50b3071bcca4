#!/usr/bin/env python3
"""Reinforcement learning: curves of rewards, and TRL beside smelt.

    bench/rl.py toys --plot docs/rl-curves.svg       two small models, three seeds each, on this machine's CPU
    bench/rl.py task MODEL --steps 60 --device cuda  a chat model learns arithmetic from a numeric reward
    bench/rl.py trl MODEL --steps 60                 the same by TRL with its own generation: needs torch, transformers, trl and datasets
    bench/rl.py task MODEL --text                    reversing words, rewarded by similarity to the answer; trl takes --text too

MODEL is a Hugging Face folder with a chat template. Each prints one line of JSON for each run."""
import argparse
import difflib
import json
import os
import random
import re
import subprocess
import time


def lines(path, records):
    with open(path, "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def train(arguments, run, *settings):
    begin = time.time()
    subprocess.run([arguments.smelt, "train", f"run={run}", "tensorboard=false", f"device={arguments.device}", *settings], check=True,
                   stdout=subprocess.DEVNULL)
    with open(run + "/metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    return [r for r in records if r["kind"] == "step"], [r for r in records if r["kind"] == "evaluation"], time.time() - begin


def summary(name, steps, evaluations, seconds):
    middle = lambda key: sorted(step[key] for step in steps)[len(steps) // 2]
    rewards = [step["reward"] for step in steps]
    tenth = max(1, len(rewards) // 10)
    print(json.dumps({"run": name, "steps": len(steps), "seconds": round(seconds, 1), "step_ms": round(middle("milliseconds"), 1),
                      "generating_ms": round(middle("generating_milliseconds"), 1), "drawn_tokens": round(sum(s["drawn_tokens"] for s in steps) / len(steps)),
                      "mismatch_kl": max(step["mismatch_kl"] or 0 for step in steps), "held_out": [round(e["reward"], 3) for e in evaluations],
                      "rewards": [round(sum(rewards[i:i + tenth]) / len(rewards[i:i + tenth]), 3) for i in range(0, len(rewards), tenth)]}), flush=True)
    return rewards


# -- Toys ----------------------------------------------------------------------------------------------------------------------


def word(draw):
    return "".join(draw.choice("abcdefgh") for _ in range(draw.randint(3, 5)))


def toy_records(kind, count, seed, pretraining):
    """Seven answers in ten of the pretraining are wrong: words copied instead of reversed, random sums."""
    draw = random.Random(f"{kind} {count} {seed}")
    for _ in range(count):
        wrong = pretraining and draw.random() < 0.7
        if kind == "reverse":
            text = word(draw)
            prompt, answer = text, text if wrong else text[::-1]
        else:
            a, b = draw.randrange(7), draw.randrange(7)
            prompt, answer = f"{a}+{b}", str(draw.randrange(13) if wrong else a + b)
        yield {"prompt": prompt + "=", "completion" if pretraining else "answer": answer}


def toys(arguments):
    curves = {}
    for kind, reward in (("reverse", "exact"), ("sums", "last_number")):
        lines("pretrain.jsonl", toy_records(kind, 10000, 1, True))
        lines("prompts.jsonl", toy_records(kind, 1000, 2, False))
        lines("valid.jsonl", toy_records(kind, 64, 3, False))
        train(arguments, kind, "data.train=pretrain.jsonl", "data.packing=best_fit", "data.length=64", "model.layers=2", "model.width=64",
              "model.heads=4", "model.kv_heads=4", "model.ffn=192", "batch.sequences=16", "batch.tokens=1024", "steps=800", "optimizer.lr=3e-3",
              "schedule.warmup=20", "checkpoint.every=800")
        for seed in (1, 2, 3):
            name = f"{kind}-{seed}"
            curves[name] = summary(name, *train(arguments, name, f"init={kind}", "data.train=prompts.jsonl", "data.valid=valid.jsonl", "data.length=64",
                                                "batch.sequences=16", "rl.loss=grpo", f"rl.reward={reward}", "rl.prompts=16", "rl.samples=8", "rl.tokens=8",
                                                "steps=150", "optimizer.lr=1e-3", "optimizer.weight_decay=0", "schedule.warmup=0", "eval.every=150", f"seed={seed}"))
    if arguments.plot:
        plot(arguments.plot, curves)


def plot(path, curves):
    width, height, left, top, bottom = 760, 300, 50, 20, 40
    count = len(next(iter(curves.values())))
    x = lambda step: left + (width - left - 10) * step / (count - 1)
    y = lambda reward: top + (height - top - bottom) * (1 - reward)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts.append(f'<path d="M{left} {y(tick):.1f}H{width - 10}" stroke="#ddd"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for tick in range(0, count + 1, 25):
        parts.append(f'<text x="{x(min(tick, count - 1)):.1f}" y="{height - bottom + 16}" text-anchor="middle">{tick}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">step</text>')
    for name, rewards in curves.items():
        color = "#1f77b4" if name.startswith("reverse") else "#d62728"
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.2" points="{" ".join(f"{x(i):.1f},{y(r):.1f}" for i, r in enumerate(rewards))}"/>')
    for i, (label, color) in enumerate((("reverse words, 3 seeds", "#1f77b4"), ("sums, 3 seeds", "#d62728"))):
        parts.append(f'<text x="{width - 20}" y="{y(0.1) - 16 * i:.1f}" text-anchor="end" fill="{color}">{label}</text>')
    with open(path, "w") as file:
        file.write("\n".join(parts) + "</svg>\n")


# -- A chat model --------------------------------------------------------------------------------------------------------------


def text_records(count, seed):
    draw = random.Random(seed)
    words = "river stone light garden water letter music winter paper bridge silver morning forest window silent yellow".split()
    for _ in range(count):
        text = " ".join(draw.sample(words, draw.randint(1, 3)))
        yield {"messages": [{"role": "user", "content": f"Write this text backwards, letter by letter: {text}"}], "answer": text[::-1]}


def similarity(text, answer):
    return difflib.SequenceMatcher(None, text.strip(), answer).ratio()


def task_records(arguments, count, seed):
    if arguments.text:
        yield from text_records(count, seed)
        return
    draw = random.Random(seed)
    for i in range(count):
        a, b, c = draw.randrange(10, 100), draw.randrange(10, 100), draw.randrange(2, 10)
        question, answer = ((f"{a} + {b}", a + b), (f"{a + b} - {b}", a), (f"{a} * {c}", a * c))[i % 3]
        yield {"messages": [{"role": "user", "content": f"What is {question}? Answer with the number only."}], "answer": str(answer)}


def task(arguments):
    lines("prompts.jsonl", task_records(arguments, 4000, 1))
    lines("valid.jsonl", task_records(arguments, 198, 2))
    with open("similarity.py", "w") as file:
        file.write("import difflib\n\n\ndef reward(completion, answer, **_):\n"
                   "    return difflib.SequenceMatcher(None, completion.strip(), answer).ratio()\n")
    reward = "python:similarity.py" if arguments.text else "last_number"
    for exact in ("true", "false"):
        name = f"task-exact-{exact}"
        summary(name, *train(arguments, name, f"init={arguments.model}", "data.train=prompts.jsonl", "data.valid=valid.jsonl", "rl.loss=dr_grpo",
                             f"rl.reward={reward}", "rl.prompts=16", "rl.samples=8", "rl.slots=128", "rl.tokens=32", "data.length=256", "batch.sequences=32",
                             f"steps={arguments.steps}", f"optimizer.lr={arguments.lr}", "schedule.kind=constant", "schedule.warmup=0",
                             "optimizer.weight_decay=0", f"eval.every={arguments.steps}", f"exact={exact}"))


def trl(arguments):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    number = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
    gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    valid, steps = list(task_records(arguments, 198, 2)), []

    def score(text, answer):
        if arguments.text:
            return similarity(text, answer)
        numbers = number.findall(text)
        return float(bool(numbers) and float(numbers[-1].replace(",", "")) == float(answer))

    def held_out(model):
        tokenizer.padding_side = "left"
        texts = [tokenizer.apply_chat_template(r["messages"], tokenize=False, add_generation_prompt=True) for r in valid]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        with torch.no_grad():
            output = model.eval().generate(**batch, max_new_tokens=32, do_sample=False)[:, batch.input_ids.shape[1]:]
        model.train()
        return round(sum(score(t, r["answer"]) for t, r in zip(tokenizer.batch_decode(output, skip_special_tokens=True), valid)) / len(valid), 3)

    class Steps(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "reward" in logs:
                steps.append({"reward": logs["reward"], "time": time.time(), "drawn_tokens": 128 * logs["completions/mean_length"]})

    config = GRPOConfig(output_dir="trl", max_steps=arguments.steps, per_device_train_batch_size=128, num_generations=8, max_completion_length=32,
                        learning_rate=arguments.lr, lr_scheduler_type="constant", beta=0.0, loss_type="dr_grpo", scale_rewards="none", epsilon=0.2,
                        temperature=1.0, weight_decay=0.0, adam_beta2=0.95, max_grad_norm=1.0, bf16=gpu, use_cpu=not gpu, logging_steps=1,
                        save_strategy="no", report_to=[], seed=1, gradient_checkpointing=False, disable_tqdm=True)
    trainer = GRPOTrainer(model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32), args=config, processing_class=tokenizer,
                          reward_funcs=lambda completions, answer, **_: [score(c[0]["content"], a) for c, a in zip(completions, answer)],
                          train_dataset=Dataset.from_list([{"prompt": r["messages"], "answer": r["answer"]} for r in task_records(arguments, 4000, 1)]), callbacks=[Steps()])
    before, begin = held_out(trainer.model), time.time()
    trainer.train()
    seconds = time.time() - begin
    for step, previous in zip(steps[1:], steps):
        step["milliseconds"] = 1000 * (step["time"] - previous["time"])
    steps[0]["milliseconds"] = steps[1]["milliseconds"]
    summary("trl", [{**s, "generating_milliseconds": 0, "mismatch_kl": 0} for s in steps], [{"reward": before}, {"reward": held_out(trainer.model)}], seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("toys", "task", "trl"))
    parser.add_argument("model", nargs="?", type=os.path.abspath)
    parser.add_argument("--smelt", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/smelt"), type=os.path.abspath)
    parser.add_argument("--folder", default="rl-bench", help="for runs and data, made anew")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=5e-6)
    parser.add_argument("--text", action="store_true", help="the task is to reverse words instead of arithmetic")
    parser.add_argument("--plot", type=os.path.abspath)
    arguments = parser.parse_args()
    if arguments.what != "toys" and not arguments.model:
        parser.error("MODEL is missing")
    os.makedirs(arguments.folder)
    os.chdir(arguments.folder)
    {"toys": toys, "task": task, "trl": trl}[arguments.what](arguments)


if __name__ == "__main__":
    main()
