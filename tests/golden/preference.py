"""Writes tests/golden/preference/expected.safetensors: what TRL's DPOTrainer makes of four pairs of answers, in float32.

    python tests/golden/preference.py        (packages torch, transformers, trl, datasets)

The model is that of tests/golden/llama, the reference is the model before the first step. Answers are lists of tokens of a
tokenizer of 64 words; the trainer puts prompt and answer together and adds the token that ends texts, as it does for people.

answers [8, LENGTH] are the tokens of chosen and rejected answers in turn with their prompts, -1 behind them; prompts [4] says how
many tokens are the prompt's. Of each loss LOSS of ten steps with AdamW over the four pairs: LOSS/losses, LOSS/chosen and
LOSS/rejected, the mean rewards, LOSS/accuracies, all before the step; reference [8] the log-probabilities of the reference; and of the
first step of dpo gradient/NAME.
"""
import os
import sys
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, LR, DECAY, BETA, WORDS, LENGTH = 10, 0.003, 0.1, 0.1, 64, 20
LOSSES = {"dpo": "sigmoid", "ipo": "ipo"}


def words(ids):
    return " ".join(f"w{i}" for i in ids)


def make_pairs():
    draw = torch.Generator().manual_seed(7)
    ids = lambda count: torch.randint(1, WORDS, (count,), generator=draw).tolist()
    return [(ids(p), ids(c), ids(r)) for p, c, r in ((5, 7, 4), (3, 2, 9), (8, 10, 10), (1, 1, 6))]


def make_tokenizer():
    words_level = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words_level, eos_token="w0", pad_token="w0")


class Gradients(TrainerCallback):
    def __init__(self):
        self.first = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):
        if self.first is None:
            self.first = {name: p.grad.detach().clone() for name, p in model.named_parameters()}


class Recorder(DPOTrainer):
    losses = ()

    def compute_loss(self, *arguments, **named):
        loss = super().compute_loss(*arguments, **named)
        self.losses = (*self.losses, loss.detach().reshape(()))
        return loss


def load():
    return AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "llama"), dtype=torch.float32, attn_implementation="eager")


def train(loss, pairs, folder):
    model, gradients = load(), Gradients()
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == decays], "weight_decay": DECAY if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    rows = [{"prompt": words(p), "chosen": " " + words(c) + " w0", "rejected": " " + words(r) + " w0"} for p, c, r in pairs]
    settings = DPOConfig(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=len(pairs), logging_steps=1, max_grad_norm=0.0, beta=BETA,
                         loss_type=[loss], report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True)
    trainer = Recorder(model=model, ref_model=load(), args=settings, train_dataset=Dataset.from_list(rows), processing_class=make_tokenizer(),
                       optimizers=(optimizer, schedule), callbacks=[gradients])
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "rewards/chosen" in entry]
    assert len(steps) == STEPS == len(trainer.losses)
    column = lambda name: torch.tensor([entry[name] for entry in steps], dtype=torch.float32)
    return {"losses": torch.stack(trainer.losses), "chosen": column("rewards/chosen"), "rejected": column("rewards/rejected"),
            "accuracies": column("rewards/accuracies")}, gradients.first


def log_probabilities(model, tokens, prompt):
    with torch.no_grad():
        every = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return sum(every[i - 1, tokens[i]] for i in range(prompt, len(tokens)))


def main():
    pairs = make_pairs()
    answers = [prompt + answer + [0] for prompt, *both in pairs for answer in both]
    prompts = [len(prompt) for prompt, _, _ in pairs]
    expected = {"answers": torch.tensor([row + [-1] * (LENGTH - len(row)) for row in answers], dtype=torch.int32),
                "prompts": torch.tensor(prompts, dtype=torch.int32),
                "reference": torch.stack([log_probabilities(load(), row, prompts[i // 2]) for i, row in enumerate(answers)])}
    with tempfile.TemporaryDirectory() as folder:
        for name, loss in LOSSES.items():
            results, gradients = train(loss, pairs, folder)
            expected |= {f"{name}/{key}": value for key, value in results.items()}
            if name == "dpo":
                expected |= {"gradient/" + key: value for key, value in gradients.items()}
            print(name, results, file=sys.stderr)
    os.makedirs(os.path.join(HERE, "preference"), exist_ok=True)
    save_file({key: value.contiguous() for key, value in expected.items()}, os.path.join(HERE, "preference", "expected.safetensors"))


main()
