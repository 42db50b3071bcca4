#!/usr/bin/env python3
"""Writes questions and answers about Python's standard library as conversations, a line of JSON each: what a function or class does is the first sentence
of its documentation, which every Debian machine with python3 has. The data of the recipes in docs/finetune.md.

    tools/python-questions.py > questions.jsonl
    tools/python-questions.py pairs > pairs.jsonl

With `pairs` the sentence is preferred to that of another function or class: each sentence is chosen once and rejected once, so that only what is asked
tells which is right."""
import importlib
import inspect
import json
import random
import re
import sys

MODULES = """argparse array ast asyncio base64 bisect calendar collections concurrent.futures configparser contextlib copy csv datetime decimal difflib
email.message enum filecmp fileinput fnmatch fractions ftplib functools gettext glob gzip hashlib heapq hmac html http.client imaplib inspect io ipaddress
itertools json keyword linecache locale logging lzma mailbox math mimetypes multiprocessing netrc numbers operator os os.path pathlib pdb pickle pickletools
platform plistlib poplib pprint queue random re sched secrets select selectors shelve shlex shutil signal smtplib socket socketserver sqlite3 ssl stat
statistics string struct subprocess sys tarfile tempfile textwrap threading time timeit tokenize traceback types unicodedata unittest urllib.parse
urllib.request uuid warnings wave weakref xml.dom xml.etree.ElementTree zipfile zlib""".split()


def first_sentence(thing):
    text = inspect.getdoc(thing) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    found = re.match(r"[A-Z][^.]{20,140}\.(?= |$)", paragraph)
    return found.group() if found and "->" not in found.group() else None


def questions():
    """Of each function or class, the message that asks about it and the one that answers."""
    seen = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for member in sorted(getattr(module, "__all__", dir(module))):
            thing = getattr(module, member, None)
            if member.startswith("_") or not (inspect.isclass(thing) or callable(thing)):
                continue
            members = [(member, thing)] + ([(f"{member}.{each}", getattr(thing, each, None)) for each in sorted(vars(thing)) if not each.startswith("_")] if inspect.isclass(thing) else [])
            for path, each in members:
                answer = first_sentence(each)
                if answer and answer not in seen:
                    seen.add(answer)
                    yield {"role": "user", "content": f"What does {name}.{path} do in Python?"}, {"role": "assistant", "content": answer}


def main():
    asked = list(questions())
    others = [answer for _, answer in asked]
    random.Random(1).shuffle(others)
    for (question, answer), other in zip(asked, others):
        pair = {"prompt": [question], "chosen": [answer], "rejected": [other]}
        print(json.dumps(pair if sys.argv[1:] == ["pairs"] else {"messages": [question, answer]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
