"""Runs notebook programs cell by cell in a sandcell session and in a real Jupyter kernel, and prints what differs.

Usage: compare.py PROGRAMS [--only TEXT] [--part 0/8] [--kept FILE] [--verbose] -- SERVER_COMMAND...
With --kept, what the kernel gave is written to that file, or read from it if it is there.
The last line on stdout is a JSON object: {"programs", "cells", "equal", "skipped", "differences": [{program, cell, what, jupyter, sandcell}]}.

`PROGRAMS` is a folder of text files. A file holds programs, each after a line `#### name`, and a program holds cells, each
after a line `## cell` (with `stdin="…"` if the cell reads some; `\\n` in it is a line feed).

What is compared of a cell: stdout and stderr with the texts of displays in their places, the last value's text, the error's
type and message, and the number of pictures. Deliberate differences, and what is done about each:
- addresses of objects, and the names under which a cell is known to tracebacks and warnings: replaced by one word
- what Jupyter says when it forgets old values of `Out`: taken out, since sandcell forgets them in silence
- the folder of the notebook, the times of `%time`, and the launcher's path in `sys.argv[0]`: replaced by one word
- terminal escapes, carriage returns and backspaces: applied, since sandcell hands out what a terminal would show
- other control characters: taken out, since sandcell writes them as escapes; and how long a time-out took
- tracebacks: only type and message, since sandcell shows the caller's own lines and no colours
- a picture's text ("<Figure size 640x480 with 1 Axes>"): sandcell describes what is in the figure; and a figure that is the
  last value and still open comes once, not twice; one without anything in it does not come at all
- IPython.display objects (HTML, Markdown, …): sandcell shows their text, Jupyter "<IPython.core.display.HTML object>"
- a method of a displayed value (`_repr_html_`, …) that raises: the cell goes on in both; Jupyter's front end gets an error, and
  sandcell's stderr the traceback
- sys.exit() ends a cell without an error, and Jupyter's advice how to leave it is not compared; an exit code is sandcell's
  cause, and words that it is called with are on stderr
- warnings of the compiler: Jupyter says them once for each time that it compiles the cell ("<>:1: SyntaxWarning")
- syntax errors: only their type, since Jupyter has words of its own for some ("incomplete input")
- commands after `!`: sandcell adds "[exit status N]" to stderr
- what a display is updated to (`handle.update`, `update_display`): shown again, since there is no place to replace; and
  `clear_output` clears nothing, so Jupyter's outputs count as if it had not been called
- a table with a style: sandcell shows the table's text, Jupyter "<pandas.io.formats.style.Styler at 0x…>"
- input(): Jupyter asks the front end, sandcell prints the prompt as Python does with a standard input that is no terminal
"""

import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import threading

PATIENCE = 120
# Between two programs: what the last one made goes, on both sides alike.
WIPE = """
for _name in [_name for _name in globals() if not _name.startswith("_") and _name not in
              ("In", "Out", "exit", "quit", "open", "get_ipython", "display")]:
    del globals()[_name]
del _name
"""


def read_programs(folder):
    for file in sorted(pathlib.Path(folder).glob("*.txt")):
        for part in re.split(r"(?m)^#### ", file.read_text("utf-8"))[1:]:
            name, _, body = part.partition("\n")
            cells = []
            for piece in re.split(r"(?m)^## cell", body)[1:]:
                head, _, code = piece.partition("\n")
                match = re.search(r'stdin="([^"]*)"', head)
                cells.append((code.rstrip("\n"), match and match.group(1).replace("\\n", "\n")))
            yield "%s/%s" % (file.stem, name.strip()), cells


# ---------------------------------------------------------------- normal form


def as_seen(text):
    """What a terminal would show."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = []
        at = 0
        for character in line:
            if character == "\r":
                at = 0
            elif character == "\b":
                at = max(0, at - 1)
                del shown[at:]
            else:
                shown[at : at + 1] = [character]
                at += 1
        lines.append("".join(shown))
    return "\n".join(lines)


def normal(text):
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", re.sub(r"\\x07", "", as_seen(text)))
    text = re.sub(r"(?m)^\[exit status \d+[^]]*\]\n?", "", text)
    text = re.sub(r"(?m)^(CPU times:|Wall time:) .*", r"\1 <times>", text)
    text = re.sub(r"(?m)^\S*/displayhook\.py:.*\n(?:Flushing oldest.*\n)?  .*\n?", "", text)
    text = re.sub(r"(?m)^<Figure size \d+x\d+ with 0 Axes>\n?", "", text)
    text = re.sub(r"timed out after [\d.]+ seconds", "timed out", text)
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "0xADDRESS", text)
    text = re.sub(r"(?m)^<>:\d+: \w+Warning: .*\n", "", text)
    text = re.sub(r"/\S*/ipykernel_\d+/\d+\.py", "<cell>", text)
    text = re.sub(r"/\S*/ipykernel_launcher\.py", "ipykernel_launcher.py", text)
    text = re.sub(r"<ipython-input-[^>]*>", "<cell>", text)
    text = re.sub(r"Cell In\[\d+\], line", "<cell>:", text)
    return re.sub(r"<cell \d+>", "<cell>", text).rstrip("\n")


def flat(text):
    return " ".join(text.split())


def as_objects(jupyter, sandcell):
    """Whether the texts are equal but for lines that only name an object which sandcell shows."""
    if "<pandas.io.formats.style.Styler at" in jupyter:
        return "\n" in sandcell
    if not re.search(r"<IPython\.(?:core|lib)\.display\.", jupyter):
        return False
    pattern = re.escape(jupyter)
    pattern = re.sub(r"<IPython\\\.(?:core|lib)\\\.display\\\.\w+\\ (?:object|at\\ 0xADDRESS)>", "(?:.|\n)+", pattern)
    return re.fullmatch(pattern, sandcell) is not None


class Outcome:
    """What a cell gave, in the normal form."""

    picture_is_result = False

    def __init__(self, stdout="", stderr="", result=None, error=None, pictures=0, told=()):
        self.stdout, self.stderr = normal(stdout), normal(stderr)
        self.result = None if result is None else normal(result)
        self.error, self.pictures = error, pictures
        self.told = list(told)  # errors of methods that show values

    def compare(self, other):
        """[(what, ours, theirs)]"""
        found = []
        for kind, message in self.told:
            said = "%s\n%s" % (other.stderr, other.error or "")
            if kind not in said or flat(message) not in flat(said):
                found.append(("told", "%s: %s" % (kind, message), said))
        for what in ("stdout", "stderr", "result", "pictures"):
            mine, its = getattr(self, what), getattr(other, what)
            if what == "stderr" and self.error and self.error[0] == "SystemExit":
                its = its.replace(self.error[1], "").rstrip("\n")
            if (what == "result" and self.picture_is_result) or (what == "stderr" and self.told):
                continue
            if mine != its and not (isinstance(mine, str) and isinstance(its, str) and as_objects(mine, its)):
                found.append((what, mine, its))
        if self.told and self.error is None:
            if other.error is not None and other.result is not None:
                found.append(("error", self.told, other.error))
        elif (self.error is None) != (other.error is None):
            found.append(("error", self.error, other.error))
        elif self.error is not None:
            kind, message = self.error
            said = other.error + (other.stderr if kind == "SystemExit" else "")
            if (kind not in said and kind != "SystemExit") or flat(message) not in flat(said):
                found.append(("error", "%s: %s" % self.error, other.error))
        return found


# ---------------------------------------------------------------- Jupyter


class Jupyter:
    def __init__(self, folder):
        from jupyter_client.manager import KernelManager

        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=folder)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def run(self, code, stdin):
        lines = iter((stdin or "").split("\n"))
        name = self.client.execute(code, allow_stdin=stdin is not None)
        stdout, stderr, result, errors = [], [], None, []
        pictures, picture_is_result = [], False
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.05 if stdin is not None else PATIENCE)
            except Exception:
                if stdin is None:
                    raise
                try:
                    asked = self.client.get_stdin_msg(timeout=0.05)
                    stdout.append(asked["content"]["prompt"])
                    self.client.input(next(lines, ""))
                except Exception:
                    pass
                continue
            content, kind = message["content"], message["msg_type"]
            if message["parent_header"].get("msg_id") != name:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind == "stream":
                (stdout if content["name"] == "stdout" else stderr).append(content["text"])
            elif kind in ("display_data", "update_display_data"):
                data = content["data"]
                if any(mime in data for mime in ("image/png", "image/jpeg")):
                    pictures.append(data.get("image/png"))
                elif "image/svg+xml" not in data:
                    stdout.append(data.get("text/plain", "<IPython.core.display.Raw object>") + "\n")
            elif kind == "execute_result":
                data = content["data"]
                if any(mime in data for mime in ("image/png", "image/jpeg")):
                    pictures.append(data.get("image/png"))
                    picture_is_result = True
                else:
                    if result is not None:
                        stdout.append(result + "\n")  # of a cell that shows all its expressions
                    result = data.get("text/plain", "")
            elif kind == "error":
                errors.append((content["ename"], message_only(content["ename"], content["evalue"])))
        reply = self.client.get_shell_msg(timeout=PATIENCE)
        while reply["parent_header"].get("msg_id") != name:
            reply = self.client.get_shell_msg(timeout=PATIENCE)
        failed = reply["content"]["status"] != "ok"
        error = errors.pop() if failed and errors else None
        if error and error[0] == "SystemExit":
            stderr = [text for text in stderr if "To exit: use 'exit'" not in text]
            error = ("exit code", error[1]) if error[1].isdigit() and error[1] != "0" else None if error[1] == "0" else error
        if picture_is_result and len(pictures) == 2:
            pictures.pop()
        at_home = [
            text if text is None else text.replace(self.folder, "/home/user") for text in ("".join(stdout), "".join(stderr), result)
        ]
        outcome = Outcome(*at_home, error, len(pictures), errors)
        outcome.picture_is_result = picture_is_result
        return outcome

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def message_only(name, value):
    """Jupyter adds the place to the message of a syntax error; sandcell shows it above."""
    if name in ("SyntaxError", "IndentationError", "TabError"):
        return ""
    return normal(re.sub(r" \(<string>\)$", "", value))


# ---------------------------------------------------------------- sandcell


class Sandcell:
    def __init__(self, command):
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0
        self.request("initialize", {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "notebooks", "version": "1"},
        })
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.server.stdin.flush()

    def request(self, method, params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while True:
            line = self.server.stdout.readline()
            if not line:
                raise EOFError("the server ended")
            answer = json.loads(line)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]

    def call(self, tool, **arguments):
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def stream(self, execution, name):
        text, offset = "", 0
        while True:
            answer = self.call("get_execution", execution_id=execution, stream=name, offset=offset)
            place = answer["_meta"]["sandcell/stream"]
            text += place["text"]
            if place["eof"] or place["next_offset"] == offset:
                return text
            offset = place["next_offset"]

    def run(self, code, stdin):
        more = {} if stdin is None else {"stdin": stdin}
        answer = self.call("execute_code", code=code, timeout_s=100, wait_s=110, **more)
        if answer.get("isError"):
            raise RuntimeError(answer["content"])
        meta = answer["_meta"]["sandcell/execution"]
        texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
        pictures = len([block for block in answer["content"] if block["type"] == "image"])
        stdout = self.stream(meta["execution_id"], "stdout") if meta["stdout"] else ""
        stderr = self.stream(meta["execution_id"], "stderr") if meta["stderr"] else ""
        rest = texts[0] if len(texts) > 1 else ""
        rest = rest[len(stdout) :] if rest.startswith(stdout) else rest
        result, error = labelled(rest, stderr)
        if result is not None and ("bytes left out; read them with" in result or "[the line above " in result):
            result = self.stream(meta["execution_id"], "result")
        if meta["status"] != "ok" and error is None:
            error = texts[-1]
        return Outcome(stdout, stderr, result, error and normal(error), pictures)

    def close(self):
        self.server.stdin.close()
        self.server.wait(PATIENCE)


def labelled(rest, stderr):
    """(result, error) of what follows stdout in the first text block."""
    rest = rest.lstrip("\n")
    result = error = None
    while rest:
        label, mark, after = rest.partition(":")
        if not mark or label not in ("display", "chart", "table", "stderr", "result", "error"):
            break
        after = after[1:]
        if label == "stderr" and after.startswith(stderr.rstrip("\n")):
            rest = after[len(stderr.rstrip("\n")) :].lstrip("\n")
        elif label == "result":
            parts = re.split(r"\n(?=(?:table|error):)", after, maxsplit=1)
            result, rest = parts[0], parts[1] if len(parts) > 1 else ""
        elif label == "error":
            error, rest = after, ""
        else:
            _, _, rest = after.partition("\n")
    return result, error


# ---------------------------------------------------------------- both


def main():
    at = sys.argv.index("--")
    options, command = sys.argv[1:at], sys.argv[at + 1 :]
    only = options[options.index("--only") + 1] if "--only" in options else ""
    part, parts = map(int, options[options.index("--part") + 1].split("/")) if "--part" in options else (0, 1)
    programs = [item for item in read_programs(options[0]) if only in item[0]][part::parts]
    kept = options[options.index("--kept") + 1] if "--kept" in options else ""
    theirs, ours = {}, {}
    failures = []

    def run_all(make, into):
        try:
            side = make()
            try:
                for name, cells in programs:
                    into[name] = [side.run(code, stdin) for code, stdin in cells]
                    side.run(WIPE, None)
            finally:
                side.close()
        except BaseException as error:
            failures.append(error)
            raise

    with tempfile.TemporaryDirectory() as folder:
        if os.path.exists(kept):
            with open(kept, "rb") as file:
                theirs = pickle.load(file)
            run_all(lambda: Sandcell(command), ours)
        else:
            other = threading.Thread(target=run_all, args=(lambda: Jupyter(folder), theirs))
            other.start()
            run_all(lambda: Sandcell(command), ours)
            other.join()
            if kept and not failures:
                with open(kept, "wb") as file:
                    pickle.dump(theirs, file)
    if failures:
        sys.exit("one side broke off: %r" % failures)
    differences, cells = [], 0
    for name, listed in programs:
        for number, (code, _) in enumerate(listed):
            cells += 1
            for what, jupyter, sandcell in theirs[name][number].compare(ours[name][number]):
                differences.append(
                    {"program": name, "cell": number + 1, "what": what, "jupyter": jupyter, "sandcell": sandcell}
                )
                if "--verbose" in options:
                    print("---- %s, cell %d: %s\n%s\n-- jupyter:\n%s\n-- sandcell:\n%s" % (
                        name, number + 1, what, code, jupyter, sandcell))
    unequal = {(item["program"], item["cell"]) for item in differences}
    print(json.dumps({
        "programs": len(programs), "cells": cells, "equal": cells - len(unequal), "differences": differences,
    }))


main()
