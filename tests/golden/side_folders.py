"""Folders of tokenizers as transformers, sentencepiece, tiktoken and TRL save them, made from a small vocabulary: FOLDERS holds a function for each, which
fills a folder, and OPTIONAL the names of those that smelt may refuse. Used by check_side_files.py."""
import base64
import json
import os

import sentencepiece
import tiktoken
import transformers
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = ["hello world, this is a small text of a few words", "the user says hello and the assistant says hi", "one two three 4 5 6 don't", "user assistant system tool"] * 20
TEXTS = ["hello world", " leading and trailing ", "a  b   c", "hello<|im_end|> x", "<s>hi</s>", "x <|im_start|>user", "tabs\tand é ü 漢字", "the<extra>end", "", "12 34"]
TEMPLATE = "{% for m in messages %}{{ bos_token if loop.first and bos_token }}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 18446744073709551615}}}}}]
CHAT = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi world"}]},
        {"messages": [{"role": "user", "content": " two "}, {"role": "assistant", "content": "three"}], "tools": TOOLS, "id": 18446744073709551615, "score": float("nan")}]


def byte_level(special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), normalizer=None, bos=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=list(special), show_progress=False))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))])
    return tokenizer


def fast(**settings):
    inner = {k: settings.pop(k) for k in ("special", "normalizer", "bos") if k in settings}
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(**inner), **{"eos_token": "<|im_end|>", **settings})


def sentencepiece_model(folder, **settings):
    corpus = os.path.join(folder, "corpus.txt")
    with open(corpus, "w") as file:
        file.write("\n".join(CORPUS))
    usual = dict(model_type="bpe", vocab_size=300, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False)
    sentencepiece.SentencePieceTrainer.train(input=corpus, model_prefix=os.path.join(folder, "tokenizer"), minloglevel=2, **{**usual, **settings})
    for name in ("corpus.txt", "tokenizer.vocab"):
        os.remove(os.path.join(folder, name))


def write(folder, name, content):
    with open(os.path.join(folder, name), "w") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True, **flags}


# -- Folders: name -> function that fills one; those of OPTIONAL may be refused ---------------------------------------------------------

FOLDERS, OPTIONAL, LIBRARIES = {}, set(), {}  # LIBRARIES: for folders that transformers does not read, what opens them with the library that made them


def folder(optional=False):
    def add(function):
        FOLDERS[function.__name__] = function
        if optional:
            OPTIONAL.add(function.__name__)
        return function
    return add


def saved(name, optional=False, **settings):
    template = settings.pop("chat_template", TEMPLATE)
    after = settings.pop("after", None)
    save = settings.pop("save", {})

    def make(path):
        tokenizer = fast(**settings)
        if template:
            tokenizer.chat_template = template
        if after:
            after(tokenizer)
        tokenizer.save_pretrained(path, **save)
    make.__name__ = name
    folder(optional)(make)


saved("plain")
saved("no_template", chat_template=None)
saved("two_templates", chat_template={"default": TEMPLATE, "tool_use": TEMPLATE.replace("<|im_start|>", "<|im_start|>T-")})
saved("templates_in_config", save={"save_jinja_files": False})
saved("two_templates_in_config", chat_template={"default": TEMPLATE, "tool_use": TEMPLATE.replace("<|im_start|>", "<|im_start|>T-")}, save={"save_jinja_files": False})
saved("begins_text", bos=True, bos_token="<|endoftext|>")
saved("pad_added", pad_token="<pad>")
saved("tokens_added", after=lambda t: t.add_tokens(["<extra>", AddedToken("wörd", normalized=True)]))
saved("special_added", after=lambda t: t.add_special_tokens({"additional_special_tokens": ["<extra>", "<more>"]}))
saved("flags", after=lambda t: t.add_tokens([AddedToken("<extra>", lstrip=True, rstrip=True, special=True), AddedToken("two", single_word=True)]))
saved("nfc", normalizer=normalizers.NFC())
saved("named_extra", extra_special_tokens={"image_token": "<extra>"})
saved("every_name", bos_token="<s>", unk_token="<unk>", sep_token="<sep>", cls_token="<cls>", mask_token="<mask>", pad_token="<pad>")
saved("length_set", model_max_length=512)
saved("padding_and_truncation", after=lambda t: (t("x", padding="max_length", truncation=True, max_length=8)), pad_token="<pad>")


@folder()
def numbers(path):
    fast().save_pretrained(path)
    write(path, "chat_template.jinja", TEMPLATE)
    config = json.load(open(os.path.join(path, "tokenizer_config.json")))
    write(path, "tokenizer_config.json", json.dumps({**config, "a": float("inf"), "b": float("nan"), "c": 10**40, "d": -(2**64)}))


@folder()
def old_special_map(path):
    fast(pad_token="<|endoftext|>").save_pretrained(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "model_max_length": int(1e30)})
    write(path, "special_tokens_map.json", {"eos_token": token("<|im_end|>"), "pad_token": "<|endoftext|>"})


@folder()
def old_special_map_wins(path):
    old_special_map(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|endoftext|>"})


@folder()
def decoder_before_special_map(path):
    old_special_map(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|endoftext|>", "added_tokens_decoder": {"0": token("<|endoftext|>"), "1": token("<|im_start|>", rstrip=True), "2": token("<|im_end|>")}})


@folder()
def tokens_of_side_files_alone(path):
    fast().save_pretrained(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<extra>", "additional_special_tokens": ["<s>", "</s>"]})


@folder(optional=True)
def ids_with_gaps(path):
    fast().save_pretrained(path)
    content = json.load(open(os.path.join(path, "tokenizer.json")))
    content["added_tokens"] += [{"id": 900, **token("<extra>")}]
    write(path, "tokenizer.json", content)


@folder()
def gpt2_class(path):
    tokenizer = byte_level()
    tokenizer.model.save(path)
    write(path, "chat_template.jinja", TEMPLATE)
    made = transformers.GPT2Tokenizer(os.path.join(path, "vocab.json"), os.path.join(path, "merges.txt"), eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    made.save_pretrained(path)


@folder()
def qwen_class(path):
    vocabulary = json.loads(byte_level().to_str())["model"]
    made = transformers.Qwen2Tokenizer(vocab=vocabulary["vocab"], merges=[tuple(m) for m in vocabulary["merges"]], eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None)
    made.chat_template = TEMPLATE
    made.save_pretrained(path)


CONFIG = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE, "model_max_length": int(1e30)}
ADDED = {"<|im_start|>": 300, "<|im_end|>": 301}
DECODER = {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "300": token("<|im_start|>", rstrip=True), "301": token("<|im_end|>", normalized=True, special=False)}


def llama(name, optional=False, model_type="llama", config=None, added=None, special=None, **settings):
    def make(path):
        sentencepiece_model(path, **settings)
        given = {k: v for k, v in {**CONFIG, **(config or {})}.items() if v != "absent"}
        write(path, "tokenizer_config.json", given)
        if added:
            write(path, "added_tokens.json", added)
        if special:
            write(path, "special_tokens_map.json", special)
        if model_type:
            write(path, "config.json", {"model_type": model_type})
    make.__name__ = name
    folder(optional)(make)


llama("llama2", added=ADDED, special={"eos_token": "<|im_end|>"})
llama("llama2_without_model", added=ADDED, special={"eos_token": "<|im_end|>"}, model_type=None)
llama("llama2_decoder", config={"added_tokens_decoder": DECODER})
llama("llama2_end_added", config={"add_eos_token": True, "added_tokens_decoder": DECODER})
llama("llama2_legacy", config={"legacy": True}, added=ADDED)
llama("llama2_legacy_absent", config={"legacy": "absent"}, added=ADDED)
llama("llama2_no_bos", config={"add_bos_token": "absent"}, added=ADDED)
llama("llama2_no_prefix", config={"add_prefix_space": False}, added=ADDED)
llama("llama2_pad", config={"pad_token": "<pad>"}, added=ADDED)
llama("llama2_more_special", config={"additional_special_tokens": ["<extra>"]}, added=ADDED)
llama("llama2_user_defined", config={"added_tokens_decoder": "absent"}, user_defined_symbols=["<|im_start|>", "<|im_end|>"])
llama("llama2_squeezing", added=ADDED, normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)
llama("llama2_gap", optional=True, added={"<|im_start|>": 305, "<|im_end|>": 310})
llama("mistral", model_type="mistral", config={"added_tokens_decoder": DECODER})
llama("mistral_legacy", model_type="mistral", config={"legacy": True, "added_tokens_decoder": DECODER})
llama("mistral_squeezing", optional=True, model_type="mistral", config={"added_tokens_decoder": DECODER}, remove_extra_whitespaces=True)
llama("phi3", model_type="phi3", config={"added_tokens_decoder": DECODER})
llama("no_class", config={"tokenizer_class": "absent"}, added=ADDED)
llama("fast_class", config={"tokenizer_class": "PreTrainedTokenizerFast"}, added=ADDED)
llama("unigram", optional=True, added=ADDED, byte_fallback=False, vocab_size=60)


@folder()
def llama2_saved_again(path):
    FOLDERS["llama2"](path)
    made = AutoTokenizer.from_pretrained(path)
    for name in os.listdir(path):
        os.remove(os.path.join(path, name))
    made.save_pretrained(path)


# -- What a tokenizer_config.json says beside a tokenizer.json ---------------------------------------------------------------------------


def configured(name, optional=False, bos=False, class_name="PreTrainedTokenizerFast", **config):
    """`None` removes a member."""
    def make(path):
        fast(bos=bos, bos_token="<|endoftext|>").save_pretrained(path)
        write(path, "chat_template.jinja", TEMPLATE)
        read = json.load(open(os.path.join(path, "tokenizer_config.json")))
        write(path, "tokenizer_config.json", {**read, "tokenizer_class": class_name, **config})
    make.__name__ = name
    folder(optional)(make)


configured("begins_by_config", add_bos_token=True)
configured("ends_by_config", add_eos_token=True)
configured("begins_and_ends_by_config", add_bos_token=True, add_eos_token=True)
configured("begins_no_more", bos=True, add_bos_token=False)
configured("ends_and_begins_no_more", bos=True, add_eos_token=True)
configured("begins_with_nothing", add_bos_token=True, bos_token=None)
configured("begins_by_null", bos=True, add_bos_token=None)
configured("special_in_pieces", optional=True, split_special_tokens=True)
configured("prefix_by_config", add_prefix_space=True)
configured("cleans_up", clean_up_tokenization_spaces=True, padding_side="left", truncation_side="left", model_input_names=["input_ids"])
configured("class_gpt2", class_name="GPT2Tokenizer", unk_token="<|endoftext|>")
configured("class_gpt2_prefix", optional=True, class_name="GPT2Tokenizer", unk_token="<|endoftext|>", add_prefix_space=True)
configured("class_qwen", optional=True, class_name="Qwen2TokenizerFast")
configured("class_llama_of_bytes", class_name="LlamaTokenizerFast")
configured("class_of_nobody", class_name="MyOwnTokenizer")
configured("extra_named", extra_special_tokens={"image_token": "<image>", "video_token": "<video>"})
configured("extra_listed", extra_special_tokens=["<image>", "<video>"])
configured("more_special", additional_special_tokens=["<image>", "<video>"])


@folder()
def llama3_style(path):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    begin, end = "<|begin_of_text|>", "<|im_end|>"
    tokenizer.add_special_tokens([begin, "<|im_start|>", end, "<|finetune_right_pad_id|>"])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single=f"{begin}:0 $A:0", pair=f"{begin}:0 $A:0 {begin}:1 $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end, pad_token="<|finetune_right_pad_id|>", model_input_names=["input_ids", "attention_mask"])
    made.chat_template = TEMPLATE
    made.save_pretrained(path)


def old_llama(name, **config):
    """The tokenizer.json that transformers 4 made of Llama 2's model. transformers 4, `tokenizers` and smelt go by its normalizer; transformers 5 goes by
    its class LlamaTokenizer instead."""
    def make(path):
        FOLDERS["llama2_saved_again"](path)
        content = json.load(open(os.path.join(path, "tokenizer.json")))
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
        content["pre_tokenizer"] = None
        write(path, "tokenizer.json", content)
        read = json.load(open(os.path.join(path, "tokenizer_config.json")))
        write(path, "tokenizer_config.json", {k: v for k, v in {**read, **config}.items() if v != "absent"})

    def load(path):
        made = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        return lambda text: made.encode(text).ids, made.token_to_id("<|im_end|>")
    make.__name__ = name
    LIBRARIES[name] = load
    folder()(make)


old_llama("old_llama2_json")
old_llama("old_llama2_json_fast", tokenizer_class="LlamaTokenizerFast", legacy="absent")
old_llama("old_llama2_json_legacy", tokenizer_class="LlamaTokenizer", legacy=True)
old_llama("old_llama2_json_any_class", tokenizer_class="PreTrainedTokenizerFast")


@folder()
def gemma_class(path):
    sentencepiece_model(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "legacy": False, "chat_template": TEMPLATE})
    vocabulary = json.loads(AutoTokenizer.from_pretrained(path).backend_tokenizer.to_str())["model"]
    for name in os.listdir(path):
        os.remove(os.path.join(path, name))
    made = transformers.GemmaTokenizer(vocab=vocabulary["vocab"], merges=[tuple(m) for m in vocabulary["merges"]], bos_token="<s>", eos_token="</s>", pad_token="<unk>", mask_token=None)
    made.chat_template = TEMPLATE
    made.save_pretrained(path)


@folder(optional=True)
def t5_class(path):
    made = transformers.T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581hello", -1.0), ("\u2581world", -2.0), ("\u2581", -3.0)] + [(c, -9.0) for c in "abcdefghijklmnopqrstuvwxyz"])
    made.save_pretrained(path)


@folder(optional=True)
def bert_class(path):
    made = transformers.BertTokenizer(vocab={t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"])})
    made.save_pretrained(path)


@folder(optional=True)
def vocabulary_and_merges(path):
    """What transformers 4's slow tokenizers saved."""
    byte_level().model.save(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "chat_template": TEMPLATE})


@folder()
def saved_twice(path):
    FOLDERS["special_added"](path)
    made = AutoTokenizer.from_pretrained(path)
    made.add_tokens(["<later>", AddedToken("<stripped>", lstrip=True)])
    made.save_pretrained(path)


@folder()
def no_template_in_config_file(path):
    fast().save_pretrained(path)
    write(path, "chat_template.json", {"chat_template": "nobody reads this"})


@folder()
def generation_template(path):
    """A template that marks answers with another white space, beside a further one."""
    made = fast()
    made.chat_template = {"default": TEMPLATE.replace("{% generation %}", "{%- generation -%}").replace("{% endgeneration %}", "{%- endgeneration -%}"), "rag": "x"}
    made.save_pretrained(path)


def other_class(name, class_name, model_type=None, **settings):
    """A SentencePiece model beside a class that makes something of its own of it."""
    def make(path):
        sentencepiece_model(path, **settings)
        write(path, "tokenizer_config.json", {**CONFIG, "tokenizer_class": class_name})
        if model_type:
            write(path, "config.json", {"model_type": model_type})
    make.__name__ = name
    folder(optional=True)(make)


other_class("gemma_model", "GemmaTokenizer", bos_piece="<bos>", eos_piece="<eos>", pad_id=3)
other_class("xglm_model", "XGLMTokenizer")
other_class("code_llama_model", "CodeLlamaTokenizer")


# -- SentencePiece's own models, compared with sentencepiece -------------------------------------------------------------------------------


def pieces(name, optional=False, **settings):
    def make(path):
        sentencepiece_model(path, **settings)

    def load(path):
        processor = sentencepiece.SentencePieceProcessor(model_file=os.path.join(path, "tokenizer.model"))
        return lambda text: processor.encode(text), processor.eos_id() if processor.eos_id() >= 0 else None
    make.__name__ = name
    LIBRARIES[name] = load
    folder(optional)(make)


pieces("pieces_bpe", byte_fallback=False, vocab_size=90)
pieces("pieces_bpe_bytes")
pieces("pieces_unigram", model_type="unigram", byte_fallback=False, vocab_size=60)
pieces("pieces_unigram_bytes", model_type="unigram", vocab_size=310)
pieces("pieces_char", model_type="char", optional=True, byte_fallback=False)
pieces("pieces_word", model_type="word", optional=True, byte_fallback=False)
pieces("pieces_defined", user_defined_symbols=["<|im_start|>", "<|im_end|>", "two  three", "\u2581the"])
pieces("pieces_defined_unigram", model_type="unigram", vocab_size=320, user_defined_symbols=["<|im_start|>", "<|im_end|>", "wor"])
pieces("pieces_control", control_symbols=["<|im_start|>", "<|im_end|>"])
pieces("pieces_no_prefix", add_dummy_prefix=False)
pieces("pieces_no_prefix_unigram", model_type="unigram", vocab_size=310, add_dummy_prefix=False)
pieces("pieces_squeezed", remove_extra_whitespaces=True)
for rule in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"):
    pieces(f"pieces_{rule}", normalization_rule_name=rule)
    pieces(f"pieces_{rule}_unigram", model_type="unigram", vocab_size=310, normalization_rule_name=rule, remove_extra_whitespaces=True)
pieces("pieces_suffix", treat_whitespace_as_suffix=True)
pieces("pieces_digits", split_digits=True, split_by_number=False)
pieces("pieces_other_ids", unk_id=3, bos_id=0, eos_id=1, pad_id=2)
pieces("pieces_no_ends", bos_id=-1, eos_id=-1)
pieces("pieces_other_names", bos_piece="<bos>", eos_piece="<eos>", unk_piece="[UNK]", unk_surface="?", pad_id=3)
pieces("pieces_whitespace_alone", allow_whitespace_only_pieces=True, user_defined_symbols=["\n", "\t", "  ", "    "])


# -- tiktoken ------------------------------------------------------------------------------------------------------------------------------


def ranks(name, pattern, special, config=None):
    def make(path):
        vocabulary = json.loads(byte_level(special=()).to_str())["model"]["vocab"]
        spelled = {character: byte for byte, character in bytes_to_unicode().items()}
        lines = (base64.b64encode(bytes(spelled[c] for c in word)).decode() + f" {rank}\n" for word, rank in sorted(vocabulary.items(), key=lambda pair: pair[1]))
        write(path, "tokenizer.model", "".join(lines))
        write(path, "tokenizer_config.json", {"pattern": pattern, "added_tokens_decoder": {str(i): token(t) for t, i in special.items()}, **(config or {})})

    def load(path):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(os.path.join(path, "tokenizer.model")), special_tokens=special)
        return lambda text: encoding.encode(text, allowed_special="all"), special.get((config or {}).get("eos_token"), None)
    make.__name__ = name
    LIBRARIES[name] = load
    folder()(make)


ranks("ranks_gpt2", GPT2_PATTERN, {"<|im_start|>": 320, "<|im_end|>": 321}, {"eos_token": "<|im_end|>"})
ranks("ranks_llama3", LLAMA3_PATTERN, {"<|im_start|>": 330, "<|im_end|>": 325}, {"eos_token": "<|im_end|>"})
ranks("ranks_digits", r"\d| ?[a-z]+|\s+|[^\sa-z\d]+", {"<|im_end|>": 320}, {"eos_token": "<|im_end|>", "bos_token": None})
