#!/usr/bin/env python3
"""Writes tests/golden/chat/: 320 conversations (conversations.py), a small tokenizer, and expected.txt, what transformers and jinja2 make of them with
the templates there, which are our own: a line for each template and conversation with the XXH3 of the text, of the ids, and of the mask, or "refused"
where the template raises. Masks of a template with marks are transformers' own; those of the others follow the rule of docs/finetune.md, written
here once more over the offsets of `tokenizers`.

    pip install transformers tokenizers jinja2 xxhash;  tests/golden/chat.py"""
import copy
import glob
import json
import os
import re
import struct

import tokenizers
import transformers
import xxhash
from conversations import conversation, stored, typed

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "chat")
CONVERSATIONS, STORED, TYPED = 200, 80, 40
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|body|>", "<turn>"]
LAST = ["brackets", "channels", "thinking"]  # templates that render earlier messages otherwise once more follow
ERRORS = (transformers.utils.chat_template_utils.jinja2.exceptions.TemplateError, TypeError, AttributeError, ValueError)


def make_tokenizer():
    """qwen.json, which has a normal form (NFC), with the special tokens of the templates."""
    content = json.load(open(f"{HERE}/tokenizers/qwen.json"))
    known = {token["content"] for token in content["added_tokens"]}
    number = max([*content["model"]["vocab"].values(), *[token["id"] for token in content["added_tokens"]]]) + 1
    for text in SPECIAL:
        if text not in known:
            content["added_tokens"].append({"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
            number += 1
    json.dump(content, open(f"{OUT}/tokenizer.json", "w"), ensure_ascii=False)
    json.dump({"bos_token": "<s>", "eos_token": {"content": "</s>"}}, open(f"{OUT}/tokenizer_config.json", "w"))


def open_tokenizer():
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_file(f"{OUT}/tokenizer.json"), bos_token="<s>", eos_token="</s>")


def decode_arguments(messages):
    """Arguments of tool calls that are JSON text of an object as that object, as vLLM gives them to a template."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls") or []:
            try:
                arguments = json.loads(call["function"]["arguments"])
                call["function"]["arguments"] = arguments if isinstance(arguments, dict) else call["function"]["arguments"]
            except (TypeError, ValueError):
                pass
    return messages


def render_messages(tokenizer, record, source, messages, answer):
    """As apply_chat_template does, which refuses a list of no messages."""
    if messages:
        return tokenizer.apply_chat_template(messages, tools=record.get("tools"), chat_template=source, tokenize=False, add_generation_prompt=answer)
    return transformers.utils.chat_template_utils.render_jinja_template(
        [messages], tools=record.get("tools"), chat_template=source, add_generation_prompt=answer, **tokenizer.special_tokens_map)[0][0]


def text_before(render, messages, i, behind):
    """The text before answer i. Before one that opens the conversation, where a template needs a first message: up to the end of the first header."""
    if i:
        return render(messages[:i], True)
    try:
        before = render([], True)
        if behind.startswith(before):
            return before
    except ERRORS:
        pass
    question = [{"role": "user", "content": "a"}]
    header = render(question, True)[len(render(question, False)):]
    mark = header or messages[0].get("content")
    if not mark or mark not in behind:
        raise ValueError("nothing tells where the answer begins")
    return behind[:behind.index(mark) + len(header)]


def spans_of(render, messages, last):
    """The spans of characters that are trained, by the rule: what message i adds."""
    whole, spans = render(messages, False), []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or (last and i + 1 < len(messages)):
            continue
        behind = render(messages[:i + 1], False)
        before = text_before(render, messages, i, behind)
        if not (behind.startswith(before) and whole.startswith(behind)):
            raise ValueError("the rule is broken") if last else AssertionError("the rule is broken")
        spans.append((len(before), len(behind)))
    return spans


def mask_of(tokenizer, text, spans):
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [int(any(start < end_ and start_ < end for start_, end_ in spans)) for start, end in encoding["offset_mapping"]]
    return encoding["input_ids"], mask


def until_answer(messages):
    """Up to the last answer; all of them where there is none."""
    end = max((i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages))
    return messages[:end]


def expect(tokenizer, record, source, last):
    """(text, ids, mask) or None."""
    if last:
        record = dict(record, messages=until_answer(record["messages"]))
    render = lambda messages, answer: render_messages(tokenizer, record, source, messages, answer)
    try:
        messages = decode_arguments(record["messages"])
        text = render(messages, False)
        if re.search(r"\{%[-+]?\s*generation", source):
            made = tokenizer.apply_chat_template(messages, tools=record.get("tools"), chat_template=source, return_dict=True, return_assistant_tokens_mask=True)
            ids, mask = made["input_ids"], made["assistant_masks"]
        else:
            ids, mask = mask_of(tokenizer, text, spans_of(render, messages, last))
    except ERRORS:
        return None
    return (text, ids, mask) if any(mask) else None


def digest(data):
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def main():
    make_tokenizer()
    tokenizer = open_tokenizer()
    records = [conversation(i) for i in range(CONVERSATIONS)] + [stored(i) for i in range(CONVERSATIONS, CONVERSATIONS + STORED)]
    records += [typed(i) for i in range(TYPED)]
    with open(f"{OUT}/conversations.jsonl", "w") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with open(f"{OUT}/expected.txt", "w") as file:
        for path in sorted(glob.glob(f"{OUT}/templates/*.jinja")):
            name, source = os.path.basename(path)[:-len(".jinja")], open(path).read()
            made = [expect(tokenizer, record, source, name in LAST) for record in records]
            for number, one in enumerate(made):
                if one:
                    text, ids, mask = one
                    file.write(f"{name} {number} {digest(text.encode())} {digest(struct.pack(f'<{len(ids)}i', *ids))} {digest(bytes(mask))}\n")
                else:
                    file.write(f"{name} {number} refused\n")
            print(f"{name}: {sum(one is not None for one in made)} of {len(made)} conversations")


if __name__ == "__main__":
    main()
