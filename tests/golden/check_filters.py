#!/usr/bin/env python3
"""Compares the filters of `smelt data pack` with other code on random documents, and prints one line for each set.

    check_filters.py SMELT [DOCUMENTS] [SEED]

Rules: definitions of the papers, written in Python with `str.split` and `re`, as datatrove computes them. fastText: the
package `fasttext`, which trains small models of each kind here; smelt's probabilities must agree to 1e-4. Expressions:
Python's `eval` of the same text. Of each document the first broken rule and its value are compared; and dropped and kept
documents must be those read, with 1 and with several threads. Needs fasttext (or fasttext-wheel) and zstd.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

import fasttext

WORDS = ("the of and to a in that is was he for it with as his on be at by this have from or one had not but what all were when we "
         "there can an your which their said if do will each about how up out them then she many some so these would other into "
         "has more her two like him see time could no make than first been its who now people my made over did down only way "
         "model token gradient server data training memory café naïve straße 东京 données обучение").split()


# -- Documents


def sentence(chance):
    return " ".join(chance.choices(WORDS, k=chance.randint(1, 18))).capitalize() + chance.choice([".", "!", "?", "", "...", "…", '."', ","])


def document(chance):
    kind = chance.random()
    if kind < 0.35:
        lines = [" ".join(sentence(chance) for _ in range(chance.randint(1, 6))) for _ in range(chance.randint(1, 14))]
        lines += chance.choices(lines, k=chance.choice([0, 0, 0, 1, 3, 8]))
        return chance.choice(["\n", "\n\n"]).join(lines)
    if kind < 0.5:
        return " ".join(chance.choices(WORDS, k=chance.randint(1, 300)))
    if kind < 0.6:
        return " ".join(chance.choices(WORDS, k=chance.randint(3, 9)) * chance.randint(2, 30))
    if kind < 0.75:
        return "\n".join(chance.choice(["- ", "• ", "  -", ""]) + sentence(chance) for _ in range(chance.randint(1, 40)))
    if kind < 0.85:
        return " ".join(chance.choices(["#", "...", "{", "}", "lorem ipsum", "Lorem  Ipsum", ".", "the", "and", "word", "a1", "12"], k=chance.randint(1, 120)))
    if kind < 0.95:
        return "".join(chance.choices("abc \n\t#.!?…\u00a0\u3000\x85\x1céß日本한🙂{}\"'-", k=chance.randint(1, 300)))
    return chance.choice(["x", "…", ". . .", "a\n\n\nb", "one two. Three! Four? \"Five.\" Six.", "\n\nx\n\n\n\nx\n\nx", "the be the be"])


# -- Rules, as the papers have them


def letter(character):
    return unicodedata.category(character)[0] == "L"


def symbol(character):
    return unicodedata.category(character)[0] in "PS"


def repeated(parts):
    seen, count, characters = set(), 0, 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        seen.add(part)
    return count, characters


def statistics(text):
    words = text.split()
    lines = [line for line in text.split("\n") if line.strip()]
    paragraphs = [part for part in re.split(r"\n{2,}", text.strip())]
    real = [word for word in words if not all(map(symbol, word))]
    share = lambda part, whole: part / whole if whole else 0
    found = {
        "bytes": len(text.encode()), "characters": len(text), "words": len(real),
        "word_length": share(sum(map(len, real)), len(real)),
        "hashes": share(text.count("#"), len(words)), "ellipses": share(text.count("...") + text.count("…"), len(words)),
        "letter_words": share(sum(any(map(letter, word)) for word in words), len(words)),
        "stop_words": len({"the", "be", "to", "of", "and", "that", "have", "with"} & set(words)),
        "lines": len(lines), "bullet_lines": share(sum(line.strip().startswith(("-", "•")) for line in lines), len(lines)),
        "ellipsis_lines": share(sum(line.strip().endswith(("...", "…")) for line in lines), len(lines)),
        "closed_lines": share(sum(line.strip().endswith((".", "!", "?", '"', "'", "”", "。", "！", "？")) for line in lines), len(lines)),
        "short_lines": share(sum(len(line) <= 30 for line in lines), len(lines)),
        "sentences": len(re.findall(r"""[.!?。！？]["')”]*(?=\s|$)""", text)),
        "braces": text.count("{") + text.count("}"), "lorem_ipsum": text.lower().count("lorem ipsum"),
    }
    count, characters = repeated(lines)
    found["repeated_lines"], found["repeated_line_characters"] = share(count, len(lines)), share(characters, len(text))
    count, characters = repeated(paragraphs)
    found["repeated_paragraphs"], found["repeated_paragraph_characters"] = share(count, len(paragraphs)), share(characters, len(text))
    for n in (2, 3, 4):
        runs = [" ".join(words[i:i + n]) for i in range(len(words) - n + 1)]
        counts = {}
        for run in runs:
            counts[run] = counts.get(run, 0) + 1
        top = max(counts, key=counts.get) if runs else ""
        found["top_%d_words" % n] = share(len(top) * counts.get(top, 0), len(text))
    for n in range(5, 11):
        seen, at, characters = set(), 0, 0
        while at + n <= len(words):
            run = tuple(words[at:at + n])
            if run in seen:
                characters += sum(map(len, run))
                at += n
            else:
                seen.add(run)
                at += 1
        found["repeated_%d_words" % n] = share(characters, len(text))
    return found


# -- smelt


def pack(smelt, folder, threads, *settings):
    """The verdict of each line: None, or the rule that drops it and the value."""
    output = os.path.join(folder, "out")
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    command = [smelt, "data", "pack", "documents.jsonl", output, "overwrite=true", *settings]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode and "no document of" not in result.stderr:
        sys.exit("%s: %s" % (" ".join(command), result.stderr))
    verdicts = {}
    if result.returncode:
        return None
    lines = subprocess.run(["zstd", "-dc", output + ".dropped.jsonl.zst"], capture_output=True, check=True).stdout.decode()
    for line in lines.splitlines():
        drop = json.loads(line)
        assert drop["line"] not in verdicts, drop
        verdicts[drop["line"]] = drop["rule"], drop["value"]
    counts = json.load(open(output + ".pack.json"))
    bad = sum(counts["bad"].values())
    assert counts["counts"]["records"] == counts["counts"]["documents"] + len(verdicts), counts
    assert counts["counts"]["filtered"] == len(verdicts) - bad == sum(counts["rules"].values()), counts
    return verdicts


def same(smelt, folder, name, expected, *settings):
    """Compares verdicts for 1 and 3 threads with a list of (rule, value) or None."""
    wrong = 0
    for threads in (1, 3):
        verdicts = pack(smelt, folder, threads, *settings)
        if verdicts is None:
            assert all(expected), name
            continue
        for line, want in enumerate(expected, 1):
            got = verdicts.get(line)
            near = got and want and got[0] == want[0] and (got[1] == want[1] or isinstance(want[1], float) and abs(got[1] - want[1]) <= 1e-8 * abs(want[1]) + (1e-4 if "." in name else 0))
            if not (got is None and want is None or near):
                wrong += 1
                if wrong <= 3:
                    print("%s, line %d: %s in place of %s" % (name, line, got, want), file=sys.stderr)
    print("%-44s %6d documents, %6d dropped, %d differ" % (name, len(expected), sum(map(bool, expected)), wrong))
    return wrong


def check_rules(smelt, folder, texts):
    wrong, found = 0, [statistics(text) for text in texts]
    for name in found[0]:
        values = sorted(one[name] for one in found)
        middle = values[len(values) // 2]
        rule = "text.%s <= %.9g" % (name, middle)
        limit = float("%.9g" % middle)
        expected = [None if one[name] <= limit else (rule, float(one[name])) for one in found]
        wrong += same(smelt, folder, rule, expected, "where=" + rule)
    return wrong


def edited(text):
    """The lines that stay, as datatrove's C4QualityFilter keeps them."""
    stays = []
    for line in text.splitlines():
        line = line.strip()
        words = line.split()
        if any(len(word) > 1000 for word in words):
            continue
        line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line)
        low = line.lower()
        policy = any(phrase in low for phrase in ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"))
        if line.endswith((".", "?", "!", '"', "'")) and not line.endswith("...") and len(words) >= 3 and "javascript" not in low and not policy:
            stays.append(line)
    return "\n".join(stays).strip()


def check_lines(smelt, folder, texts, chance):
    """The bytes that are left of each text, seen by a rule that none fulfills but a copy of one that stays whole."""
    odd = ["use [1]", "[edit]", "JavaScript", "Privacy Policy", "\u2028", "\x1c", "\r", "w" * 1001, "[citation needed].", "x x x."]
    texts = ["".join(chance.choice([text[:chance.randint(0, 200)], " ", "\n", chance.choice(odd)]) for _ in range(chance.randint(1, 9))) for text in texts]
    with open(os.path.join(folder, "documents.jsonl"), "w") as file:
        for text in texts + ["one line stays."]:
            file.write(json.dumps({"text": text}) + "\n")
    expected = []
    for text in texts:
        size = len(edited(text).encode())
        expected.append(("text.bytes == 15", float(size)) if size and size != 15 else None if size else ("empty", "lines= leaves nothing of it" if text else "text"))
    return same(smelt, folder, "lines=c4", expected + [None], "lines=c4", "where=text.bytes == 15")


def check_expressions(smelt, folder, records, chance):
    wrong = 0
    for _ in range(30):
        clauses = []
        for _ in range(chance.randint(1, 3)):
            clauses.append(chance.choice([
                lambda: ("score %s %g" % (chance.choice(["<", "<=", ">", ">=", "==", "!="]), chance.choice([0, 1, 2.5, 0.5, 3, -1]))),
                lambda: 'lang in ["en", %s]' % chance.choice(['"de"', '"fr", "it"', "null"]),
                lambda: 'meta.kind == "%s"' % chance.choice(["web", "book"]),
                lambda: "not (clean and score < %d)" % chance.randint(0, 4),
                lambda: "(lang == 'en' or score > %d or clean)" % chance.randint(0, 3),
                lambda: "lang != null",
                lambda: "clean"])())
        want = []
        for record in records:
            first = None
            for clause in clauses:
                names = {"score": record.get("score"), "lang": record.get("lang"), "kind": record.get("meta", {}).get("kind"), "clean": record.get("clean", False), "null": None}
                test = clause.replace("meta.kind", "kind")
                if names["score"] is None and re.search(r"score (<|<=|>|>=) ", test):
                    test = re.sub(r"score (<=|>=|<|>) -?[\d.]+", "False", test)
                if not eval(test, {}, names):  # the clauses are those above
                    name = re.search(r"score|lang|meta\.kind|clean", clause)[0]
                    read = re.findall(r"score|lang|kind|clean", test)
                    value = names[{"meta.kind": "kind"}.get(name, name)] if name != "clean" or "clean" in record else None
                    first = clause, value
                    break
            want.append(first)
        wrong += same(smelt, folder, " and ".join(clauses), want, "where=" + " and ".join(clauses))
    return wrong


def check_fasttext(smelt, folder, texts, chance):
    wrong, training = 0, os.path.join(folder, "training.txt")
    with open(training, "w") as file:
        for _ in range(3000):
            label = chance.choice(["en", "en", "en", "de", "fr", "hq"])
            words = chance.choices(WORDS, k=chance.randint(2, 30)) + [label + chance.choice("xyz")] * chance.randint(0, 4)
            chance.shuffle(words)
            file.write("__label__%s %s\n" % (label, " ".join(words)))
    kinds = [dict(loss="softmax"), dict(loss="hs", minn=2, maxn=4), dict(loss="ova", wordNgrams=2), dict(loss="softmax", wordNgrams=3, minn=3, maxn=6, bucket=5000), dict(loss="ns")]
    for number, kind in enumerate(kinds):
        model = fasttext.train_supervised(training, dim=8 + number, epoch=3, thread=1, verbose=0, **{"bucket": 20000, **kind})
        path = os.path.join(folder, "model.bin")
        model.save_model(path)
        scores = []
        for text in texts:
            scores.append({label[len("__label__"):]: p for p, label in model.f.predict(text.replace("\n", " ") + "\n", -1, -1.0, "strict")})
        for label in ("en", "hq"):
            limit = sorted(one.get(label, 0) for one in scores)[len(scores) // 2]
            limit = float("%.6g" % limit)
            rule = "lang.%s > %.6g" % (label, limit)
            # a score within the tolerance of the limit may fall on either side
            expected = [None if one.get(label, 0) > limit else (rule, float(one.get(label, 0))) for one in scores]
            got = pack(smelt, folder, 2, "fasttext=lang:" + path, "where=" + rule)
            differ = 0
            for line, one in enumerate(scores, 1):
                verdict, p = got.get(line), one.get(label, 0)
                if abs(p - limit) > 1e-4 and bool(verdict) != bool(expected[line - 1]) or verdict and abs(verdict[1] - p) > 1e-4:
                    differ += 1
                    if differ <= 3:
                        print("%s: line %d: %s, %g" % (kind, line, verdict, p), file=sys.stderr)
            print("fasttext %-35s %6d documents, %6d dropped, %d differ" % ("%s %s" % (kind, label), len(texts), len(got), differ))
            wrong += differ
    return wrong


def main():
    smelt, count, seed = os.path.abspath(sys.argv[1]), int((sys.argv[2:3] or ["2000"])[0]), int((sys.argv[3:4] or ["1"])[0])
    chance = random.Random(seed)
    texts = [document(chance) for _ in range(count)]
    records = []
    for text in texts:
        record = {"text": text}
        if chance.random() < 0.9:
            record["score"] = chance.choice([0, 1, 2, 3, 4, 0.5, 2.5, 3.75])
        if chance.random() < 0.9:
            record["lang"] = chance.choice(["en", "de", "fr"])
        if chance.random() < 0.9:
            record["meta"] = {"kind": chance.choice(["web", "book"])}
        if chance.random() < 0.9:
            record["clean"] = chance.random() < 0.5
        records.append(record)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "documents.jsonl"), "w") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=chance.random() < 0.5) + "\n")
        wrong = check_rules(smelt, folder, texts) + check_expressions(smelt, folder, records, chance) + check_fasttext(smelt, folder, texts, chance)
        wrong += check_lines(smelt, folder, texts, chance)
    sys.exit("%d differ" % wrong if wrong else 0)


if __name__ == "__main__":
    main()
