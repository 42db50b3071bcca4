#!/usr/bin/env python3
"""Compares what `smelt data pack format=chat` makes of 240 conversations with transformers and jinja2, over the published chat templates that the
packages trl and axolotl carry: the text byte for byte, the tokens, and the mask token for token, as in chat.py.

    tests/golden/check_chat.py FOLDER [PART...]    makes FOLDER/venv and fetches the packages (1 GB with PyTorch's), once; PART: of a template's name

FOLDER/templates/*.jinja are compared too: put further templates there.

Prints a line for each template: how many conversations agree, and how many both refuse. A template that smelt refuses is named; the same conversations
must then break the rule here too, or the template must use what docs/finetune.md says is not known."""
import glob
import json
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ["trl==1.16.0", "axolotl==0.19.0"]
PEERS = ["transformers", "tokenizers", "jinja2", "xxhash"]
CONVERSATIONS, TYPED = 200, 40


def prepare(folder):
    """Runs this script again in FOLDER/venv, with the templates in place."""
    python = os.path.join(folder, "venv/bin/python")
    if not os.path.exists(os.path.join(folder, "ready")):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q"] + PEERS, check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--target", os.path.join(folder, "packages")] + PACKAGES, check=True)
        open(os.path.join(folder, "ready"), "w").close()
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(folder, "venv")):
        os.execv(python, [python] + sys.argv)


def read_shard(prefix):
    """[(ids, mask)] of the documents of a shard with a mask: sequences are untrained and trained in turn."""
    index, tokens = open(prefix + ".idx", "rb").read(), open(prefix + ".bin", "rb").read()
    width, (sequences, entries) = {8: 2, 4: 4}[index[17]], struct.unpack_from("<QQ", index, 18)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    ends = struct.unpack_from(f"<{entries}q", index, 34 + 12 * sequences)
    found, at = [], 0
    for first, last in zip(ends, ends[1:]):
        ids, mask = [], []
        for i, length in enumerate(lengths[first:last]):
            ids += struct.unpack_from(f"<{length}{'H' if width == 2 else 'i'}", tokens, at * width)
            mask += [i % 2] * length
            at += length
        found.append((ids, mask))
    return found


def pack(folder, template, turns):
    command = [os.environ.get("SMELT", "build/smelt"), "data", "pack", f"{folder}/conversations.jsonl", f"{folder}/out", "format=chat", "overwrite=true",
               f"tokenizer={HERE}/chat/tokenizer.json", f"template={template}", f"turns={turns}"]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def marked(chat, tokenizer, record, source):
    """The mask by the spans that the template marks. transformers' own leaves out tokens at the end of a span whose last character is several tokens, or
    was made of several characters by the normal form."""
    from transformers.utils.chat_template_utils import render_jinja_template
    texts, spans = render_jinja_template([record["messages"]], tools=record.get("tools"), chat_template=source, return_assistant_tokens_mask=True,
                                         **tokenizer.special_tokens_map)
    return chat.mask_of(tokenizer, texts[0], spans[0])[1]


def check(chat, tokenizer, records, folder, path):
    source = open(path, newline="").read()
    try:
        wanted, last = [chat.expect(tokenizer, record, source, False) for record in records], False
    except AssertionError:
        made = pack(folder, path, "all")
        if "turns=last" not in made.stderr:
            return "WRONG: the rule is broken, and smelt packs"
        wanted, last = [chat.expect(tokenizer, record, source, True) for record in records], True
    made = pack(folder, path, "last" if last else "all")
    if made.returncode:
        return "both refuse all" if not any(wanted) else "NOT KNOWN: " + made.stderr.strip().split("\n")[-1][:200]
    found = read_shard(f"{folder}/out")
    all_wanted, wanted = wanted, [one for one in wanted if one]
    same = sum(ids == w[1] and mask == w[2] for (ids, mask), w in zip(found, wanted))
    if same < len(wanted) and len(found) == len(wanted):
        spans = [marked(chat, tokenizer, record, source) for record, one in zip(records, all_wanted) if one]
        split = sum(ids == w[1] and mask != w[2] and mask == s for (ids, mask), w, s in zip(found, wanted, spans))
        if same + split == len(wanted):
            return f"{same} of {len(wanted)} conversations agree, and {split} where transformers cuts a character in two"
    texts = sum(tokenizer.decode(ids, clean_up_tokenization_spaces=False) == tokenizer.decode(w[1], clean_up_tokenization_spaces=False) for (ids, _), w in zip(found, wanted))
    verdict = "" if same == len(wanted) == len(found) else "WRONG: "
    return f"{verdict}{same} of {len(wanted)} conversations agree ({texts} texts), {len(records) - len(wanted)} refused{', turns=last' if last else ''}"


def main():
    folder, parts = os.path.abspath(sys.argv[1]), sys.argv[2:]
    os.makedirs(folder, exist_ok=True)
    prepare(folder)
    sys.path.insert(0, HERE)
    import chat
    tokenizer = chat.open_tokenizer()
    records = [chat.conversation(i) for i in range(CONVERSATIONS)] + [chat.typed(i) for i in range(TYPED)]
    with open(f"{folder}/conversations.jsonl", "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    templates = sorted(glob.glob(f"{folder}/packages/trl/chat_templates/*.jinja") + glob.glob(f"{folder}/packages/axolotl/utils/chat_templates/templates/*.jinja"))
    templates += sorted(glob.glob(f"{folder}/templates/*.jinja"))
    wrong = 0
    for path in templates:
        if not parts or any(part in path for part in parts):
            result = check(chat, tokenizer, records, folder, path)
            wrong += result.startswith("WRONG")
            print(f"{os.path.relpath(path, folder + '/packages').split('/')[0 if '/packages/' in path else -2]} {os.path.basename(path)}: {result}", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
