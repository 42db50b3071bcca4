#!/usr/bin/env python3
"""Drives the charts of the report page in headless Chromium, from a file: pointer, touch, keyboard, zoom, scales, runs shown and hidden, samples.

    report.py SMELT

Names, alarms and samples of the runs are markup: they must appear as text. A page of 1,000,000 steps opens in under a second and stays under 60 MB.
"""
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from browser import Browser, check, finish

MARKUP = "<img src=x onerror=document.title='harmed'><script>document.title='harmed'</script>"
CONNECTED = "document.querySelector('.live')?.textContent === 'connected'"
LOSS = ".chart[data-series=loss] .area"


def write_run(folder, steps, shift, tokens=1000):
    os.makedirs(folder)
    with open(folder + "/config.yaml", "w") as file:
        file.write(f"steps: {steps}\noptimizer:\n  lr: {shift + 0.5}\n")
    with open(folder + "/log.txt", "w") as file:
        file.write(f"2026-01-31T12:00:00Z {MARKUP}\n")
    with open(folder + "/metrics.jsonl", "w") as file:
        def put(kind, step, **values):
            file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        put("start", 0, machine=MARKUP)
        for step in range(1, steps + 1):
            put("step", step, loss=2 + shift + 6 * math.exp(-step / steps * 20) + 0.01 * (step % 7), lr=0.001, grad_norm=1 + step % 3, tokens_seen=step * tokens,
                tokens_per_second=1000, time=1790000000 + step * 36)
            if step % (steps // 4) == 0:
                put("load", step, load=[[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
                put("evaluation", step, loss=3 - step / steps + shift, bits_per_byte=1)
                put("sample", step, prompt=MARKUP, text=f"{MARKUP} {step}")
        put("checkpoint", steps // 2, bytes=1 << 20, milliseconds=500)
        put("event", steps // 2, event="loss_spike", message=MARKUP)


class Page:
    def __init__(self, browser, path):
        self.browser = browser
        browser.call("Page.navigate", url=path if ":" in path else "file://" + os.path.abspath(path))
        check(f"{path}: the script runs", browser.wait("document.querySelectorAll('.area').length > 0"))

    def run(self, script):
        return self.browser.run(script)

    def place(self, part):
        self.run(f"document.querySelector('{LOSS}').scrollIntoView({{block: 'center'}})")
        left, top, width, height = self.run(f"(r => [r.x, r.y, r.width, r.height])(document.querySelector('{LOSS}').getBoundingClientRect())")
        return {"x": left + part * width, "y": top + height / 2}

    def mouse(self, kind, part, **more):
        self.browser.call("Input.dispatchMouseEvent", type=kind, **self.place(part), **more)

    def drag(self, start, end, **more):
        self.mouse("mouseMoved", start)
        self.mouse("mousePressed", start, button="left", clickCount=1, **more)
        self.mouse("mouseMoved", end, button="left", buttons=1, **more)
        self.mouse("mouseReleased", end, button="left", clickCount=1, **more)

    def touch(self, kind, *parts):
        self.browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{**self.place(part), "id": i} for i, part in enumerate(parts)])

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if len(key) == 1 and kind == "keyDown" else {}))

    def choose(self, selector, value, field="value"):
        self.run(f"(e => {{ e.{field} = {json.dumps(value)}; e.dispatchEvent(new Event('input', {{bubbles: true}})) }})(document.querySelector('{selector}'))")

    def told(self):
        return self.run("document.querySelector('.readout')?.innerText ?? ''")

    def labels(self, axis):
        return self.run(f"[...document.querySelectorAll('.chart[data-series=loss] .{axis} span')].map(e => e.textContent)")

    def range(self):
        return self.run("view.range")


def try_one(page):
    picture = page.run("document.querySelector('.chart[data-series=loss] svg').innerHTML")
    page.mouse("mouseMoved", 0.5)
    check("the pointer gets step, tokens, hours and loss", page.told().startswith("step 200, 200k tokens, 1.99 h\n2.0"), page.told())
    check("and what happened there", "validation after step 200: 2.5" in page.told() and "checkpoint, 1.00 MiB in 0.5s" in page.told(), page.told())
    check("alarms are text", MARKUP in page.told() and page.run("document.querySelectorAll('img').length") == 0, page.told())
    check("each chart has the crosshair", page.run("document.querySelectorAll('.cross').length") == page.run("document.querySelectorAll('.area').length"))
    page.mouse("mouseMoved", -0.05)
    check("the crosshair leaves with the pointer", page.told() == "")

    page.drag(0.25, 0.5)
    low, high = page.range()
    check("dragging zooms", abs(low - 100) < 2 and abs(high - 200) < 2, page.range())
    check("the axes follow", page.labels("xlabels")[0] == "100" and float(page.labels("ylabels")[-1]) < 3.2, page.labels("ylabels"))
    page.drag(0.5, 0.25, modifiers=8)
    check("dragging with shift moves", abs(page.range()[0] - 125) < 2 and abs(page.range()[1] - 225) < 2, page.range())
    page.run("document.getElementById('whole').click()")
    page.mouse("mouseMoved", -0.05)
    check("a button shows all", page.range() is None)
    check("the picture is as before", page.run("document.querySelector('.chart[data-series=loss] svg').innerHTML") == picture)

    page.run(f"document.querySelector('{LOSS}').focus()")
    page.key("Home")
    check("the keyboard moves to the first step", page.told().startswith("step 1,"), page.told())
    page.key("ArrowRight")
    said = page.run(f"document.querySelector('{LOSS}').getAttribute('aria-valuetext')")
    check("and by steps, and is said", page.told().startswith("step 2,") and said.startswith("step 2, 2000 tokens"), said)
    page.key("+")
    check("plus zooms", page.range() and page.range()[1] < 300, page.range())
    page.key("End")
    check("the view follows the crosshair", page.told().startswith("step 400,") and page.range()[1] >= 400, page.range())
    page.key("0")
    check("0 shows all", page.range() is None)
    page.run("document.activeElement.blur()")

    page.choose("#axis", "time")
    check("x counts hours", page.labels("xlabels")[-1] == "4" or page.labels("xlabels")[-1] == "3.5", page.labels("xlabels"))
    page.choose("#axis", "tokens")
    check("x counts tokens", page.labels("xlabels")[-1] == "400k", page.labels("xlabels"))
    page.choose("#axis", "step")
    page.choose("[data-log=loss]", True, "checked")
    check("the loss is on a logarithmic axis", "7" in page.labels("ylabels"), page.labels("ylabels"))
    page.choose("[data-log=loss]", False, "checked")
    page.choose("#smooth", "0")
    check("without smoothing the curve is each step", page.run("document.querySelectorAll('.chart[data-series=loss] .curve.raw').length") == 0)

    cell = "(i => [...document.querySelectorAll('canvas')[1].getContext('2d').getImageData(0, i, 1, 1).data].join())"
    check("maps of load are painted", page.run(cell + "(0)") != page.run(cell + "(3)") == page.run(cell + "(2)"), page.run(cell + "(0)"))
    left, top = page.run("(canvas => (canvas.scrollIntoView({block: 'center'}), (r => [r.x + 2, r.y + 2])(canvas.getBoundingClientRect())))(document.querySelectorAll('canvas')[1])")
    page.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
    check("a cell tells its load", page.run("document.querySelectorAll('.map p')[1].textContent") == "expert 0, steps 100\u2013199: 2.00\u00d7",
          page.run("document.querySelectorAll('.map p')[1].textContent"))
    page.run("document.querySelectorAll('canvas')[1].focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.key(key)
    check("also by keys", page.run("document.querySelectorAll('.map p')[1].textContent") == "expert 2, steps 200\u2013299: \u2264 0.25\u00d7")

    check("one sample is shown, the newest", page.run("[...document.querySelectorAll('#samples tr:not([hidden]) td')].map(e => e.innerText)") == [f"{MARKUP} 400"])
    page.choose("#sample", "0")
    check("the slider shows the first", page.run("document.querySelector('#samples tr:not([hidden]) td').innerText") == f"{MARKUP} 100")
    check("the bar links the parts", page.run("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))"))
    check("the summary is Markdown", "| Validation loss | 2.0000 | step 400, the best so far |" in page.run("document.querySelector('#summary pre').textContent"))
    page.run("document.getElementById('copy').click()")
    check("the summary is copied or selected", page.browser.wait("document.getElementById('copy').textContent !== 'copy'"))
    check("no text became an element", page.run("document.querySelectorAll('img, main script').length") == 0 and page.run("document.title").startswith("<img"))


def try_touch(page):
    page.browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    page.touch("touchStart", 0.25)
    check("a finger gets values", page.told().startswith("step 100,"), page.told())
    page.touch("touchMove", 0.5)
    check("they follow the finger", page.told().startswith("step 200,"), page.told())
    page.touch("touchEnd")
    page.touch("touchStart", 0.4, 0.6)
    page.touch("touchMove", 0.2, 0.8)
    page.browser.wait("view.range", 5)
    check("two fingers zoom", page.range() and abs(page.range()[1] - page.range()[0] - 400 / 3) < 4, page.range())
    page.touch("touchEnd")
    page.browser.call("Emulation.setTouchEmulationEnabled", enabled=False)


def try_several(page):
    curves = "[...document.querySelectorAll('.chart[data-series=loss] .curve')].map(e => e.classList[1])"
    check("both runs have curves", page.run(curves) == ["c0", "c1"], page.run(curves))
    page.mouse("mouseMoved", 0.5)
    check("values have the names of runs", MARKUP[:40] in page.told() and "\nplain" in page.told(), page.told())
    page.choose("[data-shown=\"0\"] input", False, "checked")
    check("a run can be hidden", page.run(curves) == ["c1"], page.run(curves))
    check("the axis fits the other", float(page.labels("ylabels")[0]) <= 3.2, page.labels("ylabels"))


def try_live(browser, smelt):
    """What a reader has chosen survives the parts that come anew."""
    write_run("many", 3000, 2)
    server = subprocess.Popen([smelt, "watch", ".", "port=0"], stdout=subprocess.PIPE, text=True)
    url = re.search(r"http://[^ ;]*", server.stdout.readline())[0]
    browser.call("Page.navigate", url=url)
    check("the list has all runs", browser.wait(CONNECTED) and browser.run("document.querySelectorAll('[data-run]').length") == 3)
    names = "[...document.querySelectorAll('.index tbody tr:not([hidden]) a')].map(e => e.textContent.slice(0, 5))"
    check("the list is by name", browser.run(names) == ["<img ", "many", "plain"], browser.run(names))
    browser.run("document.querySelector('[data-sort=\"2\"]').click(), document.querySelector('[data-sort=\"2\"]').click()")
    check("a click on a head sorts, another the other way round", browser.run(names) == ["many", "plain", "<img "], browser.run(names))
    browser.run("(e => { e.value = 'PLAI'; e.dispatchEvent(new Event('input', {bubbles: true})) })(document.querySelector('#filter'))")
    check("a filter leaves the runs that have it", browser.run(names) == ["plain"], browser.run(names))
    browser.run("box = document.querySelector('[data-run=plain]'); box.focus(); box.click()")
    with open("plain/metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "step": 201, "loss": 1.75, "tokens_seen": 201000, "time": 1790007236}\n')
    check("the list follows its runs", browser.wait("document.querySelector('#runs').innerText.includes('1.7500')"))
    check("order and filter stay", browser.run(names) == ["plain"], browser.run(names))
    check("a choice and the focus stay", browser.run("document.activeElement.checked && document.activeElement !== box && document.activeElement.dataset.run") == "plain")
    page = Page(browser, url + "?runs=plain")
    browser.wait(CONNECTED)
    page.run(f"document.querySelector('{LOSS}').focus()")
    page.key("Home")
    page.key("+")
    page.choose("#smooth", "5")
    chosen = "JSON.stringify([view.range, view.at, document.querySelector('#smooth').value, document.activeElement.id])"
    before = page.run(chosen)
    with open("plain/metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "step": 202, "loss": 1.25, "tokens_seen": 202000, "time": 1790007236}\n')
    check("the page follows the run", browser.wait("runs[0].step.at(-1) === 202"))
    check("with the same view", page.run(chosen) == before and page.told().startswith("step 1,"), page.run(chosen))
    page = Page(browser, url + "?runs=many")
    browser.wait(CONNECTED)
    page.mouse("mouseMoved", 0.5)
    check("a point of a long run is of many steps", page.told().startswith("steps "), page.told())
    page.drag(0.5, 0.52)
    check("a zoomed part gets every step", browser.wait("points(runs[0]) !== runs[0]") and page.run("points(runs[0]).step.length > 60"), page.range())
    page.mouse("mouseMoved", 0.5)
    check("whose values are told", page.told().startswith("step 15"), page.told())
    page.choose("#axis", "tokens")
    check("all is shown again", page.range() is None and page.run("points(runs[0]) === runs[0]"))
    page.drag(0.5, 0.52)
    check("also over tokens", browser.wait("points(runs[0]) !== runs[0]") and page.run("Math.abs(points(runs[0]).step[0] - 1494) < 5"), page.run("points(runs[0]).step[0]"))
    server.send_signal(signal.SIGINT)
    check("smelt watch ends cleanly", server.wait() == 0)


def try_long(browser, smelt):
    with open("long/metrics.jsonl", "w") as file:
        for step in range(1, 1000001):
            file.write(f'{{"kind": "step", "step": {step}, "loss": {2 + math.sin(step) / 9:.5f}, "grad_norm": {1 + step % 7}, "lr": {step * 1e-9:.6g}, '
                       f'"tokens_seen": {step * 524288}, "tokens_per_second": {1000 + step % 99}, "time": {1790000000 + step}}}\n')
            if step % 1000 == 0:
                file.write(f'{{"kind": "evaluation", "step": {step}, "loss": {2 + math.cos(step) / 9:.6f}, "bits_per_byte": 0.6543}}\n')
                file.write(f'{{"kind": "checkpoint", "step": {step}, "bytes": 96000000000, "milliseconds": 9000}}\n')
                file.write(f'{{"kind": "sample", "step": {step}, "prompt": "Once upon a time", "text": "{"there was a fox. " * 15}"}}\n')
    subprocess.run([smelt, "report", "long", "out=long.html"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    check("a page of 1,000,000 steps is under 250 KB", os.path.getsize("long.html") < 250000, os.path.getsize("long.html"))
    begin = time.time()
    page = Page(browser, "long.html")
    page.mouse("mouseMoved", 0.9999)
    check("its last point has the last step", "1000000" in page.told(), page.told())
    seconds = time.time() - begin
    browser.call("Performance.enable")
    heap = next(metric["value"] for metric in browser.call("Performance.getMetrics")["metrics"] if metric["name"] == "JSHeapTotalSize")
    check("it opens in under a second", seconds < 1, seconds)
    check("it stays under 60 MB", heap < 60e6, heap)


def main():
    smelt = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        name = MARKUP.replace("/", "\\")
        write_run(name, 400, 0)
        write_run("plain", 200, 1)
        subprocess.run([smelt, "report", name, "out=one.html"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([smelt, "report", name, "plain", "out=two.html"], check=True, stdout=subprocess.DEVNULL)
        browser = Browser(folder + "/profile")
        browser.resize(1200)
        try_one(Page(browser, "one.html"))
        page = Page(browser, "one.html")
        browser.check_widths()
        browser.resize(390)
        check("a narrow page folds its tables", page.run("getComputedStyle(document.querySelector('#settings table')).display") == "none")
        page.run("document.querySelector('[data-fold=settings]').click()")
        check("and unfolds them", page.run("getComputedStyle(document.querySelector('#settings table')).display") != "none")
        try_touch(page)
        browser.resize(1200)
        try_several(Page(browser, "two.html"))
        browser.check_widths()
        browser.resize(1200)
        try_live(browser, smelt)
        os.mkdir("long")
        try_long(browser, smelt)
        browser.close()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
