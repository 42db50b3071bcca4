"""Writes the files of tests/eval/test_eval_llmc.c: a small random GPT-2 as llm.c's train_gpt2.py stores it, and what PyTorch makes of it in float32.

    python tests/golden/llmc.py

llmc/model.bin and model_bf16.bin are models of version 3 and 5; llmc/debug_state.bin has tokens, targets, logits, the loss and all gradients;
llmc/losses.txt the losses before each of ten steps on the batch, with AdamW and gradients clipped to norm 1 as train_gpt2.py does by itself.
llmc/choices.bin has multiple-choice examples as dev/data/data_common.py writes them, choices.txt for each of them the label and the endings' losses.
"""
import os
import random

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llmc")
VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH, SEQUENCES, LENGTH, STEPS, EXAMPLES, ENDINGS = 40, 32, 2, 4, 16, 2, 24, 10, 12, 4
OF_LAYERS = [f"{block}.{kind}" for block in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj") for kind in ("weight", "bias")]


def build():
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, initializer_range=0.2,
                                       attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None,
                                       attn_implementation="eager"))
    for p in model.parameters():
        if p.dim() == 1:
            p.data += torch.randn_like(p) * 0.2
    return model


def stored(tensors):
    """In llm.c's order: matrices as [out, in], the table with rows of zeros up to a multiple of 128."""
    def matrix(name):
        return tensors[name].t() if ".c_" in name and name.endswith("weight") else tensors[name]
    yield torch.cat([tensors["transformer.wte.weight"], torch.zeros(-VOCABULARY % 128, WIDTH)])
    yield tensors["transformer.wpe.weight"]
    for name in OF_LAYERS:
        for layer in range(LAYERS):
            yield matrix(f"transformer.h.{layer}.{name}")
    yield tensors["transformer.ln_f.weight"]
    yield tensors["transformer.ln_f.bias"]


def write(name, header, tensors):
    with open(os.path.join(FOLDER, name), "wb") as file:
        file.write(numpy.array(header + [0] * (256 - len(header)), dtype="<i4").tobytes())
        for tensor in tensors:
            tensor = tensor.detach().contiguous()
            file.write((tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes())


def write_models(model):
    sizes = [CONTEXT, VOCABULARY, LAYERS, HEADS, WIDTH, VOCABULARY + -VOCABULARY % 128]
    weights = list(stored(dict(model.named_parameters())))
    write("model.bin", [20240326, 3] + sizes, weights)
    write("model_bf16.bin", [20240326, 5] + sizes, [tensor.bfloat16() for tensor in weights])


def forward(model, tokens):
    logits = model(tokens[:, :-1], use_cache=False).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def write_state(model, tokens):
    logits, loss = forward(model, tokens)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    write("debug_state.bin", [20240327, 2, SEQUENCES, LENGTH], [tokens[:, :-1].int(), tokens[:, 1:].int(), logits, loss.reshape(1), *stored(gradients)])


def train(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss = forward(model, tokens)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm > 1  # so that clipping shows
        optimizer.step()
        yield loss.item()


def examples():
    """The longest one fills the model's context."""
    source = random.Random(5)
    for index in range(EXAMPLES):
        context = source.randint(1, 20)
        sizes = [context] + [CONTEXT + 1 - context if index == 3 else source.randint(1, 12) for _ in range(ENDINGS)]
        yield source.randrange(ENDINGS), [[source.randrange(VOCABULARY) for _ in range(size)] for size in sizes]


def ending_loss(model, context, ending):
    tokens = torch.tensor([context + ending])
    logits = model(tokens[:, :-1], use_cache=False).logits[0, len(context) - 1:]
    return torch.nn.functional.cross_entropy(logits, tokens[0, len(context):], reduction="sum").item()


@torch.no_grad()
def write_choices(model):
    stream, longest, lines = [], 0, []
    for index, (label, (context, *endings)) in enumerate(examples()):
        texts = [number for text in (context, *endings) for number in [len(text)] + text]
        stream += [65535, 2 * (5 + len(texts)), index, label, ENDINGS] + texts
        longest = max(longest, 2 * (5 + len(texts)))
        lines.append(f"{label} " + " ".join(f"{ending_loss(model, context, ending):.6f}" for ending in endings) + "\n")
    write("choices.bin", [20240522, 1, EXAMPLES, longest], [torch.from_numpy(numpy.array(stream, dtype="<u2").view("<i2"))])
    with open(os.path.join(FOLDER, "choices.txt"), "w") as file:
        file.writelines(lines)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    model = build()
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1))
    write_models(model)
    write_choices(model)
    write_state(model, tokens)
    with open(os.path.join(FOLDER, "losses.txt"), "w") as file:
        file.write(",".join(f"{loss:.7f}" for loss in train(model, tokens)) + "\n")


main()
