#!/usr/bin/env python3
"""Compares smelt with transformers on conversations of every shape, broken ones too: members that are null, missing or of another type, tool calls, parts,
and who speaks first and last, over the chat templates of trl, one in Mistral's form, and chatml.

    tests/golden/check_conversations.py [--smelt build/smelt] [NAME ...]

Needs Python with transformers and trl (5.24 and 1.16 were used). Each conversation is packed alone. Its ids must be those that apply_chat_template gives, or
smelt leaves it out and says why. Where transformers gives ids and smelt a reason, the conversation must be in REASONS, or the template breaks the rule of docs/finetune.md. Prints a line for each template, and one for each difference; fails where there is one."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import trl
from chat import ERRORS, OUT, decode_arguments, open_tokenizer, until_answer
from check_chat import read_shard

TRL = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
MISTRAL = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{{ '[INST] ' + m['content'] + ' [/INST]' }}
{%- elif m['role'] == 'assistant' %}{% if m['tool_calls'] is defined %}[CALLS][{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}
{%- elif m['role'] == 'tool' %}{{ '[RESULT]' + m['content'] }}{% else %}{{ raise_exception('roles must be user, assistant and tool') }}{% endif %}{% endfor %}"""
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TEMPLATES = {"chatml": CHATML, "mistral": MISTRAL, **{name: open(f"{TRL}/{name}.jinja", newline="").read() for name in ("llama3", "llama3_1", "qwen2_5", "qwen3", "gemma", "phi3")}}

USER, ANSWER = {"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}
SYSTEM, TOOL = {"role": "system", "content": "be kind"}, {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "3"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
MISSING = object()


def with_member(message, name, value):
    return {k: v for k, v in {**message, name: value}.items() if v is not MISSING}


def calling(calls, content=MISSING):
    message = {"role": "assistant", "tool_calls": calls}
    return [USER, message if content is MISSING else {**message, "content": content}, TOOL, ANSWER]


def call(arguments):
    return [{"id": "call00001", "type": "function", "function": {"name": "add", "arguments": arguments}}]


SHAPES = {"plain": {"messages": [USER, ANSWER]}, "system": {"messages": [SYSTEM, USER, ANSWER]}, "two_turns": {"messages": [USER, ANSWER, USER, ANSWER]},
          "assistant_first": {"messages": [ANSWER, USER, ANSWER]}, "system_alone": {"messages": [SYSTEM]}, "question_at_the_end": {"messages": [USER, ANSWER, USER]},
          "question_alone": {"messages": [USER]}, "two_systems": {"messages": [SYSTEM, SYSTEM, USER, ANSWER]}, "two_questions": {"messages": [USER, USER, ANSWER]},
          "two_answers": {"messages": [USER, ANSWER, ANSWER]}, "system_later": {"messages": [USER, SYSTEM, ANSWER]}, "empty": {"messages": []}, "null": {"messages": None},
          "no_messages": {"other": 1}, "messages_object": {"messages": {"role": "user", "content": "x"}}, "messages_text": {"messages": "hello"},
          "message_is_text": {"messages": ["hello", ANSWER]}, "message_is_null": {"messages": [None, ANSWER]}, "message_is_list": {"messages": [[USER], ANSWER]},
          "unknown_role": {"messages": [{"role": "robot", "content": "x"}, ANSWER]}, "null_members": {"messages": [{**USER, "name": None, "tool_calls": None}, {**ANSWER, "tool_calls": None, "x": None}]},
          "more_members": {"messages": [{**USER, "name": "Ann", "id": 7}, {**ANSWER, "score": 0.5}], "id": 2**70, "score": float("nan")},
          "surrogate": {"messages": [{"role": "user", "content": "a\ud83d b"}, ANSWER]}}
for kind, value in {"null": None, "missing": MISSING, "number": 5, "true": True, "object": {"a": 1}, "empty": "", "space": " \n"}.items():
    SHAPES[f"content_{kind}"] = {"messages": [with_member(USER, "content", value), ANSWER]}
    SHAPES[f"answer_{kind}"] = {"messages": [USER, with_member(ANSWER, "content", value)]}
    SHAPES[f"role_{kind}"] = {"messages": [with_member(USER, "role", value), ANSWER]}
    SHAPES[f"tools_{kind}"] = with_member({"messages": [USER, ANSWER]}, "tools", value)
    SHAPES[f"tool_calls_{kind}"] = {"messages": calling(None if value is MISSING else value, "x")}
    SHAPES[f"arguments_{kind}"] = {"messages": calling([{"id": "call00001", "type": "function", "function": with_member({"name": "add"}, "arguments", value)}]), "tools": TOOLS}
for kind, parts in {"one": [{"type": "text", "text": "x"}], "two": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}], "texts": ["x"], "none": [], "image": [{"type": "image"}],
                    "untyped": [{"text": "x"}], "null_text": [{"type": "text", "text": None}], "number": [{"type": "text", "text": 5}], "null": [None]}.items():
    SHAPES[f"parts_{kind}"] = {"messages": [{"role": "user", "content": parts}, ANSWER]}
SHAPES.update({"tools": {"messages": [USER, ANSWER], "tools": TOOLS}, "tools_list_empty": {"messages": [USER, ANSWER], "tools": []}, "tools_numbers": {"messages": [USER, ANSWER], "tools": [5]},
               "tools_null": {"messages": [USER, ANSWER], "tools": [None]}, "calls": {"messages": calling(call({"a": 1})), "tools": TOOLS}, "calls_null_content": {"messages": calling(call({"a": 1}), None), "tools": TOOLS},
               "calls_empty_content": {"messages": calling(call({"a": 1}), ""), "tools": TOOLS}, "calls_and_content": {"messages": calling(call({"a": 1}), "x"), "tools": TOOLS},
               "calls_without_tools": {"messages": calling(call({"a": 1}))}, "calls_list_empty": {"messages": calling([], "x")}, "calls_of_numbers": {"messages": calling([5], "x")},
               "calls_of_nothing": {"messages": calling([{}], "x")}, "function_null": {"messages": calling([{"type": "function", "function": None}], "x")},
               "two_calls": {"messages": calling(call({"a": 1}) + call({"a": 2})), "tools": TOOLS}, "arguments_json": {"messages": calling(call('{"a": 1}')), "tools": TOOLS},
               "arguments_json_list": {"messages": calling(call("[1]")), "tools": TOOLS}, "arguments_text": {"messages": calling(call("a = 1")), "tools": TOOLS},
               "arguments_deep": {"messages": calling(call({"a": {"b": [1, None, "é"]}})), "tools": TOOLS}, "arguments_wide": {"messages": calling(call({"a": 2**70, "b": 1e300})), "tools": TOOLS}})

# What smelt leaves out for a reason of its own.
REASONS = {"no_answer": ("question_alone", "system_alone", "answer_empty", "answer_space"),
           "no_text": ("content_null", "content_missing", "content_number", "content_true", "content_object", "answer_null", "answer_missing", "answer_number", "answer_true", "answer_object",
                       "role_null", "role_missing", "role_number", "role_true", "role_object", "parts_texts", "parts_image", "parts_untyped", "parts_null_text", "parts_number", "parts_null"), "no_list": ("tools_empty",)}
JOINED = {"parts_one": "x", "parts_two": "x\ny", "parts_none": ""}
RULE = "the template renders the text"  # otherwise with what follows than without: nothing tells then which tokens are the answer's


def decoded(messages):
    """With arguments of tools as objects, where they are JSON text of one; smelt reads them so."""
    try:
        return decode_arguments(messages)
    except (KeyError, TypeError, AttributeError):
        return messages


def reference(tokenizer, record, source, shape, last):
    try:
        messages = decoded(record["messages"])
        if shape in JOINED:  # smelt gives templates one text, with a line for each part
            messages = [{**messages[0], "content": JOINED[shape]}, *messages[1:]]
        return tokenizer.apply_chat_template(until_answer(messages) if last else messages, tools=record.get("tools"), chat_template=source, tokenize=True, return_dict=True)["input_ids"]
    except (*ERRORS, KeyError, IndexError, UnicodeError) as error:
        return f"{type(error).__name__}: {error}"


def pack(smelt, folder, template, record, turns):
    with open(f"{folder}/in.jsonl", "w") as file:
        file.write(json.dumps(record) + "\n")
    done = subprocess.run([smelt, "data", "pack", f"{folder}/in.jsonl", f"{folder}/out", "format=chat", "overwrite=true", f"tokenizer={OUT}/tokenizer.json", f"template={template}", f"turns={turns}"],
                          capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if line.strip()] if done.returncode else read_shard(f"{folder}/out")[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--smelt", default="build/smelt")
    options = parser.parse_args()
    tokenizer, wrong = open_tokenizer(), 0
    own = [name for names in REASONS.values() for name in names]
    with tempfile.TemporaryDirectory() as folder:
        for name, source in TEMPLATES.items():
            path = f"{folder}/{name}.jinja"
            with open(path, "w", newline="") as file:
                file.write(source)
            count = {"equal": 0, "both": 0, "own": 0}
            for shape, record in SHAPES.items():
                if options.names and shape not in options.names:
                    continue
                ours, last = pack(options.smelt, folder, path, record, "all"), False
                if isinstance(ours[0], str) and any("turns=last" in line for line in ours):
                    ours, last = pack(options.smelt, folder, path, record, "last"), True
                theirs = reference(tokenizer, record, source, shape, last)
                refused, fails = isinstance(ours[0], str), isinstance(theirs, str)
                expected = shape in own or RULE in ours[-1] if refused else False
                kind = "both" if refused and fails else "own" if expected else "equal" if not refused and not fails and ours == theirs else None
                if kind:
                    count[kind] += 1
                    continue
                wrong += 1
                what = f"smelt says {ours[-1]}" if refused else f"smelt gives {tokenizer.decode(ours)!r}"
                print(f"{name} {shape}: WRONG: {what}; transformers {theirs if fails else repr(tokenizer.decode(theirs))}", flush=True)
            print(f"{name}: {count['equal']} equal, {count['both']} refused by both, {count['own']} left out by smelt for its own reason", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
