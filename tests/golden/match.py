#!/usr/bin/env python3
"""Writes tests/golden/match.jsonl, the texts, answers and results for tests/base/test_match.c: match.py > match.jsonl

Results come from other code: exact, str.strip; number, fractions.Fraction of the number that a form writes, and for plain
texts the pattern "flexible-extract" of lm-evaluation-harness's task gsm8k; boxed, is_equiv of its task hendrycks_math, or
equal Fractions; regex, its RegexFilter. Needs lm_eval (0.4.13).
"""
import json
import random
import re
from fractions import Fraction

from lm_eval.filters.extraction import RegexFilter
from lm_eval.tasks.hendrycks_math.utils import is_equiv, last_boxed_only_string, remove_boxed

rng = random.Random(1)
rows = []


def row(kind, text, answer, result, pattern=None):
    rows.append({"kind": kind, "text": text, "answer": answer, "matches": bool(result)} | ({"pattern": pattern} if pattern else {}))


# -- Numbers


def decimals(value):
    """The value as a decimal, or None if it has no end."""
    for places in range(30):
        scaled = value * 10**places
        if scaled.denominator == 1:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            return ("-" if value < 0 else "") + (digits[:-places] + "." + digits[-places:] if places else digits)
    return None


def forms(value, latex):
    """Ways to write a number. Latex: within \\boxed."""
    n, d = value.numerator, value.denominator
    k = rng.randint(2, 9)
    yield f"{n * k}/{d * k}" if n > 0 and d > 1 else str(n) if d == 1 else f"{n}/{d}"
    yield rng.choice(["\\frac", "\\dfrac", "\\tfrac"]) + f"{{{n}}}{{{d}}}"
    yield ("-" if n < 0 else "") + f"\\frac{{{abs(n)}}}{{{d}}}"
    text = decimals(value)
    if text is None:
        return
    yield text
    yield text + ("0" if "." in text else rng.choice([".0", ".00"]))
    yield text.replace("-", "\u2212")
    yield text + rng.choice(["e0", "E+0"])
    yield ("-" if n < 0 else "") + "$" + text.lstrip("-")
    yield text + ("\\%" if latex else "%")
    if text.startswith(("0.", "-0.")):
        yield text.replace("0.", ".", 1)
    whole, point, rest = text.lstrip("-").partition(".")
    if len(whole) > 3:
        grouped = f"{int(whole):,}" + point + rest
        yield ("-" if n < 0 else "") + (grouped.replace(",", "{,}") if latex and rng.random() < 0.5 else grouped)
    shift = rng.randint(1, 4)
    yield decimals(value / 10**shift) + f"e{shift}"
    yield decimals(value * 10**shift) + f"e-{shift}"


def random_value():
    kind = rng.randrange(5)
    if kind == 0:
        return Fraction(rng.randint(-20, 20))
    if kind == 1:
        return Fraction(rng.randint(-10**7, 10**7))
    if kind == 2:
        return Fraction(rng.randint(-5000, 5000), 10 ** rng.randint(1, 4))
    if kind == 3:
        return Fraction(rng.randint(-30, 30), rng.randint(1, 12))
    return Fraction(rng.randint(10**38, 10**40))


def near(value):
    """The value, or another that is easily taken for it."""
    return value if rng.random() < 0.55 else rng.choice(
        [value + 1, -value, value * 10, value / 10, value + Fraction(1, 10**6), value + Fraction(1, 10**25) if value.denominator == 1 else 1 / (value or 1)])


START = ["", "So 3 + 4 = 7. The answer is ", "We get\n", "10 or 11? It is ", "Step 1: ", "**", "x = ", "(5)-(3) gives ", "\\frac{1}{2} is not "]
END = ["", ".", " apples.", "\n\n", "!", ", that is all", "**", ")", " dollars per day", "kg"]
for _ in range(160):
    value = random_value()
    other = near(value)
    row("number", rng.choice(START) + rng.choice(list(forms(value, False))) + rng.choice(END), rng.choice(list(forms(other, False))), value == other)

GSM8K = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
WORDS = "the answer is so we have apples and costs minutes in total".split()


def gsm8k(text):
    found = GSM8K.findall(text)
    return Fraction(re.sub(r",|\$|\.$", "", [group for group in found[-1] if group][0])) if found else None


for _ in range(60):
    words = [rng.choice(WORDS) if rng.random() < 0.7 else rng.choice(["$", ""]) + f"{rng.randint(0, 10**rng.randint(1, 7)):,}" for _ in range(9)]
    text, answer = " ".join(words) + rng.choice(["", "."]), "Six and six.\n#### " + str(rng.randint(0, 12))
    value = gsm8k(text)
    if value is not None and rng.random() < 0.7:
        answer = "#### " + (f"{value.numerator:,}" if rng.random() < 0.5 else str(value))
    row("number", text, answer, value is not None and value == gsm8k(answer))
for text, answer, result in [("2024-05", "5", True), ("2024-05", "-5", False), ("7 - -5", "-5", True), ("none", "3", False), ("3", "none", False),
                             ("9" * 300, "9" * 256, False), ("", "0", False), ("-0", "0", True), ("1/0", "0", True), ("1, 2, 3", "3", True),
                             ("1,234,5", "5", True), ("007", "7", True), ("1e999999999999", "1e5", False), ("a\x005", "5", True)]:
    row("number", text, answer, result)

# -- Boxed

EXPRESSIONS = ["x^2+3x", "x^{2}+3x", "\\sqrt3", "\\sqrt{3}", "2\\sqrt3", "2 \\sqrt{3}", "\\frac12", "\\frac{1}{2}", "\\dfrac{1}{2}", "\\frac1{72}",
               "\\frac{\\pi}{2}", "\\tfrac{\\pi}{2}", "\\frac\\pi2", "\\left(1,2\\right)", "(1,2)", "(1, 2)", "(1,3)", "90^\\circ", "90^{\\circ}", "90",
               "x=5", "5", "x = 5", "xyz=5", "5\\text{ cm}", "5 \\text{ cm}", "\\text{(A)}", "(A)", "\\$5", "5\\%", "\\text{even}", "0.5", ".5", "1/2",
               "\\{1,2\\}", "[0,\\infty)", "[0, \\infty)", "2^{10}", "1024", "10\\!,000", "10,000", "a+b=c", "-\\frac{1}{2}", "\\frac{-1}{2}",
               "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\frac{3}{4}x", "\\dfrac34x", "", "."]
# What is_equiv takes for different, but has one number.
NUMBERS = {"\\frac12": "1/2", "\\frac{1}{2}": "1/2", "\\dfrac{1}{2}": "1/2", "0.5": "1/2", ".5": "1/2", "1/2": "1/2", "-\\frac{1}{2}": "-1/2",
           "\\frac{-1}{2}": "-1/2", "10\\!,000": "10000", "10,000": "10000", "\\$5": "5", "x=5": "5", "x = 5": "5", "5": "5", "5\\%": "5",
           "5\\text{ cm}": "5", "5 \\text{ cm}": "5"}
SAME = [{"\\text{(A)}", "(A)"}, {"", "."}]  # beyond is_equiv: texts, a dot at the end
for a in EXPRESSIONS:
    others = [b for b in EXPRESSIONS if is_equiv(a, b) or NUMBERS.get(a, a) == NUMBERS.get(b, b) or {a, b} in SAME]
    for b in others + rng.sample(EXPRESSIONS, 3):
        text = rng.choice(["", "Thus \\boxed{1}, no, ", "$"]) + "\\boxed{" + a + "}" + rng.choice(["", ".", "$", "} \\fbox{9}"])
        row("boxed", text, b if rng.random() < 0.7 else "\\boxed{" + b + "}", b in others)
for text in ["\\boxed{5", "5", "\\boxed{4} and \\boxed{5", "\\fbox{5}", "$\\boxed 5$", "\\boxed{\\boxed{5}}", "\\boxed5", "\\boxed"]:
    found = last_boxed_only_string(text)
    row("boxed", text, "5", found is not None and is_equiv(remove_boxed(found) if "fbox" not in found else found[6:-1], "5"))
for _ in range(120):
    value = random_value()
    other = near(value)
    row("boxed", "It is $\\boxed{" + rng.choice(list(forms(value, True))) + "}$.", rng.choice(list(forms(other, True))), value == other)

# -- Exact

for text, answer in [("Paris", "Paris"), (" Paris\n", "Paris"), ("Paris.", "Paris"), ("paris", "Paris"), ("", ""), ("", "a"), ("a b", "a  b"),
                     ("\u6771\u4eac ", "\u6771\u4eac"), ("a\x00", "a"), ("Paris", "\tParis ")]:
    row("exact", text, answer, text.strip() == answer.strip())

# -- Regular expressions

PATTERNS = ["#### (\\-?[0-9\\.\\,]+)", "answer is (\\w+)", "(?:A|B)|(C)", "(a)|(b)", "[A-D]", "(?i)answer: *([a-d])", "(\\d+)\\s*$", "<a>(.*?)</a>", "\u6771(.)"]
TEXTS = ["so #### 72", "#### -1,000.5", "the answer is four.", "ANSWER: c", "b", "a", "C", "A", "12\n34", "<a> x </a><a>y</a>", "\u6771\u4eac", "", "<a></a>"]
ANSWERS = ["72", "-1,000.5", "four", "c", "b", "C", "34", "x", "\u4eac", "A", "a"]
for pattern in PATTERNS:
    for text in TEXTS:
        found = RegexFilter(pattern, 0, "[invalid]").apply([[text]], [])[0][0]
        for answer in {found, rng.choice(ANSWERS)} - {"[invalid]", ""} or {rng.choice(ANSWERS)}:
            row("regex", text, answer, found == answer, pattern)

for each in rows:
    print(json.dumps(each))
