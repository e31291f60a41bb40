"""A headless Chromium, driven through its debugging pipe: messages of JSON that end with a zero byte, on descriptors 3 and 4."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome"]


class Browser:
    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise SystemExit("no Chromium: apt-get install chromium")
        self.profile = tempfile.mkdtemp(prefix="remuda-console-")
        there, here = os.pipe(), os.pipe()

        def descriptors():
            # Out of the way first: a pipe may have got 3 or 4 itself.
            reading, writing = os.dup(there[0]), os.dup(here[1])
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={self.profile}"]
        self.process = subprocess.Popen([program, *arguments, "about:blank"], preexec_fn=descriptors, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(there[0])
        os.close(here[1])
        self.writing, self.reading = there[1], here[0]
        self.rest, self.number, self.events = b"", 0, []
        target = self.send("Target.createTarget", session=False, url="about:blank")["targetId"]
        self.session = None
        self.session = self.send("Target.attachToTarget", session=False, targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.send(f"{domain}.enable")

    def send(self, method, session=True, **params):
        """Calls a method and gives its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(60)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.reading], [], [], max(0, end - time.monotonic()))[0]:
                raise RuntimeError("Chromium does not answer")
            part = os.read(self.reading, 1 << 16)
            if not part:
                raise RuntimeError("Chromium has ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def value(self, expression):
        """The value of an expression in the page; promises are waited for."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, expression, seconds=30):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(f"!!({expression})"):
            if time.monotonic() > end:
                text = self.value("document.body.innerText")
                raise AssertionError(f"never true: {expression}\n{text}\n{self.complaints()}")
            time.sleep(0.05)

    def size(self, width, height, dark=False):
        """The size of the window in pixels, and whether the user likes it dark."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)

    def screenshot(self, path):
        import base64
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "scale": 1, "width": self.value("innerWidth"),
                                  "height": self.value("document.documentElement.scrollHeight")})
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def complaints(self):
        """What the page's console and the browser have complained of so far."""
        self.value("1")
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(params["args"])
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"])
        return found

    def close(self):
        try:
            self.send("Browser.close", session=False)
        except RuntimeError:
            pass
        self.process.wait(30)
        shutil.rmtree(self.profile, ignore_errors=True)
