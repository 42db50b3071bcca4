#!/usr/bin/env python3
"""Drives the page of `smelt serve` in headless Chromium.

    serve.py SMELT

A small model learns a line of hostile markup, so its answers are markup: they must appear as text. The page streams, stops, keeps a
conversation, asks for a key, and is no wider than a phone.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from browser import Browser, check, finish

LINE = "<img src=x onerror=document.title='harmed'><script>document.title='harmed'</script>"
TRAIN = ("data.train=lines model.family=llama model.width=64 model.layers=1 model.heads=2 model.ffn=128 data.length=128 batch.sequences=4 batch.tokens=512 "
         "optimizer.lr=1e-2 schedule.warmup=4 steps=200 threads=2 device=cpu eval.every=0 checkpoint.every=0 model.context=8192 run=r").split()


def serve(smelt, key=""):
    process = subprocess.Popen([smelt, "serve", "r", "port=0", "device=cpu", "threads=1", "slots=2", "template=chatml"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, env={**os.environ, "SMELT_API_KEY": key})
    return process, re.search(r"http://[^ ;,]*", process.stdout.readline())[0]


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


SETTLED = "!document.getElementById('send').disabled"
TURNS = "[...document.querySelectorAll('.turn')].map(e => e.textContent)"


def send(browser, text, **settings):
    for name, value in settings.items():
        browser.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
    browser.run(f"document.getElementById('text').value = {json.dumps(text)}; document.getElementById('form').requestSubmit()")


def try_page(browser, url):
    browser.call("Page.navigate", url=url)
    check("the page names the model", browser.wait("document.getElementById('name')?.textContent === 'r'"), browser.run("document.body.innerText"))
    check("a model with a template chats", browser.run("document.getElementById('mode').value") == "chat")

    start = LINE[:30]
    send(browser, start, mode="text", temperature="0", max_tokens="200")
    browser.wait(SETTLED)
    whole = post(url + "v1/completions", {"prompt": start, "temperature": 0, "max_tokens": 200})["choices"][0]["text"]
    turns = browser.run(TURNS)
    check("the answer is the server's", turns == [start, whole], turns)
    check("the model's answer is markup", LINE[30:] in whole, whole)
    check("no element comes from a text", browser.run("document.querySelectorAll('img, #log script').length") == 0)
    check("no script of a text ran", browser.run("document.title") == "r", browser.run("document.title"))

    browser.run("document.getElementById('fresh').click()")
    check("a new conversation is empty", browser.run(TURNS) == [])
    send(browser, "hi", mode="chat", max_tokens="8", system="be brief")
    browser.wait(SETTLED)
    first = browser.run(TURNS)[1]
    send(browser, "more")
    browser.wait(SETTLED)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": first},
                {"role": "user", "content": "more"}]
    expected = post(url + "v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8})["choices"][0]["message"]["content"]
    check("a conversation goes on", browser.run(TURNS)[3] == expected, browser.run(TURNS))

    send(browser, start, mode="text", max_tokens="7000", temperature="0.5")
    check("an answer arrives in parts", browser.wait(f"document.querySelectorAll('.turn')[5]?.textContent.length > 5 && !({SETTLED})"))
    browser.run("document.getElementById('stop').click()")
    check("an answer stops", browser.wait(SETTLED) and browser.run("document.getElementById('log').lastChild.textContent") == "stopped")
    for _ in range(100):
        metrics = urllib.request.urlopen(url + "metrics").read().decode()
        if (ended := re.search(r"^smelt_\w*running\w* 0$", metrics, re.M)):
            break
        time.sleep(0.1)
    check("the server stops too", ended, metrics)

    send(browser, "a", max_tokens="100000")
    browser.wait(SETTLED)
    check("an error is told", "100000" in browser.run("document.querySelector('.error').textContent"))
    browser.check_widths()


def try_key(browser, url):
    browser.call("Page.navigate", url=url)
    check("the page asks for the key", browser.wait("document.querySelector('.error')?.textContent.includes('key') && document.getElementById('settings').open"))
    browser.run("const k = document.getElementById('key'); k.value = 'secret'; k.dispatchEvent(new Event('change'))")
    check("the key opens", browser.wait("document.getElementById('name').textContent === 'r'"))
    send(browser, "a", mode="text", max_tokens="3")
    browser.wait(SETTLED)
    check("requests have the key", len(browser.run("document.querySelector('.turn:not(.user):not(.error)').textContent")) > 0)


def main():
    smelt = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("lines", "w") as file:
            file.write((LINE + "\n") * 400)
        subprocess.run([smelt, "train", *TRAIN], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        browser = Browser(folder + "/profile")
        for key, run in (("", try_page), ("secret", try_key)):
            server, url = serve(smelt, key)
            run(browser, url)
            server.terminate()
            check("the server ends cleanly", server.wait() == 0)
        browser.close()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
