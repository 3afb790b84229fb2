"""Runs the code cells of a notebook in a real Jupyter kernel, and prints what each gives.

Usage: rerun.py FILE.ipynb
stdout is a JSON list: [{"stdout", "result", "error"}], one for each code cell.
"""

import json
import os
import sys
import tempfile

import jupyter_client.manager

PATIENCE = 60


def run(client, source):
    gave = {"stdout": "", "result": None, "error": None}
    request = client.execute(source)
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            gave["stdout"] += content["text"]
        elif kind == "execute_result":
            gave["result"] = content["data"]["text/plain"]
        elif kind == "error":
            gave["error"] = content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            return gave


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        notebook = json.load(file)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JUPYTER_RUNTIME_DIR"] = os.environ["IPYTHONDIR"] = folder
        manager, client = jupyter_client.manager.start_new_kernel(cwd=folder)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        gave = [run(client, "".join(cell["source"])) for cell in cells]
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    print(json.dumps(gave))


main()
