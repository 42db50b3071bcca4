"""Headless Chromium, which takes commands of its debugging protocol through a pipe. Needs chromium-headless-shell (make test-browser installs it)."""
import json
import os
import subprocess
import sys
import time

results = []


def check(name, good, told=""):
    results.append(bool(good))
    if not good:
        print(f"FAILED: {name} {told}")


class Browser:
    def __init__(self, profile):
        own, theirs = os.pipe(), os.pipe()
        command = ["sh", "-c", f"exec 3<&{own[0]} 4>&{theirs[1]}; exec chromium-headless-shell --no-sandbox --disable-gpu "
                               f"--user-data-dir={profile} --remote-debugging-pipe 2>/dev/null"]
        self.process = subprocess.Popen(command, pass_fds=(own[0], theirs[1]))
        os.close(own[0]), os.close(theirs[1])
        self.out, self.into, self.number, self.session = os.fdopen(own[1], "wb"), os.fdopen(theirs[0], "rb"), 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def message(self):
        data = bytearray()
        while (byte := self.into.read(1)) != b"\0":
            if not byte:
                sys.exit("the browser ended")
            data += byte
        return json.loads(data)

    def call(self, method, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        self.out.write(json.dumps(command).encode() + b"\0")
        self.out.flush()
        while (answer := self.message()).get("id") != self.number:
            pass
        if "error" in answer:
            sys.exit(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while not (value := self.run(script)):
            if time.time() > end:
                return value
            time.sleep(0.05)
        return value

    def resize(self, width, height=700):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 1000)

    def check_widths(self):
        for width in (1200, 390, 320):
            self.resize(width)
            check(f"no wider than {width}", self.run("document.documentElement.scrollWidth <= innerWidth"))

    def close(self):
        self.process.terminate()
        self.process.wait()


def finish():
    """Prints the result; returns the exit code."""
    print(f"browser: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1
