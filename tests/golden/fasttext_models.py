#!/usr/bin/env python3
"""Writes tests/golden/fasttext: small models of each kind by the package fasttext (or fasttext-wheel), and in scores.json what its predict says of texts.

tests/filter/test_filter.c compares smelt's scores with these, and refuses every file that is cut short."""
import json
import os
import random

import fasttext

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fasttext")
KINDS = {"softmax": dict(loss="softmax"), "tree": dict(loss="hs", minn=2, maxn=3), "each": dict(loss="ova", wordNgrams=2), "sampled": dict(loss="ns", wordNgrams=3, minn=3, maxn=4)}
WORDS = "the cat sat on a mat der hund und die katze le chien et déjà vu собака".split()
TEXTS = ["the cat sat on the mat", "der Hund und die Katze", "le chien et la souris déjà vu", "unknown words only", "", "  \n\t ", "собака the", "</s> the cat", "cat </s> der hund", "__label__en cat", "the\ncat\nsat"]
chance = random.Random(1)
os.makedirs(ROOT, exist_ok=True)
training = os.path.join(ROOT, "training.txt")
with open(training, "w") as file:
    for i in range(400):
        start = chance.choice([0, 0, 6, 11])
        file.write("__label__%s %s\n" % ({0: "en", 6: "de", 11: "fr"}[start], " ".join(chance.choices(WORDS[start:start + 5], k=6))))
scores = {}
for name, kind in KINDS.items():
    model = fasttext.train_supervised(training, dim=4, epoch=20, lr=0.5, thread=1, verbose=0, bucket=40, minCount=2, **kind)
    model.save_model(os.path.join(ROOT, name + ".bin"))
    scores[name] = [{label[9:]: p for p, label in model.f.predict(text.replace("\n", " ") + "\n", -1, -1.0, "strict")} for text in TEXTS]
os.remove(training)
json.dump({"texts": TEXTS, "scores": scores}, open(os.path.join(ROOT, "scores.json"), "w"), indent=1, ensure_ascii=False)
