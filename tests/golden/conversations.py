"""Conversations of many shapes, made from a seed: several turns, with and without a system message, empty texts, tool calls and their answers, thinking, and
text from many scripts. Used by chat.py and check_chat.py."""
import json
import random

WORDS = """the a sky is blue why because light scatters code runs fast please explain list three things about rivers and mountains in Paris today
naïve café cafe\u0301 o\u0308 Ελλάδα Привет 你好 世界 こんにちは مرحبا שלום नमस्ते 한국어 🎉 👩‍👩‍👧 é ﬁ ß İ 𝒳 <b>bold</b> & "quotes" 'single' {brace} back\\slash 100% $5 `code` [x] #1""".split()
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city: \"now\" & later", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. Zürich"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds <two> numbers", "parameters": {
        "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number", "enum": [1.5, 2e-7, 1e22, -0.0]}}, "required": ["a", "b"]}}},
]


TYPES = [
    {"type": "string"}, {"type": "string", "enum": ["red", "grün", 'a "b"'], "default": "red"}, {"type": "number", "nullable": True}, {"type": "integer", "default": 3},
    {"type": "boolean", "default": False}, {"type": "array", "items": {"type": "string"}}, {"type": "array"}, {"type": ["string", "null"]}, {"type": ["object"]},
    {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "nullable": True, "default": []}, {"description": "Anything"}, {"type": "object"},
    {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "array", "items": {"type": "boolean"}}}, "required": ["x"]},
    {"oneOf": [{"type": "string", "description": "a name"}, {"type": "integer", "default": 0}]}, {"oneOf": [{"type": "object"}, {"type": "object"}]},
    {"oneOf": [{"type": "object", "properties": {"deep": {"type": "object", "properties": {}}}}]}]


def text(r, shape=None):
    shape = shape or r.choice(["words"] * 6 + ["lines", "padded", "empty", "space", "code"])
    words = lambda n: " ".join(r.choice(WORDS) for _ in range(n))
    return {"words": lambda: words(r.randint(1, 12)), "lines": lambda: "\n".join(words(r.randint(0, 4)) for _ in range(r.randint(2, 5))),
            "padded": lambda: r.choice(["\n", " ", "\t", "\u00a0", "\n\n"]) + words(3) + r.choice(["\n", " \n ", "\u2003"]), "empty": lambda: "",
            "space": lambda: r.choice([" ", "\n", "\n\n\t"]), "code": lambda: f"```python\nprint({r.randint(0, 99)})\n```\n"}[shape]()


def call(r, number):
    arguments = r.choice([{"city": text(r, "words")}, {"a": r.randint(-9, 9), "b": r.choice([0.5, 1e-9, 3.0, 12345678.9])}, {"city": "Zürich", "days": None, "deep": [1, {"x": True}]}, {}])
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": r.choice(["get_weather", "add"]), "arguments": arguments}}


def assistant(r, thinking):
    message = {"role": "assistant", "content": text(r)}
    if thinking and r.random() < 0.5:
        message["content"] = f"<think>\n{text(r, 'words')}\n</think>\n\n{text(r)}"
    elif thinking and r.random() < 0.5:
        message["reasoning_content"] = text(r, "words")
    return message


def conversation(number):
    """One conversation, a dict of messages and perhaps tools."""
    r = random.Random(number)
    messages, found = [], {}
    with_tools, thinking = r.random() < 0.25, r.random() < 0.3
    if r.random() < 0.4:
        messages.append({"role": "system", "content": text(r)})
    for turn in range(r.choice([1, 1, 2, 3, 5])):
        messages.append({"role": "user", "content": text(r)})
        if with_tools and r.random() < 0.7:
            calls = [call(r, 10 * turn + i) for i in range(r.choice([1, 1, 2]))]
            messages.append({"role": "assistant", "content": r.choice(["", text(r, "words")]), "tool_calls": calls})
            messages += [{"role": "tool", "name": each["function"]["name"], "tool_call_id": each["id"], "content": text(r, "words")} for each in calls]
        messages.append(assistant(r, thinking))
    if r.random() < 0.1:
        messages = messages[:-1]
    if with_tools:
        found["tools"] = TOOLS[:r.choice([1, 2])]
    return {"messages": messages, **found}


def stored(number):
    """A conversation as programs store it: with null for each member that another message has, arguments of tools as JSON text, the assistant's greeting
    before the first question, or a question at the end."""
    r, found = random.Random(number), conversation(number)
    messages = found["messages"]
    if r.random() < 0.4:
        messages.insert(0, {"role": "assistant", "content": text(r)})
    if r.random() < 0.3:
        messages.append({"role": "user", "content": text(r)})
    for message in messages:
        for call in message.get("tool_calls", []):
            if r.random() < 0.8:
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=r.random() < 0.5, separators=r.choice([(",", ":"), (", ", ": ")]))
                call["function"]["arguments"] = r.choice([arguments] * 8 + ["", "none"])
        if message.get("tool_calls") and r.random() < 0.5:
            message["content"] = None
    keys = {key for message in messages for key in message} | {"tool_calls", "reasoning_content"}
    if r.random() < 0.7:
        found["messages"] = [{key: message.get(key) for key in sorted(keys)} for message in messages]
    return found


def typed(number):
    """A conversation with tools of all types of parameters, thoughts in `thinking`, and a developer's message."""
    r, found = random.Random(number), {"tools": []}
    for name in r.sample(["lookup", "paint", "send"], r.randint(1, 3)):
        properties = {f"p{i}": dict(kind, **({"description": text(r, "words")} if r.random() < 0.4 else {})) for i, kind in enumerate(r.sample(TYPES, r.randint(0, 5)))}
        parameters = {"type": "object", "properties": properties, **({"required": r.sample(sorted(properties), len(properties) // 2)} if r.random() < 0.7 else {})}
        found["tools"].append({"type": "function", "function": {"name": name, "description": text(r, "words"), **({"parameters": parameters} if r.random() < 0.9 else {})}})
    found["messages"] = [{"role": r.choice(["system", "developer"]), "content": text(r, "words")}] if r.random() < 0.6 else []
    for turn in range(r.choice([1, 2, 3])):
        found["messages"].append({"role": "user", "content": text(r, "words")})
        if r.random() < 0.6:
            made = call(r, turn)
            found["messages"].append({"role": "assistant", **r.choice([{"thinking": text(r, "words")}, {"content": text(r, "words")}, {}]), "tool_calls": [made]})
            found["messages"].append({"role": "tool", "tool_call_id": made["id"], "name": made["function"]["name"], "content": r.choice([text(r, "words"), "{\"ok\": true}"])})
        found["messages"].append({"role": "assistant", "content": text(r, "words"), **({"thinking": text(r, "words")} if r.random() < 0.5 else {})})
    return found
