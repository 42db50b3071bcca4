#!/usr/bin/env python3
"""Compares greedy texts with penalties with those of transformers, on a small random Llama, and prints a line.

    check_penalties.py SMELT [PROMPTS]

repetition_penalty and logit_bias: RepetitionPenaltyLogitsProcessor and SequenceBiasLogitsProcessor of transformers, in
its generate. Log-probabilities must be those of the model without them, to 1e-4. Needs torch and transformers.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS, VOCABULARY = 24, 200


def texts_of_transformers(model, prompt, penalty, biases):
    bias = {(token,): value for token, value in biases.items()} or None
    with torch.no_grad():
        ids = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=TOKENS, do_sample=False,
                             repetition_penalty=penalty, sequence_bias=bias, eos_token_id=None, pad_token_id=0)
        scores = torch.log_softmax(model(ids).logits[0].double(), dim=-1)
    drawn = ids[0, len(prompt):].tolist()
    return drawn, [scores[len(prompt) + i - 1, token].item() for i, token in enumerate(drawn)]


def main():
    smelt, prompts = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    rng, count, differing, worst = random.Random(1), 0, 0, 0.0
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for penalty in (1.0, 1.3, 0.8):
            biases = {rng.randrange(VOCABULARY): rng.choice([-100.0, 2.5, -3.0]) for _ in range(5)} if penalty != 1.3 else {}
            lines = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))] for _ in range(prompts)]
            with open(folder + "/p.jsonl", "w") as file:
                file.writelines(json.dumps({"tokens": line}) + "\n" for line in lines)
            words = [smelt, "generate", folder, folder + "/p.jsonl", "text=false", "temperature=0", f"tokens={TOKENS}", "precision=fp32", "device=cpu",
                     f"repetition_penalty={penalty}"]
            if biases:
                words.append("logit_bias=" + json.dumps(biases))
            results = [json.loads(line) for line in subprocess.run(words, capture_output=True, check=True, text=True).stdout.splitlines()]
            assert len(results) == prompts
            for line, result in zip(lines, results):
                drawn, scores = texts_of_transformers(model, line, penalty, biases)
                count += 1
                differing += drawn != result["ids"]
                if drawn == result["ids"]:
                    worst = max(worst, max(abs(a - b) for a, b in zip(scores, result["logprobs"])))
    print(f"penalties: {count} texts of {TOKENS} tokens, {differing} differ; log-probabilities within {worst:.1e}")
    return 1 if differing or worst > 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())
