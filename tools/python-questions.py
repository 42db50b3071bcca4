#!/usr/bin/env python3
"""Writes questions and answers about Python's standard library as conversations, a line of JSON each: what a function or class does is the first sentence
of its documentation, which every Debian machine with python3 has. The data of the recipe in docs/finetune.md.

    tools/python-questions.py > questions.jsonl"""
import importlib
import inspect
import json
import re

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


def main():
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
                    messages = [{"role": "user", "content": f"What does {name}.{path} do in Python?"}, {"role": "assistant", "content": answer}]
                    print(json.dumps({"messages": messages}, ensure_ascii=False))


if __name__ == "__main__":
    main()
