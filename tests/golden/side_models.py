"""Folders of models, adapters and data sets as transformers, TRL, PEFT and datasets save them: MODELS holds a function for each model or adapter, which fills
FOLDER and, for adapters, BASE; DATA one for each data set. Used by check_side_files.py.

A model counts: after token t its most likely token is t + 1, so that its stop tokens show in what it generates."""
import json
import os

import datasets
import peft
import torch
import transformers
import trl

from side_folders import CHAT, TEMPLATE, fast, write

MODELS, REFUSED, DATA = {}, set(), {}  # REFUSED: smelt may refuse them
WORDS, WIDTH = 320, 64


def counting(generation=None, rows=WORDS + 8, tied=False, **config):
    torch.manual_seed(1)
    settings = dict(vocab_size=rows, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=128, tie_word_embeddings=tied,
                    pad_token_id=None, bos_token_id=None, eos_token_id=2)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**settings, **config}))
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    count(model)
    if generation is not None:
        model.generation_config = transformers.GenerationConfig(**generation)
    return model


def count(model):
    """Gives the head of a model, which may have grown, the rows that count."""
    with torch.no_grad():
        table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        table.copy_(torch.nn.functional.normalize(torch.randn(table.shape, generator=torch.Generator().manual_seed(7)), dim=1))
        if head is not table:
            head[1:] = 8 * table[:-1]
            head[0] = 8 * table[-1]


def chat_tokenizer(**settings):
    tokenizer = fast(**{"pad_token": "<|endoftext|>", **settings})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def made(optional=False):
    def add(function):
        MODELS[function.__name__] = function
        if optional:
            REFUSED.add(function.__name__)
        return function
    return add


def whole(name, generation=None, tokenizer=chat_tokenizer, optional=False, files=None, **config):
    def make(folder, base):
        counting(generation, **config).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        for file, content in (files or {}).items():
            os.remove(os.path.join(folder, file)) if content is None else write(folder, file, content)
    make.__name__ = name
    made(optional)(make)


# -- Settings of generation ----------------------------------------------------------------------------------------------------------------

whole("ends_of_config", eos_token_id=[2, 305])
whole("ends_of_config_alone", files={"generation_config.json": None}, eos_token_id=[2, 305])
whole("ends_of_generation_config", {"eos_token_id": [303, 2, 310], "pad_token_id": 0, "bos_token_id": 1})
whole("no_end", {"eos_token_id": None})
whole("no_end_anywhere", files={"generation_config.json": None}, eos_token_id=None)
whole("end_is_null_beside_config", files={"generation_config.json": {"eos_token_id": None, "pad_token_id": 0}}, eos_token_id=305)
whole("generation_empty", files={"generation_config.json": {}}, eos_token_id=305)
whole("end_is_an_empty_list", {"eos_token_id": []}, optional=True)
whole("every_setting", {"eos_token_id": 2, "do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "typical_p": 0.9, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3,
                        "max_new_tokens": 9, "stop_strings": ["</s>"], "suppress_tokens": [5], "bad_words_ids": [[7, 8]], "forced_eos_token_id": 2,
                        "cache_implementation": "static", "renormalize_logits": True})
whole("end_of_added_token", {"eos_token_id": 321}, tokenizer=lambda: (lambda t: (t.add_special_tokens({"additional_special_tokens": ["<a>", "<b>"]}), t)[1])(chat_tokenizer()))
whole("tied", {"eos_token_id": 305}, tied=True)


# -- TRL -----------------------------------------------------------------------------------------------------------------------------------

CHATS = [{"messages": record["messages"]} for record in CHAT] * 2
PAIRS = [{"prompt": [{"role": "user", "content": "hello"}], "chosen": [{"role": "assistant", "content": "hi world"}], "rejected": [{"role": "assistant", "content": "no"}]}] * 4
ARGUMENTS = dict(max_steps=1, per_device_train_batch_size=1, report_to=[], save_strategy="no", use_cpu=True, learning_rate=1e-6, max_length=64, disable_tqdm=True, bf16=False, gradient_checkpointing=False)
LORA = dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def train(folder, base, pairs=False, adapter=None, tokenizer=None, **arguments):
    """Trains for a step and saves as the trainers do; adapters are then made to change the model a little."""
    counting({"eos_token_id": [2, 305]}).save_pretrained(base)
    (tokenizer or chat_tokenizer()).save_pretrained(base)
    trainer_class, config, rows = (trl.DPOTrainer, trl.DPOConfig, PAIRS) if pairs else (trl.SFTTrainer, trl.SFTConfig, CHATS)
    trainer = trainer_class(model=base, args=config(output_dir=folder, **ARGUMENTS, **arguments), train_dataset=datasets.Dataset.from_list(rows),
                            peft_config=adapter and peft.LoraConfig(**adapter))
    trainer.train()
    change(trainer.model)
    trainer.save_model(folder)


def change(model):
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)


@made()
def sft(folder, base):
    train(folder, base)


@made()
def sft_answers_alone(folder, base):
    train(folder, base, assistant_only_loss=True)


@made()
def sft_end_token(folder, base):
    train(folder, base, eos_token="<|im_start|>")


@made()
def sft_template_path(folder, base):
    path = os.path.join(os.path.dirname(base), "template")
    os.makedirs(path)
    other = fast(special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|think|>"))
    other.chat_template = TEMPLATE.replace("<|im_start|>{{ m.role }}", "<|im_start|>{{ m.role }}<|think|>")
    other.save_pretrained(path)
    train(folder, base, chat_template_path=path)


@made()
def sft_lora(folder, base):
    train(folder, base, adapter=LORA)


@made()
def sft_lora_template_path(folder, base):
    path = os.path.join(os.path.dirname(base), "template")
    os.makedirs(path)
    fast(special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|think|>")).save_pretrained(path)
    write(path, "chat_template.jinja", TEMPLATE)
    train(folder, base, adapter=LORA, chat_template_path=path)
    grow(base, len(transformers.AutoTokenizer.from_pretrained(folder)))


@made()
def dpo(folder, base):
    train(folder, base, pairs=True)


@made()
def dpo_lora(folder, base):
    train(folder, base, pairs=True, adapter={**LORA, "target_modules": "all-linear"})


@made()
def cloned_template(folder, base):
    path = os.path.join(os.path.dirname(folder), "source")
    source = fast(special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool|>"), pad_token="<pad>")
    source.chat_template = TEMPLATE
    source.save_pretrained(path)
    plain = fast(special=("<|endoftext|>",), eos_token="<|endoftext|>")
    model, tokenizer, _ = trl.clone_chat_template(counting({"eos_token_id": 0}, rows=WORDS), plain, path)
    count(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# -- PEFT ----------------------------------------------------------------------------------------------------------------------------------


def grow(base, rows):
    """Gives a base the rows that an adapter was trained with, as its users must before they load it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(rows)
    model.save_pretrained(base)


def adapter(name, optional=False, add=(), grown=True, merge=False, tied=False, tokenizer_beside=True, **settings):
    def make(folder, base):
        model, tokenizer = counting({"eos_token_id": [2, 305], "pad_token_id": 0}, tied=tied), chat_tokenizer()
        model.save_pretrained(base)
        tokenizer.save_pretrained(base)
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        if add:
            tokenizer.add_special_tokens({"additional_special_tokens": list(add)})
            model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size))
        changed = peft.get_peft_model(model, peft.LoraConfig(**{**LORA, **settings}))
        change(changed)
        (changed.merge_and_unload() if merge else changed).save_pretrained(folder)
        if tokenizer_beside:
            tokenizer.save_pretrained(folder)
        if add and grown:
            grow(base, model.config.vocab_size)
    make.__name__ = name
    made(optional)(make)


adapter("peft_plain")
adapter("peft_without_tokenizer", tokenizer_beside=False)
adapter("peft_rslora", use_rslora=True, r=4)
adapter("peft_pattern_of_names", target_modules=r".*\.(q|k|v)_proj")
adapter("peft_excluded", target_modules="all-linear", exclude_modules=["down_proj"])
adapter("peft_one_layer", layers_to_transform=[1], layers_pattern="layers")
adapter("peft_saved_head", modules_to_save=["lm_head"])
adapter("peft_saved_tables", modules_to_save=["embed_tokens", "lm_head"])
adapter("peft_more_tokens", add=[f"<t{i}>" for i in range(12)], modules_to_save=["embed_tokens", "lm_head"])
adapter("peft_more_tokens_small_base", optional=True, grown=False, add=[f"<t{i}>" for i in range(12)], modules_to_save=["embed_tokens", "lm_head"])
adapter("peft_more_tokens_tied", optional=True, tied=True, add=[f"<t{i}>" for i in range(12)], modules_to_save=["embed_tokens"])
adapter("peft_more_tokens_alone", add=[f"<t{i}>" for i in range(12)], trainable_token_indices=list(range(320, 332)))
adapter("peft_more_tokens_alone_tied", tied=True, add=[f"<t{i}>" for i in range(12)], trainable_token_indices=list(range(320, 332)))
adapter("peft_more_tokens_kept_tied", tied=True, add=[f"<t{i}>" for i in range(12)], modules_to_save=["embed_tokens"], ensure_weight_tying=True)
adapter("peft_more_tokens_untrained", add=[f"<t{i}>" for i in range(12)])
adapter("peft_tokens_alone", trainable_token_indices=[3, 4, 320])
adapter("peft_tokens_of_both", trainable_token_indices={"embed_tokens": [3, 4], "lm_head": [5]})
adapter("peft_tied_tokens", tied=True, trainable_token_indices=[3, 4])
adapter("peft_merged", merge=True)
adapter("peft_ranks", optional=True, rank_pattern={"q_proj": 4}, alpha_pattern={"v_proj": 8})
adapter("peft_dora", optional=True, use_dora=True)
adapter("peft_biases", optional=True, bias="all")
adapter("peft_lora_bias", optional=True, lora_bias=True)
adapter("peft_pissa", optional=True, init_lora_weights="pissa")
adapter("peft_embedding", optional=True, target_modules=["embed_tokens", "q_proj"])
adapter("peft_replicated", optional=True, layer_replication=[(0, 2), (0, 2)])


# -- datasets ------------------------------------------------------------------------------------------------------------------------------

ROWS = [{"text": "hello world", "label": 1, "score": 0.5}, {"text": 'a "quoted", text\nof two lines', "label": 2, "score": float("nan")}, {"text": "", "label": None, "score": None},
        {"text": "漢字 é", "label": 3, "score": 1e300}]
TEXT_ROWS = [row["text"] for row in ROWS if row["text"]]


def data(name, texts=TEXT_ROWS, rows=ROWS):
    """`texts`: the documents that are packed; None: smelt refuses, and says why."""
    def add(function):
        DATA[name] = (lambda path: function(datasets.Dataset.from_list(rows), path), texts)
        return function
    return add


data("set_jsonl")(lambda rows, path: rows.to_json(f"{path}/rows.jsonl"))
data("set_json_lines_named_json")(lambda rows, path: rows.to_json(f"{path}/rows.json"))
data("set_json_array")(lambda rows, path: rows.to_json(f"{path}/rows.json", lines=False, orient="records"))
data("set_json_columns", texts=None)(lambda rows, path: rows.to_json(f"{path}/rows.json", lines=False, orient="columns"))
data("set_json_ascii")(lambda rows, path: rows.to_json(f"{path}/rows.jsonl", force_ascii=True))
data("set_json_compressed")(lambda rows, path: rows.to_json(f"{path}/rows.jsonl.gz", compression="gzip"))
data("set_csv")(lambda rows, path: rows.to_csv(f"{path}/rows.csv"))
data("set_csv_with_index")(lambda rows, path: rows.to_csv(f"{path}/rows.csv", index=True))
data("set_tsv")(lambda rows, path: rows.to_csv(f"{path}/rows.tsv", sep="\t"))
data("set_parquet")(lambda rows, path: rows.to_parquet(f"{path}/rows.parquet"))
data("set_on_disk", texts=None)(lambda rows, path: rows.save_to_disk(f"{path}/set"))
data("set_of_splits_on_disk", texts=None)(lambda rows, path: datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(f"{path}/set"))


# -- Fields of LoraConfig ------------------------------------------------------------------------------------------------------------------

# A value that is not the default, for every field. Those of LORA change what is computed, and are rows above.
FIELDS = {"auto_mapping": {"a": "b"}, "peft_version": "1", "base_model_name_or_path": "elsewhere", "revision": "main", "inference_mode": False, "task_type": None, "peft_type": "LOHA", "r": 3,
          "target_modules": ["q_proj"], "exclude_modules": ["v_proj"], "lora_alpha": 9, "lora_dropout": 0.5, "fan_in_fan_out": True, "bias": "all", "use_rslora": True, "modules_to_save": ["lm_head"],
          "init_lora_weights": "pissa", "layers_to_transform": [0], "layers_pattern": "layers", "rank_pattern": {"q_proj": 3}, "alpha_pattern": {"q_proj": 3}, "megatron_config": {"a": 1},
          "megatron_core": "megatron", "trainable_token_indices": [1], "loftq_config": {"loftq_bits": 4}, "eva_config": {"rho": 2.0}, "corda_config": {"a": 1}, "lora_ga_config": {"a": 1},
          "use_dora": True, "velora_config": {"a": 1}, "alora_invocation_tokens": [1], "use_qalora": True, "qalora_group_size": 8, "monteclora_config": {"a": 1}, "layer_replication": [[0, 1]],
          "runtime_config": {"ephemeral_gpu_offload": True}, "lora_bias": True, "target_parameters": ["nothing.weight"], "use_bdlora": {"a": 1}, "arrow_config": {"a": 1}, "kasa_config": {"a": 1},
          "ensure_weight_tying": True}
